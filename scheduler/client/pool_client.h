// A client of a pool: submits runs, watches and stops them, lists runs and nodes. All calls except watch()
// wait for the scheduler's answer, and throw Error if there is none within kResponseSeconds, unless they say
// otherwise. All calls throw Error if the scheduler refuses. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "comm/content/snapshot.h"
#include "comm/control/control.h"

namespace modelet::cli {

inline constexpr double kResponseSeconds = 10;
// How long a scheduler may be away while a run is watched. The run goes on meanwhile. A scheduler that still
// knows its runs when it is back (--state) is asked again.
inline constexpr double kPatienceSeconds = 120;

struct Submission {
  Experiment experiment;  // paths absolute, readable on every node
  DataShape shape;
  std::string name;
  uint32_t nodes = 0;  // 0: all nodes of the pool
  bool wait = false;   // wait for nodes that the pool does not have yet; else the scheduler refuses
  // Addresses in the scheduler's store (send_data). Empty: all nodes read the paths in the experiment.
  std::string train_data, test_data;
  int32_t priority = 0;  // runs of a higher one start first
  // The checkpoint to continue from, whose files are in the store (send_start). Empty: the run begins.
  std::optional<comm::Snapshot> resume_files;
  // Of a run of towers: the address of the division of the labels, which is in the store, and what each task has.
  std::string division;
  std::vector<comm::control::TaskLabels> tasks;
  std::vector<comm::Snapshot> resume_tasks;  // as resume_files, for each task; one without files begins
};

class PoolClient {
 public:
  // `check` is called several times a second while a call waits for an answer; it may throw, which ends the call.
  explicit PoolClient(const comm::control::SchedulerAddress& scheduler, std::function<void()> check = {});

  uint64_t submit(const Submission& submission);
  comm::control::RunListT list();
  // `all`: also those that were lost, and those that wait to be let in.
  comm::control::NodeListT nodes(bool all = false);
  comm::control::RunStatusT stop(uint64_t run);
  comm::control::RunStatusT trace(uint64_t run, uint32_t steps);  // the events come to those who watch the run
  uint16_t data_port();  // of the scheduler's store; 0: it has none
  comm::control::RunFilesT files(uint64_t run);
  // Waits for a scheduler that is away, at most `patience` seconds.
  comm::control::RunLogT log(uint64_t run, const std::string& node, uint64_t offset,
                             double patience = kResponseSeconds);
  comm::control::NodeListT drain(const std::string& node, bool drain);
  comm::control::NodeListT approve(const std::string& node);  // a name, or the beginning of a key

  // Callbacks while watching; each may be empty.
  struct Watcher {
    std::function<void(const nlohmann::json&)> on_event;
    std::function<void(const comm::control::RunStatusT&)> on_status;  // at least once a second
    std::function<void(const std::string&)> on_trouble;  // trouble with the scheduler, and its end
    std::function<bool()> stop;    // asked several times a second; true: ask the run to stop
    std::function<bool()> detach;  // asked several times a second; true: stop watching
    // Also pass on the oldest events. By itself a scheduler sends only the last ones to a new watcher.
    bool whole = false;
  };
  // Passes on all events of the run, past and future, each once, until the run has ended. Returns its last
  // status. If the scheduler is away, waits until it is back. Throws Error, which says how to watch again, if
  // that takes longer than `patience` seconds.
  comm::control::RunStatusT watch(uint64_t run, const Watcher& watcher, double patience = kPatienceSeconds);
  // The events that the scheduler has so far, oldest first.
  std::vector<nlohmann::json> past_events(uint64_t run);

 private:
  void replay_missed(uint64_t run, uint64_t after, uint64_t before, const Watcher& watcher) const;
  template <class Response>
  Response ask(const comm::control::ToSchedulerMessage& request, double seconds = kResponseSeconds);
  void send(const comm::control::ToSchedulerMessage& message, double seconds = kResponseSeconds);

  const comm::control::SchedulerAddress address_;
  const std::string scheduler_;  // its endpoint
  const std::function<void()> check_;
  comm::control::ClientSocket socket_;
};

}  // namespace modelet::cli
