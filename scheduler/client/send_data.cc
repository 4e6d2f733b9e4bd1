#include "scheduler/client/send_data.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/log.h"
#include "comm/content/content.h"

namespace modelet::cli {
namespace {

namespace msg = comm::control;

constexpr size_t kWindow = 4;       // chunks sent and not yet stored
constexpr double kReplyPoll = 0.1;  // seconds
constexpr double kGiveUp = 60;      // seconds of silence
constexpr double kReportEvery = 1;  // seconds

std::vector<uint8_t> message_bytes(std::span<const std::byte> bytes) {
  const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
  return {first, first + bytes.size()};
}

// Sends questions, a few at once, until each has its answer. Answers come in order, and none is lost unless
// the connection is. A question is therefore sent again only then, or when the scheduler has no time.
class Sender {
 public:
  using Question = std::function<msg::ToSchedulerMessage(uint32_t)>;  // of a number

  Sender(const msg::SchedulerAddress& server, double ask_again)
      : socket_(server, msg::Traffic::kChunks), server_(server.endpoint), ask_again_(ask_again) {}

  // Asks question(number) for each number; answered(answer) says whether an answer of this kind belongs to
  // `number`.
  template <class Answer>
  void ask(std::deque<uint32_t> numbers, const Question& question,
           const std::function<bool(Answer&, uint32_t number)>& answered) {
    std::deque<uint32_t> asked;
    uint64_t connection = socket_.connections();  // over which `asked` were asked
    while (!numbers.empty() || !asked.empty()) {
      if (std::exchange(connection, socket_.connections()) != socket_.connections()) {
        numbers.insert(numbers.begin(), asked.begin(), asked.end());
        asked.clear();
      }
      while (may_ask() && !numbers.empty() && asked.size() < kWindow &&
             socket_.send(question(numbers.front()))) {
        later_.reset();
        asked.push_back(numbers.front());
        numbers.pop_front();
      }
      auto message = receive();
      if (!message || asked.empty()) continue;
      if (const auto* later = std::get_if<msg::LaterT>(&*message)) {
        if (later->answer_follows) continue;
        if (!std::exchange(told_to_wait_, true)) log_info("waits for the scheduler: {}", later->reason);
        later_.emplace();
        numbers.push_front(asked.front());
        asked.pop_front();
      } else if (auto* answer = std::get_if<Answer>(&*message)) {
        std::erase_if(asked, [&](uint32_t number) { return answered(*answer, number); });
      }
    }
  }

 private:
  bool may_ask() const { return socket_.connections() > 0 && (!later_ || later_->seconds() > ask_again_); }

  std::optional<msg::FromSchedulerMessage> receive() {
    auto message = socket_.receive(kReplyPoll);
    if (message) {
      silence_.lap();
      if (const auto* refusal = std::get_if<msg::RefusedT>(&*message))
        throw Error("the scheduler refuses data: " + refusal->reason);
    } else if (silence_.seconds() > kGiveUp) {
      throw Error(fmt::format(
          "the scheduler at {}, its port for data, did not answer within {:.0f} s{}{}; submit again, "
          "what has arrived stays there",
          server_, kGiveUp, socket_.trouble().empty() ? "" : ": ", socket_.trouble()));
    }
    return message;
  }

  msg::ClientSocket socket_;
  const std::string server_;
  const double ask_again_;
  Stopwatch silence_;
  std::optional<Stopwatch> later_;  // since the scheduler said so
  bool told_to_wait_ = false;
};

}  // namespace

std::string send_data(const msg::SchedulerAddress& server, const shard::Dataset& data,
                      const std::string& what, Reporter& reporter, double ask_again) {
  const auto file = data.file();
  const auto manifest = comm::Manifest::of(file);
  Sender sender(server, ask_again);
  msg::WantedT wanted;
  sender.ask<msg::WantedT>(
      {0},
      [&](uint32_t) {
        return msg::OfferT{{}, message_bytes(manifest.encode())};
      },
      [&](msg::WantedT& answer, uint32_t) {
        wanted = std::move(answer);
        return true;
      });
  uint64_t total = 0, bytes = 0;
  for (const uint32_t chunk : wanted.chunks) {
    if (chunk >= manifest.chunks()) throw FormatError("the scheduler asks for a chunk that does not exist");
    total += manifest.chunk_bytes(chunk);
  }
  const Stopwatch watch;
  Stopwatch since_report;
  const auto put = [&](uint32_t chunk) {
    const auto part = file.subspan(manifest.chunk_begin(chunk), manifest.chunk_bytes(chunk));
    return msg::PutChunkT{{}, wanted.data, chunk, message_bytes(part)};
  };
  const auto stored = [&](const msg::ChunkStoredT& answer, uint32_t chunk) {
    if (answer.chunk != chunk) return false;
    bytes += manifest.chunk_bytes(chunk);
    if (bytes < total && since_report.seconds() < kReportEvery) return true;
    since_report.lap();
    const double rate = static_cast<double>(bytes) / std::max(1e-9, watch.seconds());
    reporter.handle({{"event", "sending"},
                     {"data", what},
                     {"bytes", bytes},
                     {"total_bytes", total},
                     {"bytes_per_second", rate},
                     {"eta_seconds", static_cast<double>(total - bytes) / rate}});
    return true;
  };
  sender.ask<msg::ChunkStoredT>({wanted.chunks.begin(), wanted.chunks.end()}, put, stored);
  return comm::to_text(manifest.id());
}

}  // namespace modelet::cli
