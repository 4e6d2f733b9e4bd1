// Node: a machine with a disk and an agent. The agent is the real AgentCore, driven as the program drives it,
// with a Job and a SnapshotNode.
#pragma once

#include <memory>
#include <string>

#include "node_agent/agent/core/agent_core.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/job.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/network.h"
#include "tests/simulation/snapshot_node.h"

namespace modelet::simulation {

class Pool;

class Node : public ControlEnd, public Holder, public RankHost {
 public:
  Node(Pool& pool, int machine, std::string name);
  ~Node() override;

  const std::string& name() const { return name_; }
  std::string endpoint() const { return address_ + ":7000"; }
  Disk& disk() { return disk_; }
  bool has_left() const { return has_left_; }

  void start();  // a new process
  void leave(double seconds, bool disk_stays);
  // The process ends now and starts again after `seconds`. `silently`: its machine does not answer either.
  void crash(double seconds, bool silently);
  void come_back();  // after it has left

  void kill() override;
  void received(const msg::FromSchedulerMessage& message) override;
  void connected() override;
  Host& host() override { return *this; }
  bool offered(uint64_t run, uint64_t step, const comm::ContentId& content) override;
  bool gives(const comm::ContentId& content, const std::string& to) const override {
    return snapshots_->admits(to) && disk_.read(content);
  }
  bool received(const RankMessage& message) override;

 private:
  void handle(const agent::AgentEvent& event);
  void tick();
  void carry_out(const agent::Send& action);
  void carry_out(const agent::PrepareJob& action);
  void carry_out(const agent::StartJob& action) {
    if (job_) job_->start(action.start);
  }
  void carry_out(const agent::StopJob&) {
    if (job_) job_->stop();
  }
  void carry_out(const agent::TraceJob&) {}
  void carry_out(const agent::AbortJob& action) {
    if (job_) job_->abort(action.reason);
  }
  void carry_out(const agent::DropSnapshots& action) { snapshots_->stable(action.run, action.step); }
  void carry_out(const agent::AdmitHolders& action) { snapshots_->admit(action.message); }
  void carry_out(const agent::StoreAt&) {}
  void carry_out(const agent::SaveSnapshots&) { snapshots_->leave(); }
  void carry_out(const agent::AgentLog& action);
  void carry_out(const agent::EndAgent& action);
  void end_process(bool silently);

  Pool& pool_;
  std::string name_, address_;
  Disk disk_;
  std::unique_ptr<agent::AgentCore> core_;
  std::unique_ptr<SnapshotNode> snapshots_;
  std::shared_ptr<Job> job_;
  uint64_t ticks_ = 0;
  bool is_lost_ = false, has_left_ = false, disk_stays_ = true, has_begun_ = false, repeats_ = false;
  bool is_released_ = false;  // the scheduler needs nothing of it any more
};

}  // namespace modelet::simulation
