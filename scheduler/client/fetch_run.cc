#include "scheduler/client/fetch_run.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "base/text/strict_json.h"
#include "comm/content/store.h"
#include "comm/content/transfer/transfer.h"
#include "comm/control/snapshot_tables.h"
#include "node_agent/train/job/snapshot.h"
#include "scheduler/client/pool_client.h"
#include "scheduler/client/run_journal.h"
#include "shard/modelet/checkpoint.h"
#include "shard/modelet/checkpoint/folders.h"

namespace modelet::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kNoLimit = uint64_t{1} << 60;   // of bytes that wait to be placed
constexpr double kFetchReportSeconds = 1;          // seconds
constexpr size_t kMostLogBytes = size_t{1} << 30;  // of an own log, which a run of days may fill
constexpr const char* kFetchedExperiment = "experiment.toml";
constexpr const char* kFetchedLog = "log.jsonl";

bool is_in_store(const comm::SnapshotFile& file) {
  return std::ranges::find(file.holders, "") != file.holders.end();
}

std::vector<comm::Snapshot> stored_checkpoints(PoolClient& client, uint64_t run) {
  std::vector<comm::Snapshot> stored;
  const comm::control::RunFilesT files = client.files(run);
  for (const auto& table : files.snapshots) {
    comm::Snapshot snapshot = comm::control::snapshot_of(*table);
    if (snapshot.keep && std::ranges::all_of(snapshot.files, is_in_store))
      stored.push_back(std::move(snapshot));
  }
  std::ranges::sort(stored, std::greater(), &comm::Snapshot::step);
  return stored;
}

bool is_best(const comm::SnapshotFile& file) { return file.name.starts_with(agent::kBestPrefix); }

FileLock lock_on(const fs::path& folder) {
  fs::create_directories(folder);
  std::optional<FileLock> lock = FileLock::take(folder / ".lock");
  if (!lock)
    throw UsageError(folder.string() +
                     ": a run trains into this folder, or is fetched into it; give another --out");
  return std::move(*lock);
}

// Fetches over one connection into one folder.
class Fetcher {
 public:
  Fetcher(const comm::control::SchedulerAddress& server, const fs::path& folder, const FetchOptions& options)
      : options_(options),
        staging_(folder / ".fetching"),
        store_(staging_ / "files", kNoLimit, "the disk"),
        link_(server, {.check = options.check}) {
    if (!options.store.empty()) theirs_.emplace(options.store, kNoLimit, "the disk");
  }

  // Fetches the snapshot into `checkpoints`. If it names a best checkpoint that is not there, fetches that
  // one first.
  void fetch(comm::Snapshot snapshot, const fs::path& checkpoints) {
    const auto first_best =
        std::stable_partition(snapshot.files.begin(), snapshot.files.end(), std::not_fn(is_best));
    const std::vector<comm::SnapshotFile> best(first_best, snapshot.files.end());
    snapshot.files.erase(first_best, snapshot.files.end());
    const std::string name = shard::step_name(snapshot.step);
    bring(name, snapshot.files, "");
    const shard::CheckpointIndex index = shard::Checkpoint::open(staging_ / name).index();
    const fs::path best_target = shard::checkpoint_of_step(checkpoints, index.best_step);
    if (agent::has_best_files(index) && !best.empty() && !shard::is_checkpoint(best_target)) {
      const std::string best_name = best_target.filename();
      bring(best_name, best, agent::kBestPrefix);
      if (index.encoder)
        link_or_copy(staging_ / name / shard::kEncoderName, staging_ / best_name / shard::kEncoderName);
      publish(best_name, checkpoints);
    }
    publish(name, checkpoints);
    for (const auto* files : {&std::as_const(snapshot.files), &best})
      for (const comm::SnapshotFile& file : *files) store_.remove(file.content);
    if (options_.newest > 0)
      shard::remove_old_checkpoints(checkpoints, snapshot.step, options_.newest, index.best_step);
  }
  // A file that belongs to no checkpoint.
  void fetch(const comm::ContentId& content, const fs::path& to) {
    fs::create_directories(staging_);
    const fs::path partial = staging_ / to.filename();
    const uint64_t bytes = manifest_of(content).bytes();
    fs::remove(partial);
    fetch_file({.name = to.filename(), .content = content, .bytes = bytes, .holders = {""}}, partial,
               Progress(to.filename(), {}, options_));
    fs::rename(partial, to);
  }
  // Removes the partial files. Call it when no later attempt needs them.
  void remove_leftovers() const {
    std::error_code ignored;
    fs::remove_all(staging_, ignored);
  }

