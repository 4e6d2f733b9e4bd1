#include "node_agent/agent/run_data.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "node_agent/train/data/label_parts.h"
#include "shard/data/store/dataset.h"

namespace modelet::agent {
namespace {

namespace msg = comm::control;
using comm::ContentId;
using comm::Manifest;
using comm::StoredContent;

constexpr size_t kWindow = 4;           // chunks asked for and not yet here: fills 1 Gbit/s at 30 ms
constexpr double kPoll = 0.1;           // seconds between two looks at whether somebody wants an end
constexpr double kGiveUp = 60;          // seconds of silence after which the scheduler counts as gone
constexpr double kReportEvery = 1;      // seconds
constexpr size_t kMostWrongChunks = 3;  // of one fetch

std::span<const std::byte> bytes_of(const std::vector<uint8_t>& bytes) {
  return std::as_bytes(std::span(bytes));
}

// One file on its way from the scheduler.
class Fetch {
 public:
  Fetch(const DataSource& source, const ContentId& id, const std::function<void()>& check)
      : socket_(source.server, msg::Traffic::kChunks),
        server_(source.server.endpoint),
        id_(id),
        data_(to_text(id)),
        rate_(source.cache.fetch_bytes_per_second),
        ask_again_(source.ask_again),
        check_(check) {}

  Manifest manifest() {
    bool asked = false;
    for (;;) {
      if (is_new_connection()) asked = false;
      asked = asked || (may_ask() && socket_.send(msg::FetchManifestT{{}, data_}));
      auto message = receive(asked ? kPoll : kPoll / 10);
      if (is_later(message)) asked = false;
      const auto* answer = message ? std::get_if<msg::ManifestOfT>(&*message) : nullptr;
      if (answer == nullptr || answer->data != data_) continue;
      Manifest manifest = Manifest::parse(bytes_of(answer->manifest));
      if (manifest.id() != id_)
        throw FormatError("the scheduler at " + server_ + " sent the manifest of other data");
      return manifest;
    }
  }

  // Fetches missing chunks; may be called again with others. `report` is called from time to time.
  void fill(StoredContent& content, std::span<const uint32_t> chunks, const std::function<void()>& report) {
    todo_.assign(chunks.begin(), chunks.end());
    while (!todo_.empty() || !outstanding_.empty()) {
      if (is_new_connection()) {
        todo_.insert(todo_.begin(), outstanding_.begin(), outstanding_.end());
        outstanding_.clear();
      }
      ask(content, watch_.seconds());
      const auto message = receive(outstanding_.empty() ? kPoll / 10 : kPoll);
      if (is_later(message) && !outstanding_.empty()) {  // answers come in the order of the questions
        asked_bytes_ -= static_cast<double>(content.manifest().chunk_bytes(outstanding_.front()));
        todo_.push_front(outstanding_.front());
        outstanding_.pop_front();
      } else if (message) {
        if (const auto* chunk = std::get_if<msg::ChunkT>(&*message)) take(*chunk, content);
      }
      if (since_report_.seconds() > kReportEvery && !todo_.empty()) {
        report();
        since_report_.lap();
      }
    }
  }
  uint64_t bytes() const { return bytes_; }  // fetched
  double seconds() const { return watch_.seconds(); }

 private:
  // The next message; ends the waiting if it is a refusal, or if nothing comes for too long.
  std::optional<msg::FromSchedulerMessage> receive(double seconds) {
    check_();
    auto message = socket_.receive(seconds);
    if (message) {
      silence_.lap();
      if (const auto* refusal = std::get_if<msg::RefusedT>(&*message))
        throw Error("the scheduler refuses: " + refusal->reason);
      if (const auto* later = std::get_if<msg::LaterT>(&*message); later != nullptr && !told_to_wait_) {
        log_info("waits for the scheduler: {}", later->reason);
        told_to_wait_ = true;
      }
    } else if (silence_.seconds() > kGiveUp) {
      throw Error(
          fmt::format("the scheduler sent nothing of the data for {:.0f} s; at {} its port for data must be "
                      "reachable ({})",
                      kGiveUp, server_, socket_.trouble().empty() ? "no answer" : socket_.trouble()));
    }
    return message;
  }

  // Questions over an earlier connection have no answer.
  bool is_new_connection() {
    return std::exchange(connection_, socket_.connections()) != socket_.connections();
  }
  bool is_later(const std::optional<msg::FromSchedulerMessage>& message) {
    const bool later = message && std::holds_alternative<msg::LaterT>(*message);
    if (later) later_.emplace();
    return later;
  }
  bool may_ask() const { return connection_ > 0 && (!later_ || later_->seconds() > ask_again_); }

