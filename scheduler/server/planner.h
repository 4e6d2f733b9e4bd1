// Planner: makes the plans that Core requests, one after the other, on a thread of its own. So neither
// heartbeats nor users wait for a large plan. Keys take turns.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/system/wake_event.h"
#include "scheduler/plan/planning.h"
#include "scheduler/server/turns.h"

namespace modelet::scheduler {

class Planner {
 public:
  using Work = std::function<Planned(const PlanRequest&)>;  // throws nothing

  // `wake` is set whenever take() has something to return. It must outlive the planner.
  Planner(Work work, WakeEvent& wake);
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;
  ~Planner();  // waits for the plan that is being made

  // Any thread.
  void ask(PlanRequest request);
  void forget(uint64_t number);  // of a request; if its plan is being made already, it is still answered
  std::vector<Planned> take();

 private:
  void run();

  const Work work_;
  WakeEvent& wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Turns<PlanRequest> requests_;  // this and the following members are guarded by mutex_
  std::vector<Planned> planned_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace modelet::scheduler