 private:
  // Reports how much of a checkpoint has arrived.
  class Progress {
   public:
    Progress(std::string name, const std::vector<comm::SnapshotFile>& files, const FetchOptions& options)
        : name_(std::move(name)), report_(options.report) {
      for (const comm::SnapshotFile& file : files) total_ += file.bytes;
    }
    void add(uint64_t there, uint64_t fetched) const {
      there_ += there;
      fetched_ += fetched;
      if (!report_ || (there_ < total_ && since_report_.seconds() < kFetchReportSeconds)) return;
      since_report_.lap();
      const double rate = static_cast<double>(fetched_) / std::max(1e-9, watch_.seconds());
      const auto left = static_cast<double>(total_ - std::min(total_, there_));
      report_({{"event", "fetching"},
               {"data", name_},
               {"bytes", there_},
               {"total_bytes", total_},
               {"bytes_per_second", rate},
               {"eta_seconds", rate > 0 ? left / rate : 0}});
    }

   private:
    const std::string name_;
    const std::function<void(const nlohmann::json&)>& report_;
    const Stopwatch watch_;
    mutable Stopwatch since_report_;
    mutable uint64_t there_ = 0, fetched_ = 0;
    uint64_t total_ = 0;
  };

  // Fetches the files of a checkpoint; their names on the disk lack `prefix`.
  void bring(const std::string& name, const std::vector<comm::SnapshotFile>& files,
             const std::string& prefix) {
    const fs::path partial = staging_ / name;
    fs::remove_all(partial);
    fs::create_directories(partial);
    const Progress progress(name, files, options_);
    for (const comm::SnapshotFile& file : files)
      fetch_file(file, partial / file.name.substr(prefix.size()), progress);
  }

  // Makes the checkpoint appear under its name after all of it is on the disk.
  void publish(const std::string& name, const fs::path& checkpoints) const {
    const fs::path partial = staging_ / name;
    shard::Checkpoint::open(partial);
    shard::sync_checkpoint(partial);
    fs::create_directories(checkpoints);
    shard::rename_folder(partial, checkpoints / name);
    shard::sync_folder(checkpoints);
  }

  void fetch_file(const comm::SnapshotFile& file, const fs::path& to, const Progress& progress) {
    if (theirs_ && theirs_->link_to(file.content, to)) {
      if (fs::file_size(to) != file.bytes)
        throw Error(to.string() + ": is not whole in the scheduler's store");
      fs::permissions(to, mode_of_new_files());
      return progress.add(file.bytes, file.bytes);
    }
    const comm::Manifest manifest = manifest_of(file.content);
    const auto content = store_.open(manifest, options_.check);
    if (!content) throw Error(staging_.string() + ": another process fetches into this folder: let it end");
    const std::vector<uint32_t> missing = content->missing();
    uint64_t left = 0, before = 0;
    for (const uint32_t chunk : missing) left += manifest.chunk_bytes(chunk);
    progress.add(manifest.bytes() - left, 0);
    comm::fetch_chunks(link_, *content, missing, [&](uint64_t bytes, uint64_t) {
      const uint64_t more = bytes - std::exchange(before, bytes);
      progress.add(more, more);
    });
    link_or_copy(content->path(), to);
  }

