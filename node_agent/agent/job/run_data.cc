#include "node_agent/agent/job/run_data.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "comm/content/transfer/transfer.h"
#include "node_agent/train/data/label_selection.h"
#include "shard/data/store/dataset.h"

namespace modelet::agent {
namespace {

using comm::ContentId;
using comm::Manifest;
using comm::StoredContent;

constexpr double kPoll = 0.1;       // seconds between two calls of `check`
constexpr double kReportEvery = 1;  // seconds
constexpr std::string_view kTrain = "train", kTest = "test", kTowers = "towers";

using Neurons = std::vector<shard::NeuronRange>;

// The chunks that are needed and missing, as far as is known yet: where the labels are is known only when
// the parts before them are there. `labels`: the neurons whose labels are needed; null: all.
struct Needed {
  std::vector<uint32_t> chunks;
  bool all = true;  // nothing more will turn out to be needed
};

Needed needed_of(const StoredContent& content, const Neurons* labels) {
  const Manifest& manifest = content.manifest();
  std::vector<uint32_t> missing = content.missing();
  if (labels == nullptr || missing.empty()) return {std::move(missing), true};
  if (!content.has(0)) return {{0}, false};
  const std::string name = content.path().string();
  const MappedFile file(content.path());
  const auto missing_in = [&](uint64_t begin, uint64_t end) {
    std::vector<uint32_t> chunks;
    for (const uint32_t chunk : missing)
      if (const uint64_t first = manifest.chunk_begin(chunk);
          first < end && first + manifest.chunk_bytes(chunk) > begin)
        chunks.push_back(chunk);
    return chunks;
  };
  const shard::ByteRange section = shard::label_section(file.bytes(), manifest.bytes(), name);
  if (auto before = missing_in(0, section.begin); !before.empty()) return {std::move(before), false};
  Needed needed;
  for (const shard::ByteRange& range : shard::bytes_of_labels(file.bytes(), *labels, name))
    for (const uint32_t chunk : missing_in(range.begin, range.end))
      if (needed.chunks.empty() || needed.chunks.back() < chunk) needed.chunks.push_back(chunk);
  return needed;
}

// Fetches what is needed of a file. `labels`: as for needed_of().
std::unique_ptr<StoredContent> fetch(const DataSource& source, comm::ContentStore& store, const ContentId& id,
                                     std::string_view what, const Neurons* labels, const EventSink& events,
                                     const std::function<void()>& check) {
  std::optional<comm::DataLink> link;
  comm::Pace pace(source.cache.fetch_bytes_per_second);
  const auto connected = [&]() -> comm::DataLink& {
    if (!link)
      link.emplace(source.server,
                   comm::LinkOptions{.pace = &pace, .counter = source.cache.counter, .ask_again = source.ask_again, .check = check});
    return *link;
  };
  auto manifest = store.manifest(id);
  if (!manifest) manifest = comm::fetch_manifest(connected(), id);
  std::unique_ptr<StoredContent> content;
  while (!(content = store.open(*manifest, check))) {  // another agent is fetching it
    check();
    std::this_thread::sleep_for(Seconds(kPoll));
  }
  const auto require_prepared = [&] {
    if (!shard::is_prepared(content->path()))
      throw FormatError(
          fmt::format("the scheduler's data {} is no prepared file: submit the run again", to_text(id)));
  };
  uint64_t total = 0, fetched = 0;  // bytes; `total` is an upper bound until it is known what is needed
  for (const uint32_t chunk : content->missing()) total += manifest->chunk_bytes(chunk);
  const Stopwatch watch;
  Stopwatch since_report;
  const auto report = [&](uint64_t bytes) {
    const double rate = static_cast<double>(bytes) / std::max(1e-9, watch.seconds());
    events({{"event", "fetching"},
            {"node", source.node},
            {"data", what},
            {"bytes", bytes},
            {"total_bytes", total},
            {"bytes_per_second", rate},
            {"eta_seconds", rate > 0 ? static_cast<double>(total - bytes) / rate : 0}});
    since_report.lap();
  };
  for (;;) {
    if (what != kTowers && (content->complete() || content->has(0))) require_prepared();
    const Needed needed = needed_of(*content, labels);
    if (needed.chunks.empty()) break;
    const uint64_t before = fetched;
    comm::fetch_chunks(connected(), *content, needed.chunks, [&](uint64_t bytes, uint64_t of_these) {
      fetched = before + bytes;
      if (needed.all) total = before + of_these;
      if (since_report.seconds() > kReportEvery && bytes < of_these) report(fetched);
    });
  }
  content->release();
  if (fetched > 0) {
    total = fetched;
    report(fetched);
    log_info("fetched {} of the {} bytes of the {} data {}", total, manifest->bytes(), what, to_text(id));
  }
  return content;
}

}  // namespace

RunData::RunData(const DataSource& source, TrainJob& job, const EventSink& events,
                 const std::function<void()>& check) {
  comm::ContentStore store(source.cache.folder, source.cache.bytes, "--cache-mib of the agent");
  const bool is_task = source.division.has_value();
  const Neurons neurons = is_task ? Neurons() : output_neurons(job);
  if (source.division) {
    division_ = fetch(source, store, *source.division, kTowers, nullptr, events, check);
    job.tower->division_file = division_->path();
  }
  if (source.train) {
    train_ = fetch(source, store, *source.train, kTrain, is_task ? nullptr : &neurons, events, check);
    job.train_file = train_->path();
  }
  if (source.test) {
    test_ = fetch(source, store, *source.test, kTest, nullptr, events, check);
    job.test_file = test_->path();
  }
}

}  // namespace modelet::agent
