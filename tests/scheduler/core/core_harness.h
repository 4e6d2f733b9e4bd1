// Drives a Core by hand: a test passes messages in, and finds the messages that come out sorted by peer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/content/snapshot.h"
#include "comm/control/snapshot_tables.h"
#include "scheduler/core/core.h"
#include "tests/scheduler/core/submission.h"

namespace modelet::scheduler::test {

namespace msg = comm::control;

inline msg::RegisterT registration(const std::string& name, uint64_t incarnation = 1) {
  msg::RegisterT info;
  info.name = name;
  info.incarnation = incarnation;
  info.version = "test";
  info.cores = 2;
  info.memory_bytes = uint64_t{4} << 30;
  info.gflops = 50;
  info.memory_gbps = 10;
  info.protocol = msg::kControlVersion;
  return info;
}

// The bytes of a registration by a program that speaks another version of the protocol.
inline std::string register_as(uint16_t version) {
  msg::ToSchedulerT root;
  root.version = version;
  msg::RegisterT info = registration("other");
  info.protocol = 0;  // a field that the oldest version does not have
  root.body.Set(std::move(info));
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(msg::ToScheduler::Pack(builder, &root), "MCTS");
  return {reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()};
}

inline msg::RunDoneT done(uint64_t run, msg::Outcome outcome, uint64_t step = 0,
                          const std::string& message = "", uint32_t epoch = 1) {
  msg::RunDoneT result;
  result.run = run;
  result.epoch = epoch;
  result.outcome = outcome;
  result.step = step;
  result.message = message;
  return result;
}

inline msg::PreparedT prepared(uint64_t run, const std::string& endpoint, uint32_t epoch = 1) {
  msg::PreparedT result;
  result.run = run;
  result.epoch = epoch;
  result.endpoint = endpoint;
  return result;
}

inline msg::RunEventT event(uint64_t run, msg::EventKind kind, double done = 0) {
  msg::RunEventT result{{}, run, "{}"};
  result.kind = kind;
  result.done = done;
  return result;
}

// The event in which rank 0 reports the times of the ranks, in seconds.
inline msg::RunEventT progress(uint64_t run, const std::vector<double>& compute, double seconds_left = 1000) {
  msg::RunEventT result = event(run, msg::EventKind::Progress);
  result.seconds_left = seconds_left;
  const double longest = *std::max_element(compute.begin(), compute.end());
  for (const double seconds : compute) result.times.emplace_back(seconds, 0, longest - seconds);
  return result;
}

// As an agent reports the files of a rank.
inline msg::SnapshotHeldT held_message(uint64_t run, uint32_t rank, const comm::Snapshot& snapshot) {
  msg::SnapshotHeldT message;
  message.run = run;
  message.epoch = snapshot.epoch;
  message.step = snapshot.step;
  message.rank = rank;
  message.keep = snapshot.keep;
  message.files = msg::to_tables(snapshot.files);
  return message;
}

// The files of a rank in a snapshot. Each file is held by all `holders`.
inline msg::SnapshotHeldT held(uint64_t run, uint32_t epoch, uint64_t step, uint32_t rank,
                               const std::vector<std::string>& holders, bool keep = false) {
  comm::Snapshot files{.epoch = epoch, .step = step, .keep = keep, .files = {}};
  const std::string name = "part-" + std::to_string(rank);
  const std::string bytes = name + "-" + std::to_string(step);
  files.files.push_back({name, comm::content_id(std::as_bytes(std::span(bytes))), 100, holders});
  return held_message(run, rank, files);
}

// Everything that was persisted, in the form in which a ledger would return it.
class Written {
 public:
  void write(const Records& changes) {
    if (changes.pool) pool_ = changes.pool;
    for (const RunRecord& run : changes.runs) {
      std::string submission = run.submission.empty() ? runs_[run.id].submission : run.submission;
      runs_[run.id] = run;
      runs_[run.id].submission = std::move(submission);
    }
    for (const RunEventRecord& event : changes.events) events_[{event.run, event.number}] = event;
    for (const NodeNameRecord& name : changes.names) names_[name.name] = name;
    for (const NodeRecord& node : changes.nodes) nodes_[node.name] = node;
    for (const NodeLogRecord& log : changes.logs) logs_[log.node] += log.text;
    for (const uint64_t run : changes.forgotten_runs) {
      runs_.erase(run);
      std::erase_if(events_, [run](const auto& entry) { return entry.first.first == run; });
    }
  }
  std::string log_of(const std::string& node) const { return logs_.contains(node) ? logs_.at(node) : ""; }
  Records read() const {
    Records all{.pool = pool_, .runs = {}, .events = {}, .names = {}, .forgotten_runs = {}};
    for (const auto& [id, run] : runs_) all.runs.push_back(run);
    for (const auto& [number, event] : events_) all.events.push_back(event);
    for (const auto& [name, record] : names_) all.names.push_back(record);
    for (const auto& [name, record] : nodes_)
      if (!record.text.empty()) all.nodes.push_back(record);
    return all;
  }