  void ask(const StoredContent& content, double seconds) {
    while (!todo_.empty() && outstanding_.size() < kWindow && may_ask()) {
      if (rate_ > 0 && asked_bytes_ > rate_ * seconds) {
        silence_.lap();  // it is this side's
        return;
      }
      if (content.has(todo_.front())) {  // a late answer has brought it
        todo_.pop_front();
        continue;
      }
      if (!socket_.send(msg::FetchChunkT{{}, data_, todo_.front()})) return;
      asked_bytes_ += static_cast<double>(content.manifest().chunk_bytes(todo_.front()));
      outstanding_.push_back(todo_.front());
      todo_.pop_front();
    }
  }

  void take(const msg::ChunkT& chunk, StoredContent& content) {
    if (chunk.data != data_) return;
    std::erase(outstanding_, chunk.chunk);
    try {  // one that was asked for twice may come twice
      if (content.put(chunk.chunk, bytes_of(chunk.bytes))) bytes_ += chunk.bytes.size();
    } catch (const FormatError& error) {
      if (++wrong_ >= kMostWrongChunks)
        throw Error("the scheduler at " + server_ + " sends wrong data: " + error.what());
      log_warning("asks again: {}", error.what());
      todo_.push_front(chunk.chunk);
    }
  }

  msg::ClientSocket socket_;
  const std::string server_;
  const ContentId id_;
  const std::string data_;  // id_ as text
  const double rate_, ask_again_;
  const std::function<void()>& check_;
  const Stopwatch watch_;
  Stopwatch silence_, since_report_;
  std::deque<uint32_t> todo_;         // chunks
  std::deque<uint32_t> outstanding_;  // asked for, in this order
  uint64_t connection_ = 0;           // over which that was
  std::optional<Stopwatch> later_;    // since the scheduler had no time
  uint64_t bytes_ = 0;                // fetched
  double asked_bytes_ = 0;
  size_t wrong_ = 0;
  bool told_to_wait_ = false;
};

using Neurons = std::vector<shard::NeuronRange>;

// Chunks that are missing and needed, as far as this is known by now: the parts before the labels say where
// the labels lie. `labels`: of these neurons; null: all.
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

// `what`: "train" or "test"; `labels` as above.
std::unique_ptr<StoredContent> fetch(const DataSource& source, comm::ContentStore& store, const ContentId& id,
                                     const char* what, const Neurons* labels, const EventSink& events,
                                     const std::function<void()>& check) {
  auto manifest = store.manifest(id);
  if (!manifest) manifest = Fetch(source, id, check).manifest();
  std::unique_ptr<StoredContent> content;
  while (!(content = store.open(*manifest, check))) {  // another agent fetches it
    check();
    std::this_thread::sleep_for(Seconds(kPoll));
  }
  const auto bytes_of = [&](std::span<const uint32_t> chunks) {
    uint64_t bytes = 0;
    for (const uint32_t chunk : chunks) bytes += manifest->chunk_bytes(chunk);
    return bytes;
  };
  const auto require_prepared = [&] {
    if (!shard::is_prepared(content->path()))
      throw FormatError(
          fmt::format("the scheduler's data {} is no prepared file: submit the run again", to_text(id)));
  };
  std::optional<Fetch> link;
  uint64_t total = bytes_of(content->missing());  // at most, until it is seen what is needed
  const auto report = [&] {
    const uint64_t bytes = link->bytes();
    const double rate = static_cast<double>(bytes) / std::max(1e-9, link->seconds());
    events({{"event", "fetching"},
            {"node", source.node},
            {"data", what},
            {"bytes", bytes},
            {"total_bytes", total},
            {"bytes_per_second", rate},
            {"eta_seconds", rate > 0 ? static_cast<double>(total - bytes) / rate : 0}});
  };
  for (;;) {
    if (content->complete() || content->has(0)) require_prepared();
    const Needed needed = needed_of(*content, labels);
    if (needed.chunks.empty()) break;
    if (!link) link.emplace(source, id, check);
    if (needed.all) total = link->bytes() + bytes_of(needed.chunks);
    link->fill(*content, needed.chunks, report);
  }
  content->release();
  if (link) {
    total = link->bytes();
    report();
    log_info("fetched {} of the {} bytes of the {} data {}", total, manifest->bytes(), what, to_text(id));
  }
  return content;
}

}  // namespace

RunData::RunData(const DataSource& source, TrainJob& job, const EventSink& events,
                 const std::function<void()>& check) {
  comm::ContentStore store(source.cache.folder, source.cache.bytes, "--cache-mib of the agent");
  const Neurons neurons = output_neurons(job);
  train_ = fetch(source, store, source.train, "train", &neurons, events, check);
  test_ = fetch(source, store, source.test, "test", nullptr, events, check);
  job.train_file = train_->path();
  job.test_file = test_->path();
}

}  // namespace modelet::agent
