// A client of a pool: submits runs, watches and stops them, lists runs and nodes.
// All calls wait for the scheduler's answer and throw Error if there is none within kAnswerSeconds, or if it
// refuses. One thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/experiment/experiment.h"
#include "comm/control/control.h"
#include "scheduler/client/report.h"

namespace modelet::cli {

inline constexpr double kAnswerSeconds = 5;

struct Submission {
  Experiment experiment;  // paths absolute, readable on every node
  DataShape shape;
  std::string name;
  uint32_t nodes = 0;  // 0: all of the pool
  bool wait = false;   // for nodes that the pool does not have yet; else too many are refused
  std::string out;     // absolute folder of the run; empty: see modelet submit --help
  std::string resume;  // absolute folder of a checkpoint, or empty
  std::string train_data,
      test_data;  // addresses in the scheduler's store (send_data); empty: all nodes read the paths
};

class PoolClient {
 public:
  explicit PoolClient(const comm::control::SchedulerAddress& scheduler);

  uint64_t submit(const Submission& submission);
  comm::control::RunListT list();
  comm::control::NodeListT nodes();
  comm::control::RunStatusT stop(uint64_t run);
  uint16_t data_port();  // of the scheduler's host; 0: it keeps no data

  // Callbacks while watching; each may be empty.
  struct Watcher {
    std::function<void(const nlohmann::json&)> on_event;
    std::function<void(const comm::control::RunStatusT&)> on_status;  // at least once a second
    std::function<bool()> detach;  // asked several times a second; true: stop watching
  };
  // Passes on the events of the run, past and future, until it has ended. Returns its last status.
  comm::control::RunStatusT watch(uint64_t run, const Watcher& watcher);

 private:
  template <class Answer>
  Answer ask(comm::control::ToSchedulerMessage question);
  void send(const comm::control::ToSchedulerMessage& message);

  const std::string scheduler_;  // address
  comm::control::ClientSocket socket_;
};

// Submits, and reports until the run has ended: `modelet train --nodes N` and `modelet submit --watch`. When
// `stop` becomes true the run is asked to stop, which writes a checkpoint. `check_pool` is called while the
// run waits for nodes and may throw. Returns normally when the run has finished; throws Error if it failed,
// Interrupted if it was stopped.
void run_on_pool(const comm::control::SchedulerAddress& scheduler, const Submission& submission,
                 Reporter& reporter, const std::atomic<bool>& stop,
                 const std::function<void()>& check_pool = {});

// Like run_on_pool, for a run that was submitted before. When `stop` becomes true it stops watching, and the
// run goes on.
void watch_on_pool(const comm::control::SchedulerAddress& scheduler, uint64_t run, Reporter& reporter,
                   const std::atomic<bool>& stop);

}  // namespace modelet::cli
