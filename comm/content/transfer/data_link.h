// DataLink: sends requests to a port for data (data_server.h). A few requests are under way at once, and
// each is sent until it has its reply.
//
// Replies come in the order of the requests, and none is lost unless the connection is. A request is
// therefore repeated only if the connection was lost, if the other side had no time, or if the reply was
// wrong. However slow the link, nothing travels twice without need.
//
// transfer.h has the requests. ask() throws Refusal if the other side refuses, and Error if it is silent for
// `give_up` seconds, or has no time for `longest_wait` seconds; it also passes on what `check` throws. After
// that the link must not be used, because replies may still be on their way. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "comm/control/control.h"
#include "comm/transport/rate_limit.h"

namespace modelet::comm {

// The other side has answered that it does not have the data, or does not want it.
class Refusal : public Error {
 public:
  using Error::Error;
};

// Limits the mean rate in bytes a second, over all links that share it. 0: no limit. One thread.
class Pace {
 public:
  // `all`: a limit that is kept as well, and that other senders share. Null: there is none.
  explicit Pace(double bytes_per_second = 0, std::shared_ptr<RateLimit> all = {})
      : rate_(bytes_per_second), all_(std::move(all)) {}
  void set(double bytes_per_second) {
    rate_ = bytes_per_second;
    next_ = 0;
  }
  double rate() const { return rate_; }
  bool may_go() const { return clock_.now() >= next_; }
  void went(uint64_t bytes);

 private:
  double rate_;
  const std::shared_ptr<RateLimit> all_;
  SteadyClock clock_;
  double next_ = 0;
};

struct LinkOptions {
  std::string who = "the scheduler";  // the other side, in messages
  Pace* pace = nullptr;               // null: no limit; must outlive the link
  std::shared_ptr<RateLimit> counter = {};  // of the chunks that arrive; null: they are not counted
  double ask_again = 2;               // seconds until a request is repeated if the other side had no time
  double give_up = 60;                // seconds of silence
  // Seconds in which the other side says only that it has no time. Two that wait for each other would wait
  // for ever.
  double longest_wait = std::numeric_limits<double>::infinity();
  std::function<void()> check = {};  // called several times a second while the link waits; may throw
};

class DataLink {
 public:
  DataLink(const control::SchedulerAddress& server, LinkOptions options);

  // What a message is to a request: something else; its reply; or a wrong reply, so the request is
  // repeated.
  enum class Reply { kOther, kReply, kWrong };
  using Request = std::function<control::ToSchedulerMessage(uint32_t number)>;
  using OnReply = std::function<Reply(control::FromSchedulerMessage&, uint32_t number)>;
  // Sends request(number) for each number, and passes each message that arrives to `on_reply`. `bytes_of`: the
  // bytes that a request and its reply move, for the pace.
  void ask(std::deque<uint32_t> numbers, const Request& request, const OnReply& on_reply,
           const std::function<uint64_t(uint32_t number)>& bytes_of);

  const std::string& who() const { return options_.who; }

 private:
  bool may_ask() const;
  std::optional<control::FromSchedulerMessage> receive(double seconds);

  control::ClientSocket socket_;
  const std::string server_;
  const LinkOptions options_;
  Stopwatch silence_;
  std::optional<Stopwatch> later_;  // since the other side said that it had no time
  Stopwatch waiting_;               // since it last said anything else
  bool logged_wait_ = false;
};

}  // namespace modelet::comm
