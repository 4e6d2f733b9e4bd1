// DataLink: questions to a port for data (data_server.h), a few at once, until each has its answer.
//
// Answers come in the order of the questions, and none is lost unless the connection is. A question is
// therefore asked again only then, or when the other side has no time, or when its answer was wrong. However
// slow the link, nothing travels twice without need.
//
// What is asked is in transfer.h. A question throws Error if the other side refuses or is silent for `give_up`
// seconds, and what `check` throws. A link is of no use after that: answers may still be on their way. One
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/system/clock.h"
#include "comm/control/control.h"
#include "comm/transport/rate_limit.h"

namespace modelet::comm {

// So many bytes a second in the mean, over all links that share it. 0: no limit. One thread.
class Pace {
 public:
  // `all`: keeps to this as well, with whatever else shares it. Null: nothing does.
  explicit Pace(double bytes_per_second = 0, std::shared_ptr<RateLimit> all = {})
      : rate_(bytes_per_second), all_(std::move(all)) {}
  void set(double bytes_per_second) {
    rate_ = bytes_per_second;
    next_ = 0;
  }
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
  Pace* pace = nullptr;               // null: as fast as it goes; outlives the link
  double ask_again = 2;  // seconds until a question is repeated that the other side has no time for
  double give_up = 60;   // seconds of silence
  std::function<void()> check = {};  // called several times a second while the link waits; may throw
};

class DataLink {
 public:
  DataLink(const control::SchedulerAddress& server, LinkOptions options);

  enum class Heard { kOther, kAnswer, kWrong };  // of a message: not the answer to this question; ask again
  using Question = std::function<control::ToSchedulerMessage(uint32_t number)>;
  using Hear = std::function<Heard(control::FromSchedulerMessage&, uint32_t number)>;
  // Asks question(number) for each number, and gives what comes to `hear`. `bytes_of`: what an exchange moves.
  void ask(std::deque<uint32_t> numbers, const Question& question, const Hear& hear,
           const std::function<uint64_t(uint32_t number)>& bytes_of);

  const std::string& who() const { return options_.who; }

 private:
  bool may_ask() const;
  std::optional<control::FromSchedulerMessage> receive(double seconds);

  control::ClientSocket socket_;
  const std::string server_;
  const LinkOptions options_;
  Stopwatch silence_;
  std::optional<Stopwatch> later_;  // since the other side said so
  bool told_to_wait_ = false;
};

}  // namespace modelet::comm
