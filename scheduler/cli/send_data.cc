#include "scheduler/cli/send_data.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/content.h"

namespace modelet::cli {
namespace {

namespace msg = comm::control;

constexpr size_t kWindow = 4;       // chunks sent and not yet stored
constexpr double kPoll = 0.1;       // seconds
constexpr double kAskAgain = 2;     // seconds, of a scheduler that has other things to do
constexpr double kGiveUp = 60;      // seconds of silence
constexpr double kReportEvery = 1;  // seconds

std::vector<uint8_t> message_bytes(std::span<const std::byte> bytes) {
  const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
  return {first, first + bytes.size()};
}

class Sender {
 public:
  explicit Sender(const msg::SchedulerAddress& server)
      : socket_(server, msg::Traffic::kChunks), server_(server.endpoint) {}

  void send(const msg::ToSchedulerMessage& message) {
    for (const Stopwatch watch; !socket_.send(message); socket_.receive(kPoll / 10))
      if (watch.seconds() > kGiveUp) give_up();
  }

  // What the scheduler lacks. It may first serve others, and then has to look at what it has of large data.
  msg::WantedT offer(const comm::Manifest& manifest) {
    const msg::OfferT offer{{}, message_bytes(manifest.encode())};
    for (;;) {
      send(offer);
      if (auto wanted = wait_for<msg::WantedT>(kAskAgain)) return std::move(*wanted);
    }
  }

  msg::ChunkStoredT wait_until_stored() {
    for (;;)
      if (auto stored = wait_for<msg::ChunkStoredT>(kGiveUp)) return std::move(*stored);
  }

 private:
  // Nothing if it has not come within `seconds`, although the scheduler is there.
  template <class Answer>
  std::optional<Answer> wait_for(double seconds) {
    for (const Stopwatch watch; watch.seconds() < seconds;) {
      auto message = socket_.receive(kPoll);
      if (silence_.seconds() > kGiveUp) give_up();
      if (!message) continue;
      silence_.lap();
      if (auto* answer = std::get_if<Answer>(&*message)) return std::move(*answer);
      if (const auto* refusal = std::get_if<msg::RefusedT>(&*message))
        throw Error("the scheduler refuses data: " + refusal->reason);
    }
    return std::nullopt;
  }

  [[noreturn]] void give_up() {
    throw Error(fmt::format(
        "the scheduler at {}, its port for data, did not answer within {:.0f} s{}{}; submit again, "
        "what has arrived stays there",
        server_, kGiveUp, socket_.trouble().empty() ? "" : ": ", socket_.trouble()));
  }

  msg::ClientSocket socket_;
  const std::string server_;
  Stopwatch silence_;
};

}  // namespace

std::string send_data(const msg::SchedulerAddress& server, const shard::Dataset& data,
                      const std::string& what, Reporter& reporter) {
  const auto file = data.file();
  const auto manifest = comm::Manifest::of(file);
  Sender sender(server);
  const msg::WantedT wanted = sender.offer(manifest);
  uint64_t total = 0, bytes = 0;
  for (const uint32_t chunk : wanted.chunks) {
    if (chunk >= manifest.chunks()) throw FormatError("the scheduler wants data that there is none of");
    total += manifest.chunk_bytes(chunk);
  }
  const Stopwatch watch;
  Stopwatch since_report;
  size_t sent = 0;
  for (size_t stored = 0; stored < wanted.chunks.size(); ++stored) {
    for (; sent < wanted.chunks.size() && sent < stored + kWindow; ++sent) {
      const uint32_t chunk = wanted.chunks[sent];
      const auto part = file.subspan(manifest.chunk_begin(chunk), manifest.chunk_bytes(chunk));
      sender.send(msg::PutChunkT{{}, wanted.data, chunk, message_bytes(part)});
    }
    const msg::ChunkStoredT answer = sender.wait_until_stored();
    if (answer.chunk >= manifest.chunks())
      throw FormatError("the scheduler has stored data that nobody sent");
    bytes += manifest.chunk_bytes(answer.chunk);
    if (stored + 1 < wanted.chunks.size() && since_report.seconds() < kReportEvery) continue;
    since_report.lap();
    const double rate = static_cast<double>(bytes) / std::max(1e-9, watch.seconds());
    reporter.handle({{"event", "sending"},
                     {"data", what},
                     {"bytes", bytes},
                     {"total_bytes", total},
                     {"bytes_per_second", rate},
                     {"eta_seconds", static_cast<double>(total - std::min(total, bytes)) / rate}});
  }
  return comm::to_text(manifest.id());
}

}  // namespace modelet::cli
