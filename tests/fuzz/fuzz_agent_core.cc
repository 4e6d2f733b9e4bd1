// Well-formed control messages of every kind, with any numbers, from the scheduler and from the job in any order: old,
// doubled, early and made up. The decisions of an agent must keep the invariants in agent_core.h. Input: events of 6
// bytes each.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tests/comm/control/samples.h"
#include "tests/node_agent/agent/core/agent_core_harness.h"

namespace {

using namespace modelet::agent;  // NOLINT: names of the tests' own
using namespace modelet::agent::test;

constexpr size_t kEventBytes = 6;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

struct Numbers {
  uint64_t run = 0;
  uint32_t epoch = 0, size = 0;
};

template <class Message>
void set_numbers(Message& message, const Numbers& numbers) {
  if constexpr (requires { message.run; }) message.run = numbers.run;
  if constexpr (requires { message.epoch; }) message.epoch = numbers.epoch;
  if constexpr (requires { message.size; }) message.size = numbers.size;
  if constexpr (requires { message.number; }) message.number = numbers.epoch;
  if constexpr (requires { message.pool; }) message.pool = numbers.size;
  if constexpr (requires { message.endpoints; }) message.endpoints.resize(numbers.size, "tcp://10.0.0.1:9");
  if constexpr (requires { message.public_keys; }) message.public_keys.resize(numbers.size, "key");
}

class Agent {
 public:
  // It is registered and gets a run ready.
  Agent() {
    handle(Tick{});
    handle(FromScheduler{registered()});
    handle(FromScheduler{prepare(1, 1)});
  }
  void happen(std::span<const uint8_t> event) {
    static const auto kFromScheduler = modelet::test::messages_from_scheduler();
    static const auto kFromJob = modelet::test::messages_to_scheduler();
    const Numbers numbers{.run = event[2] < 192 ? 1 : event[2] % 3u,
                          .epoch = event[3] % 4u,
                          .size = event[4] < 192 ? 2 : event[4] % 4u};
    switch (event[0] % 8) {
      case 0:
        now_ += event[1] % 16;
        return handle(Tick{event[5], event[4] % 2 == 0});
      case 1:
        return handle(ConnectionLost{});
      case 2:
        if (event[1] % 4 == 0) handle(AskedToLeave{double(event[5]), "SIGTERM"});
        return;
      case 3:  // the job says what it can say
        if (!job_) return;
        if (event[1] % 2 == 0) return end_job(static_cast<msg::Outcome>(event[5] % 3));
        job_->prepared = true;
        return handle(FromJob{prepared(job_->run, job_->epoch)});
      case 4: {  // and what it cannot
        auto message = kFromJob[event[1] % kFromJob.size()];
        if (std::holds_alternative<msg::RunDoneT>(message) || std::holds_alternative<msg::PreparedT>(message))
          return;
        std::visit([&](auto& any) { set_numbers(any, numbers); }, message);
        return handle(FromJob{std::move(message)});
      }
      default: {
        auto message = kFromScheduler[event[1] % kFromScheduler.size()];
        std::visit([&](auto& any) { set_numbers(any, numbers); }, message);
        if (std::holds_alternative<msg::RegisteredT>(message)) epochs_.clear();  // perhaps another pool
        return handle(FromScheduler{std::move(message)});
      }
    }
  }

 private:
  struct Job {
    uint64_t run = 0;
    uint32_t epoch = 0;
    bool prepared = false, started = false, aborted = false;
  };

  void end_job(msg::Outcome outcome) {
    const Job job = *job_;
    job_.reset();
    handle(FromJob{done(job.run, job.epoch, outcome)});
  }
  void handle(const AgentEvent& event) {
    if (ended_) return;
    for (const AgentAction& action : core_.handle(now_, event)) {
      require(!ended_, "an action after the end");
      std::visit([this](const auto& what) { on(what); }, action);
    }
    require(core_.has_job() == job_.has_value(), "the job is not as the agent believes");
  }

  void on(const PrepareJob& action) {
    require(!job_, "a second job");
    job_ = Job{.run = action.prepare.run, .epoch = action.prepare.epoch};
  }
  void on(const StartJob& action) {
    require(job_ && job_->prepared && !job_->started, "a job is started that cannot start");
    require(action.start.epoch == job_->epoch, "a job is started for another epoch");
    job_->started = true;
  }
  void on(const StopJob&) { require(job_.has_value(), "no job to stop"); }
  void on(const AbortJob&) {
    require(job_ && !job_->aborted, "no job to abort");
    job_->aborted = true;
  }
  void on(const EndAgent&) { ended_ = true; }
  void on(const Send& send) {
    std::visit([this](const auto& message) { check_epoch(message); }, send.message);
  }
  template <class Other>
  void on(const Other&) {}

  // The end of an epoch may be sent again, because the scheduler was away.
  void check_epoch(const msg::HeartbeatT& beat) {
    if (beat.run == 0) return;
    uint32_t& latest = epochs_[beat.run];
    require(beat.epoch >= latest, "the epoch of a run decreases");
    latest = beat.epoch;
  }
  void check_epoch(const msg::RegisterT&) { epochs_.clear(); }  // perhaps at another pool
  template <class Other>
  void check_epoch(const Other&) {}

  AgentCore core_{self()};
  double now_ = 100;
  std::optional<Job> job_;
  std::map<uint64_t, uint32_t> epochs_;
  bool ended_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Agent agent;
  for (std::span<const uint8_t> events(data, size); events.size() >= kEventBytes;
       events = events.subspan(kEventBytes))
    agent.happen(events.first(kEventBytes));
  return 0;
}
