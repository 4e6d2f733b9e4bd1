// SchedulerProcess: the real scheduler::Core, driven as the program drives it, with the store and a ledger
// that keeps what was persisted. A *point* is a place where the process can end within an event that persists
// something: before the records are written, after that, and after each message.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/core/core.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/network.h"

namespace modelet::simulation {

class Pool;

// What a process leaves to the next one.
class Ledger {
 public:
  void write(const scheduler::Records& changes);
  scheduler::Records read() const;

 private:
  std::optional<scheduler::PoolRecord> pool_;
  std::map<uint64_t, scheduler::RunRecord> runs_;
  std::map<uint64_t, std::vector<scheduler::RunEventRecord>> events_;
  std::map<std::string, scheduler::NodeNameRecord> names_;
};

class SchedulerProcess : public ControlServer, public Holder {
 public:
  SchedulerProcess(Pool& pool, bool has_store);

  void start();
  void crash(double seconds);  // ends the process now; it starts again after `seconds`
  // Ends the process at that point, counted from now. `then` is called after it.
  void crash_at(uint64_t point, double seconds, std::function<void()> then = {});
  uint64_t points() const { return points_; }
  std::vector<msg::RunStatusT> runs() const { return core_->runs(); }
  std::vector<comm::Snapshot> files_of(uint64_t run);
  bool has_store() const { return has_store_; }
  Disk& disk() { return disk_; }

  void kill() override;
  void received(const std::string& peer, const msg::ToSchedulerMessage& message) override;
  Host& host() override { return *this; }
  bool offered(uint64_t run, uint64_t, const comm::ContentId& content) override {
    return has_store_ && disk_.write(run, content);
  }
  bool gives(const comm::ContentId& content, const std::string&) const override {
    return disk_.read(content);
  }

 private:
  void handle(const scheduler::Event& event);
  void tick();
  void carry_out(std::vector<scheduler::Action> actions);
  bool is_point();  // whether the process ends here
  void carry_out(const scheduler::Send& action);
  void keep_start(const msg::PrepareT& prepare);
  void carry_out(const scheduler::Log& action);
  void carry_out(const scheduler::PlanRequest& action);
  void carry_out(const scheduler::ForgetPlan&) {}
  void carry_out(const scheduler::ReadLog&) {}
  void carry_out(const scheduler::LetIn&) {}  // pools of the simulation have no keys
  void carry_out(const scheduler::Persist& action);
  bool mutate(msg::FromSchedulerMessage& message) const;  // false: it is lost
  msg::RunEventT as_new(msg::RunEventT event);
  msg::ToSchedulerMessage without_fence(msg::ToSchedulerMessage message) const;

  Pool& pool_;
  const bool has_store_;
  Ledger ledger_;
  Disk disk_;
  std::unique_ptr<scheduler::Core> core_;
  std::vector<std::string> gone_;  // peers that are gone, found while an event is handled
  uint64_t points_ = 0, crash_point_ = 0, events_as_new_ = 0;
  double crash_seconds_ = 0;
  std::function<void()> after_crash_;
};

}  // namespace modelet::simulation
