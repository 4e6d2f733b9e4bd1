#include "scheduler/client/fetch_run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/experiment/experiment.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "comm/content/snapshot.h"
#include "comm/content/store.h"
#include "comm/content/transfer/transfer.h"
#include "node_agent/train/job/snapshot.h"
#include "scheduler/client/pool_client.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kNoLimit = uint64_t{1} << 60;  // of bytes that wait to be placed
constexpr double kTellEvery = 1;                  // seconds
constexpr const char* kFetchedExperiment = "experiment.toml";
constexpr const char* kFetchedLog = "log.jsonl";

std::string name_of(const comm::Snapshot& snapshot) { return fmt::format("step-{:010}", snapshot.step); }

bool is_in_store(const comm::SnapshotFile& file) {
  return std::ranges::find(file.holders, "") != file.holders.end();
}

std::vector<comm::Snapshot> stored_checkpoints(PoolClient& client, uint64_t run) {
  std::vector<comm::Snapshot> stored;
  for (comm::Snapshot& snapshot : comm::parse_snapshots(client.files(run).snapshots)) {
    // The best weights until then are a checkpoint of their own.
    std::erase_if(snapshot.files, [](const auto& file) { return file.name.starts_with(agent::kBestPrefix); });
    if (snapshot.keep && std::ranges::all_of(snapshot.files, is_in_store))
      stored.push_back(std::move(snapshot));
  }
  std::ranges::sort(stored, std::greater(), &comm::Snapshot::step);
  return stored;
}

// One connection, and one folder.
class Fetcher {
 public:
  Fetcher(const comm::control::SchedulerAddress& server, const fs::path& folder, const FetchOptions& options)
      : options_(options),
        staging_(folder / ".fetching"),
        store_(staging_ / "files", kNoLimit, "the disk"),
        link_(server, {.check = options.check}) {}

  void fetch(const comm::Snapshot& snapshot, const fs::path& target) {
    const fs::path partial = staging_ / name_of(snapshot);
    fs::remove_all(partial);
    fs::create_directories(partial);
    const Progress progress(name_of(snapshot), snapshot, options_);
    for (const comm::SnapshotFile& file : snapshot.files) fetch_file(file, partial / file.name, progress);
    shard::Checkpoint::open(partial);
    fs::create_directories(target.parent_path());
    fs::rename(partial, target);
    for (const comm::SnapshotFile& file : snapshot.files) store_.remove(file.content);
  }
  // Nothing is left to go on with.
  void remove_leftovers() const {
    std::error_code ignored;
    fs::remove_all(staging_, ignored);
  }

 private:
  // Tells how much of a checkpoint is there.
  class Progress {
   public:
    Progress(std::string name, const comm::Snapshot& snapshot, const FetchOptions& options)
        : name_(std::move(name)), tell_(options.tell) {
      for (const comm::SnapshotFile& file : snapshot.files) total_ += file.bytes;
    }
    void add(uint64_t there, uint64_t fetched) const {
      there_ += there;
      fetched_ += fetched;
      if (!tell_ || (there_ < total_ && since_told_.seconds() < kTellEvery)) return;
      since_told_.lap();
      const double rate = static_cast<double>(fetched_) / std::max(1e-9, watch_.seconds());
      const auto left = static_cast<double>(total_ - std::min(total_, there_));
      tell_({{"event", "fetching"},
             {"data", name_},
             {"bytes", there_},
             {"total_bytes", total_},
             {"bytes_per_second", rate},
             {"eta_seconds", rate > 0 ? left / rate : 0}});
    }

   private:
    const std::string name_;
    const std::function<void(const nlohmann::json&)>& tell_;
    const Stopwatch watch_;
    mutable Stopwatch since_told_;
    mutable uint64_t there_ = 0, fetched_ = 0;
    uint64_t total_ = 0;
  };

  void fetch_file(const comm::SnapshotFile& file, const fs::path& to, const Progress& progress) {
    auto manifest = store_.manifest(file.content);
    if (!manifest) manifest = comm::fetch_manifest(link_, file.content);
    const auto content = store_.open(*manifest, options_.check);
    if (!content) throw Error(staging_.string() + ": another process fetches into this folder: let it end");
    const std::vector<uint32_t> missing = content->missing();
    uint64_t left = 0, before = 0;
    for (const uint32_t chunk : missing) left += manifest->chunk_bytes(chunk);
    progress.add(manifest->bytes() - left, 0);
    comm::fetch_chunks(link_, *content, missing, [&](uint64_t bytes, uint64_t) {
      const uint64_t more = bytes - std::exchange(before, bytes);
      progress.add(more, more);
    });
    link_or_copy(content->path(), to);
  }

  const FetchOptions& options_;
  const fs::path staging_;
  comm::ContentStore store_;
  comm::DataLink link_;
};

std::string log_line(const nlohmann::json& event) {
  return event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

fs::path fetched_path(const fs::path& folder, const fs::path& elsewhere) {
  return folder / "checkpoints" / elsewhere.filename();
}

std::vector<fs::path> fetch_checkpoints(const comm::control::SchedulerAddress& scheduler, uint64_t run,
                                        const fs::path& folder, const FetchOptions& options) {
  PoolClient client(scheduler);
  const std::vector<comm::Snapshot> stored = stored_checkpoints(client, run);
  std::vector<fs::path> paths;
  std::optional<Fetcher> fetcher;
  for (const comm::Snapshot& snapshot : stored) {
    paths.push_back(fetched_path(folder, name_of(snapshot)));
    if (fs::exists(paths.back() / shard::kIndexName)) continue;
    if (!fetcher) {
      const uint16_t port = client.data_port();
      if (port == 0)
        throw Error("this scheduler keeps no files: start modelet-scheduler with --state or --store");
      fetcher.emplace(comm::control::with_port(scheduler, port), folder, options);
    }
    fetcher->fetch(snapshot, paths.back());
  }
  if (fetcher) fetcher->remove_leftovers();
  return paths;
}

void fetch_record(const comm::control::SchedulerAddress& scheduler, uint64_t run, const fs::path& folder,
                  const fs::path& checkpoint) {
  AtomicFile experiment(folder / kFetchedExperiment);
  experiment.write(to_toml(shard::Checkpoint::open(checkpoint).index().experiment));
  experiment.commit();

  const fs::path file = folder / kFetchedLog;
  std::string log = fs::exists(file) ? read_text_file(file) : std::string();
  if (!log.empty() && log.back() != '\n') log += '\n';
  std::set<std::string> known;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) known.insert(line);
  for (nlohmann::json& event : PoolClient(scheduler).past_events(run)) {
    for (const char* key : {"path", "checkpoint"})
      if (const auto found = event.find(key); found != event.end() && found->is_string())
        *found = fetched_path(folder, found->get<std::string>()).string();
    if (const std::string line = log_line(event); known.insert(line).second) log += line + '\n';
  }
  AtomicFile writer(file);
  writer.write(log);
  writer.commit();
}

}  // namespace modelet::cli