  comm::Manifest manifest_of(const comm::ContentId& content) {
    if (auto manifest = store_.manifest(content)) return std::move(*manifest);
    return comm::fetch_manifest(link_, content);
  }

  fs::perms mode_of_new_files() const {
    const fs::path file = staging_ / "new";
    std::ofstream{file};
    return fs::status(file).permissions();
  }

  const FetchOptions& options_;
  const fs::path staging_;
  comm::ContentStore store_;
  std::optional<comm::ContentStore> theirs_;
  comm::DataLink link_;
};

// Removes from the store of this process's own pool what no wanted checkpoint needs: the store is on this
// user's disk, too.
void remove_from_store(const fs::path& folder, const std::vector<comm::Snapshot>& unwanted,
                       const std::vector<comm::Snapshot>& wanted) {
  std::set<comm::ContentId> needed;
  for (const comm::Snapshot& snapshot : wanted)
    for (const comm::SnapshotFile& file : snapshot.files) needed.insert(file.content);
  comm::ContentStore store(folder, kNoLimit, "the disk");
  for (const comm::Snapshot& snapshot : unwanted)
    for (const comm::SnapshotFile& file : snapshot.files)
      if (!needed.contains(file.content)) store.remove(file.content);
}

std::string log_line(const nlohmann::json& event) {
  return event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// What the pool knows of a run, apart from its weights.
struct Record {
  std::string experiment;
  std::vector<nlohmann::json> events;  // their paths are those in the client's folder
};

Record record_of(const comm::control::SchedulerAddress& scheduler, uint64_t run, const fs::path& folder,
                 const std::function<void()>& check) {
  PoolClient client(scheduler, check);
  Record record{client.files(run).experiment, client.past_events(run)};
  for (nlohmann::json& event : record.events)
    for (const char* key : {"path", "checkpoint"})
      if (const auto found = event.find(key); found != event.end() && found->is_string())
        *found = fetched_path(folder, found->get<std::string>()).string();
  return record;
}

std::vector<std::string> lines_of(const fs::path& log) {
  std::vector<std::string> lines;
  std::istringstream text(fs::exists(log) ? read_text_file(log, kMostLogBytes) : std::string());
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// Whether the log begins with this run's own start. Starts have a time, so two runs of one experiment have
// different ones. A log without a start may be of any run that has not begun.
bool may_be_of(const std::vector<std::string>& log, const Record& record) {
  const auto is_own = [&](const std::string& line) {
    return std::ranges::any_of(record.events, [&](const nlohmann::json& event) {
      return is_start(event) && log_line(event) == line;
    });
  };
  return std::ranges::none_of(record.events, is_start) || std::ranges::any_of(log, is_own) ||
         std::ranges::none_of(log, [](const std::string& line) {
           return is_start(parse_json_object(line).value_or(nlohmann::json()));
         });
}

// Throws if the folder has files of another run, with which those of this run would be mixed.
void require_no_other_run(const fs::path& folder, uint64_t run, const Record& record) {
  const fs::path experiment = folder / kFetchedExperiment, log = folder / kFetchedLog;
  const auto refuse = [&](const fs::path& file) {
    throw Error(fmt::format("{} is not that of run {}: choose another folder", file.string(), run));
  };
  if (fs::exists(experiment) && read_text_file(experiment) != record.experiment) refuse(experiment);
  if (!fs::exists(experiment))
    if (const auto checkpoint = shard::newest_checkpoint(folder / "checkpoints"))
      throw Error(fmt::format("{} may be another run's, because the folder has no {}: choose another folder",
                              checkpoint->string(), kFetchedExperiment));
  if (!may_be_of(lines_of(log), record)) refuse(log);
}

}  // namespace

RunFolder::RunFolder(fs::path folder, const fs::path& resumed)
    : folder_(std::move(folder)),
      made_(!fs::exists(folder_)),
      lock_(shard::take_run_folder(folder_, resumed)) {}

RunFolder::RunFolder(fs::path folder)
    : folder_(std::move(folder)), made_(!fs::exists(folder_)), lock_(lock_on(folder_)) {}

RunFolder::~RunFolder() {
  std::error_code ignored;  // if this fails, the folder stays
  const auto files = std::distance(fs::directory_iterator(folder_, ignored), {});
  if (made_ && !ignored && files <= 1) fs::remove_all(folder_, ignored);
}

fs::path fetched_path(const fs::path& folder, const fs::path& elsewhere) {
  return folder / "checkpoints" / elsewhere.filename();
}

std::vector<fs::path> fetch_checkpoints(const comm::control::SchedulerAddress& scheduler, uint64_t run,
                                        const fs::path& folder, const FetchOptions& options) {
  PoolClient client(scheduler, options.check);
  std::vector<comm::Snapshot> wanted = stored_checkpoints(client, run);
  const uint64_t newest = wanted.empty() ? 0 : wanted.front().step;
  if (options.newest > 0) {
    const auto old =
        wanted.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(wanted.size(), options.newest));
    if (!options.store.empty()) remove_from_store(options.store, {old, wanted.end()}, {wanted.begin(), old});
    wanted.erase(old, wanted.end());
    std::ranges::reverse(wanted);
  }
  std::vector<fs::path> paths;
  std::optional<Fetcher> fetcher;
  for (const comm::Snapshot& snapshot : wanted) {
    paths.push_back(fetched_path(folder, shard::step_name(snapshot.step)));
    if (shard::is_checkpoint(paths.back())) {
      if (options.arrived) options.arrived(paths.back());
      continue;
    }
    if (!fetcher) {
      const uint16_t port = client.data_port();
      if (port == 0)
        throw Error("this scheduler keeps no files: start modelet-scheduler with --state or --store");
      fetcher.emplace(comm::control::with_port(scheduler, port), folder, options);
    }
    try {
      fetcher->fetch(snapshot, paths.back().parent_path());
    } catch (const comm::Refusal& refusal) {
      if (snapshot.step == newest) throw;
      // The store may have needed the room of an older checkpoint.
      log_warning("{} is left out: {}", shard::step_name(snapshot.step), refusal.what());
      fetcher->remove_leftovers();
      fetcher.reset();  // its link must not be used again
      paths.pop_back();
      continue;
    }
    if (options.arrived) options.arrived(paths.back());
  }
  if (fetcher) fetcher->remove_leftovers();
  if (options.newest > 0) std::ranges::reverse(paths);
  return paths;
}

void fetch_file(const comm::control::SchedulerAddress& scheduler, const std::string& address,
                const fs::path& to, const FetchOptions& options) {
  const uint16_t port = PoolClient(scheduler, options.check).data_port();
  Fetcher fetcher(comm::control::with_port(scheduler, port), to.parent_path(), options);
  fetcher.fetch(comm::parse_content_id(address), to);
  fetcher.remove_leftovers();
}

void fetch_record(const comm::control::SchedulerAddress& scheduler, uint64_t run, const fs::path& folder,
                  const std::function<void()>& check) {
  const Record record = record_of(scheduler, run, folder, check);
  require_no_other_run(folder, run, record);
  AtomicFile experiment(folder / kFetchedExperiment);
  experiment.write(record.experiment);
  experiment.commit();

  const fs::path file = folder / kFetchedLog;
  std::vector<std::string> lines = lines_of(file);
  std::set<std::string> known(lines.begin(), lines.end());
  for (const nlohmann::json& event : record.events)
    if (const std::string line = log_line(event); known.insert(line).second) lines.push_back(line);
  AtomicFile log(file);
  for (const std::string& line : lines) log.write(line + '\n');
  log.commit();
}

}  // namespace modelet::cli