 private:
  std::optional<PoolRecord> pool_;
  std::map<uint64_t, RunRecord> runs_;
  std::map<std::pair<uint64_t, uint64_t>, RunEventRecord> events_;
  std::map<std::string, NodeNameRecord> names_;
  std::map<std::string, NodeRecord> nodes_;
  std::map<std::string, std::string> logs_;  // node -> lines
};

struct Harness {
  explicit Harness(const CoreOptions& the_options = {}) : options(the_options), core(the_options) {}

  // The scheduler's process ends, and another one starts from what was persisted.
  void restart() {
    core = Core(options, written.read());
    requests.clear();
  }

  void handle(const Event& event) {
    std::vector<Action> actions = core.handle(now, event);
    for (size_t i = 0; i < actions.size(); ++i)
      if (const auto* persist = std::get_if<Persist>(&actions[i])) {
        EXPECT_EQ(i, 0u) << "what must survive is written before anything is sent";
        for (const RunRecord& run : persist->records.runs)
          written_bytes += run.text.size() + run.submission.size();
        shortened.insert(shortened.end(), persist->records.shortened_logs.begin(),
                         persist->records.shortened_logs.end());
        written.write(persist->records);
      }
    for (Action& action : actions) {
      if (auto* send = std::get_if<Send>(&action)) inbox[send->peer].push_back(std::move(send->message));
      if (auto* line = std::get_if<Log>(&action)) log += line->text + "\n";
      if (const auto* forget = std::get_if<ForgetPlan>(&action)) forgotten.push_back(forget->number);
      if (auto* request = std::get_if<PlanRequest>(&action)) {
        if (plans_later)
          requests.push_back(std::move(*request));
        else
          handle(carry_out(*request));
      }
    }
  }
  void receive(const std::string& peer, msg::ToSchedulerMessage message) {
    handle(Received{peer, std::move(message)});
  }

  // A member of a run ends its part, after a report of the files that it has of this step.
  void end(const std::string& peer, uint64_t id, msg::Outcome outcome, uint64_t step = 0,
           uint32_t epoch = 1) {
    const std::vector<std::string> members = run(id).node_names;
    const auto member =
        std::ranges::find_if(members, [&](const std::string& name) { return peer.starts_with(name); });
    receive(peer, held(id, epoch, step, static_cast<uint32_t>(member - members.begin()), {*member}, true));
    receive(peer, done(id, outcome, step, "", epoch));
  }

  // Lets time pass in ticks of one second. In each second the `alive` peers send heartbeats, in which they
  // work for `run`.
  void pass(int seconds, const std::vector<std::string>& alive = {}, uint64_t run = 0, uint64_t step = 0) {
    for (int i = 0; i < seconds; ++i) {
      now += 1;
      for (const std::string& peer : alive) receive(peer, msg::HeartbeatT{{}, 0, run, step});
      handle(Tick{});
    }
  }

  // Returns the messages of this type that a peer got, in order, and forgets all other messages of this peer.
  template <class Message>
  std::vector<Message> take(const std::string& peer) {
    std::vector<Message> taken;
    for (msg::FromSchedulerMessage& message : std::exchange(inbox[peer], {}))
      if (auto* wanted = std::get_if<Message>(&message)) taken.push_back(std::move(*wanted));
    return taken;
  }

  msg::RunStatusT run(uint64_t id) const {
    for (const msg::RunStatusT& status : core.runs())
      if (status.run == id) return status;
    return {};
  }
  msg::NodeStatusT node(const std::string& name) const {
    for (const msg::NodeStatusT& status : core.nodes())
      if (status.name == name) return status;
    return {};
  }

  CoreOptions options;
  double now = 100;
  bool plans_later = false;  // else each plan is made as soon as it is requested
  std::vector<PlanRequest> requests;
  std::vector<uint64_t> forgotten;  // numbers of withdrawn requests
  std::vector<uint64_t> shortened;  // runs of whose logs only the end is kept
  uint64_t written_bytes = 0;       // of records of runs
  Core core;
  Written written;
  std::map<std::string, std::vector<msg::FromSchedulerMessage>> inbox;
  std::string log;
};

class CoreTest : public testing::Test {
 protected:
  // Registers agents "a", "b", ... over peers of the same name.
  void add_agents(int count) {
    for (int i = 0; i < count; ++i) {
      agents.emplace_back(1, static_cast<char>('a' + i));
      pool.receive(agents.back(), registration(agents.back()));
    }
  }
  uint64_t submit(uint32_t nodes) {
    pool.receive("client", submission(nodes));
    const auto accepted = pool.take<msg::AcceptedT>("client");
    return accepted.empty() ? 0 : accepted.front().run;
  }
  void prepare(uint64_t run, const std::vector<std::string>& members) {
    for (const std::string& agent : members) pool.receive(agent, prepared(run, "tcp://" + agent + ":1"));
  }
  // Starts a run on all agents that has completed `step` steps.
  uint64_t running(int nodes, uint64_t step) {
    add_agents(nodes);
    const uint64_t run = submit(0);
    prepare(run, agents);
    pool.pass(1, agents, run, step);
    EXPECT_EQ(pool.run(run).state, msg::RunState::Running);
    return run;
  }

  Harness pool;
  std::vector<std::string> agents;
};

}  // namespace modelet::scheduler::test
