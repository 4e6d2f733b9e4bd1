#include "comm/content/transfer/data_link.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"
#include "comm/content/content.h"

namespace modelet::comm {
namespace {

constexpr size_t kWindow = 4;   // questions under way at once: enough for 1 Gbit/s at 30 ms
constexpr double kPoll = 0.1;   // seconds between two calls of `check`
constexpr double kSlack = 0.1;  // seconds of unused rate that may be made up for
// A chunk travels at so many times the mean rate. At the full rate of the link it would hold up the messages of
// a training step for 8 ms at 1 Gbit/s.
constexpr double kPacing = 1.5;
constexpr double kSlowest = kChunkBytes / 10.0;  // the other side must hear whole messages

}  // namespace

void Pace::went(uint64_t bytes) {
  const double now = clock_.now();
  if (rate_ > 0) next_ = std::max(next_, now - kSlack) + static_cast<double>(bytes) / rate_;
  if (all_) next_ = std::max(next_, now + all_->take(bytes, now));
}

DataLink::DataLink(const control::SchedulerAddress& server, LinkOptions options)
    : socket_(server, control::Traffic::kChunks), server_(server.endpoint), options_(std::move(options)) {}

void DataLink::ask(std::deque<uint32_t> numbers, const Request& request, const OnReply& on_reply,
                   const std::function<uint64_t(uint32_t number)>& bytes_of) {
  silence_.lap();
  waiting_.lap();
  std::deque<uint32_t> asked;
  uint64_t connection = socket_.connections();  // the one over which `asked` were sent
  while (!numbers.empty() || !asked.empty()) {
    if (std::exchange(connection, socket_.connections()) != socket_.connections()) {
      numbers.insert(numbers.begin(), asked.begin(), asked.end());
      asked.clear();
    }
    if (options_.pace != nullptr)
      socket_.pace(options_.pace->rate() == 0 ? 0 : std::max(kPacing * options_.pace->rate(), kSlowest));
    while (!numbers.empty() && asked.size() < kWindow && may_ask()) {
      if (options_.pace != nullptr && !options_.pace->may_go()) {
        silence_.lap();  // this side is the one that waits
        break;
      }
      if (!socket_.send(request(numbers.front()))) break;
      if (options_.pace != nullptr) options_.pace->went(bytes_of(numbers.front()));
      later_.reset();
      asked.push_back(numbers.front());
      numbers.pop_front();
    }
    auto message = receive(asked.empty() ? kPoll / 10 : kPoll);
    if (!message || asked.empty()) continue;
    if (const auto* later = std::get_if<control::LaterT>(&*message)) {
      if (later->answer_follows) continue;
      if (!std::exchange(logged_wait_, true)) log_info("waits for {}: {}", options_.who, later->reason);
      if (waiting_.seconds() > options_.longest_wait)
        throw Error(fmt::format("{} has had no time for {:.0f} s: {}", options_.who, waiting_.seconds(),
                                later->reason));
      later_.emplace();
      numbers.push_front(asked.front());
      asked.pop_front();
      continue;
    }
    waiting_.lap();
    for (size_t i = 0; i < asked.size(); ++i) {
      const Reply reply = on_reply(*message, asked[i]);
      if (reply == Reply::kOther) continue;
      if (reply == Reply::kWrong) numbers.push_front(asked[i]);
      asked.erase(asked.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  }
}

bool DataLink::may_ask() const {
  return socket_.connections() > 0 && (!later_ || later_->seconds() > options_.ask_again);
}

// The next message, or nothing yet. Throws if it is a refusal, or if nothing has come for too long.
std::optional<control::FromSchedulerMessage> DataLink::receive(double seconds) {
  if (options_.check) options_.check();
  auto message = socket_.receive(seconds);
  if (message) {
    silence_.lap();
    if (const auto* chunk = std::get_if<control::ChunkT>(&*message); chunk != nullptr && options_.counter)
      options_.counter->arrived(chunk->bytes.size());
    if (const auto* refusal = std::get_if<control::RefusedT>(&*message))
      throw Refusal(fmt::format("{} refuses data: {}", options_.who, refusal->reason));
  } else if (silence_.seconds() > options_.give_up) {
    throw Error(fmt::format(
        "{} sent nothing for {:.0f} s; at {} its port for data must be reachable ({}). What has arrived is kept",
        options_.who, options_.give_up, server_,
        socket_.trouble().empty() ? "no answer" : socket_.trouble()));
  }
  return message;
}

}  // namespace modelet::comm
