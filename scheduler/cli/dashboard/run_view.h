// RunView: one run that this process trains, or that it follows on a pool of its own, as a pool to look at
// (scheduler/dashboard/pool_view.h). All that it knows are the run's events (docs/events.md). It allows no actions:
// whoever has started the run can stop it there.
//
// One thread adds events, any thread looks. It keeps as many events as a scheduler does.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/system/clock.h"
#include "scheduler/dashboard/history.h"
#include "scheduler/dashboard/pool_view.h"

namespace modelet::cli {

class RunView : public scheduler::PoolView {
 public:
  static constexpr uint64_t kRun = 1;  // its number

  explicit RunView(const std::string& name);

  void set_experiment(std::string toml);
  // Of a run on one node: its modelets, and the bytes that these take.
  void set_placement(uint64_t modelets, uint64_t bytes);
  void add(const nlohmann::json& event);
  // Of a run that has ended: if somebody looks, waits until he has been told of its end, at most so long.
  void wait_until_seen(std::chrono::milliseconds most);

  std::shared_ptr<const scheduler::PoolState> pool() override;
  scheduler::NodeHistory history() override;
  scheduler::RunDetails run(uint64_t run) override;
  comm::control::RunLogT events(uint64_t run, uint64_t after) override;
  comm::control::RunLogT log(uint64_t run, const std::string& node, uint64_t after) override;
  void drain(const comm::http::Token* by, const std::string& node, bool drain) override;
  void stop(const comm::http::Token* by, uint64_t run) override;

 private:
  struct Kept {
    uint64_t number;
    std::string line;
  };

  void follow(const nlohmann::json& event);
  void follow_progress(const nlohmann::json& event);
  void set_nodes(const nlohmann::json& nodes);
  void keep(const nlohmann::json& event);
  void end(comm::control::RunState state, std::string detail);
  static void require_run(uint64_t run);

  const SteadyClock clock_;
  const double begun_;
  mutable std::mutex mutex_;  // guards the rest
  std::string experiment_;
  scheduler::Placed placed_;
  scheduler::PoolState state_;  // nodes and the run as they are now
  double ended_ = -1;           // clock; negative: it has not
  double looked_at_ = -1;       // clock; negative: never
  bool end_was_seen_ = false;
  std::condition_variable seen_;
  uint32_t threads_ = 0;  // of each node
  std::shared_ptr<const scheduler::PoolState> shown_;
  double shown_at_ = 0;
  scheduler::History history_;
  std::deque<Kept> events_;
  uint64_t next_ = 1, bytes_ = 0;  // of events_
  std::string started_;            // the first "started", which is kept
};

}  // namespace modelet::cli
