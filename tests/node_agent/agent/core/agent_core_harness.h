// Drives an AgentCore by hand: events in, actions out.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "node_agent/agent/core/agent_core.h"

namespace modelet::agent::test {

namespace msg = comm::control;

inline constexpr uint64_t kPool = 77, kOtherPool = 88;

inline msg::RegisteredT registered(uint64_t pool = kPool) {
  msg::RegisteredT message;
  message.node = 3;
  message.heartbeat_seconds = 1;
  message.dead_after_seconds = 5;
  message.pool = pool;
  return message;
}

inline msg::PrepareT prepare(uint64_t run, uint32_t epoch, uint32_t size = 2) {
  msg::PrepareT message;
  message.run = run;
  message.epoch = epoch;
  message.size = size;
  message.pool = kPool;
  return message;
}

inline msg::StartT start(uint64_t run, uint32_t epoch, size_t size = 2) {
  msg::StartT message;
  message.run = run;
  message.epoch = epoch;
  message.endpoints.resize(size, "tcp://127.0.0.1:1");
  return message;
}

inline msg::PreparedT prepared(uint64_t run, uint32_t epoch) {
  msg::PreparedT message;
  message.run = run;
  message.epoch = epoch;
  return message;
}

inline msg::RunDoneT done(uint64_t run, uint32_t epoch, msg::Outcome outcome = msg::Outcome::Ok,
                          const std::string& why = "") {
  msg::RunDoneT message;
  message.run = run;
  message.epoch = epoch;
  message.outcome = outcome;
  message.message = why;
  return message;
}

inline msg::RunEventT event(uint64_t run, const std::string& text = "{}") {
  msg::RunEventT message;
  message.run = run;
  message.json = text;
  return message;
}

inline msg::SnapshotHeldT held(uint64_t run, uint32_t epoch, uint64_t step) {
  msg::SnapshotHeldT message;
  message.run = run;
  message.epoch = epoch;
  message.step = step;
  return message;
}

inline msg::RegisterT self() {
  msg::RegisterT result;
  result.name = "alpha";
  return result;
}

struct Driver {
  AgentCore core{self()};
  double now = 100;
  uint64_t step = 0;
  bool is_sending = false;
  std::vector<AgentAction> actions;  // of the last event

  void handle(const AgentEvent& event) { actions = core.handle(now, event); }
  template <class Message>
  void hear(Message message) {
    handle(FromScheduler{std::move(message)});
  }
  template <class Message>
  void job(Message message) {
    handle(FromJob{std::move(message)});
  }
  void pass(double seconds) {
    now += seconds;
    handle(Tick{step, is_sending});
  }
  void join(uint64_t pool = kPool) {
    pass(0);
    hear(registered(pool));
    pass(0);
  }
  // Brings a run to its first step.
  void train(uint64_t run, uint32_t epoch) {
    hear(prepare(run, epoch));
    job(prepared(run, epoch));
    hear(start(run, epoch));
  }

  // The actions of this type that the last event caused.
  template <class Action>
  std::vector<Action> all() const {
    std::vector<Action> found;
    for (const AgentAction& action : actions)
      if (const auto* wanted = std::get_if<Action>(&action)) found.push_back(*wanted);
    return found;
  }
  template <class Action>
  bool has() const {
    return !all<Action>().empty();
  }
  // What the last event was ignored as; empty: it was not.
  std::string ignored() const {
    const auto* line = actions.size() == 1 ? std::get_if<AgentLog>(&actions[0]) : nullptr;
    const std::string begin = "ignored ";
    if (line == nullptr || !line->text.starts_with(begin)) return "";
    return line->text.substr(begin.size(), line->text.find(':') - begin.size());
  }
  // The messages of this type that the last event caused.
  template <class Message>
  std::vector<Message> sent() const {
    std::vector<Message> found;
    for (const Send& send : all<Send>())
      if (const auto* wanted = std::get_if<Message>(&send.message)) found.push_back(*wanted);
    return found;
  }
  template <class Message>
  Message the() const {
    const auto found = sent<Message>();
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? Message{} : found[0];
  }
  // Answers the last heartbeat as the scheduler does.
  void confirm() {
    pass(2);
    hear(msg::AliveT{{}, the<msg::HeartbeatT>().number});
  }
};

}  // namespace modelet::agent::test
