// Group: the nodes that work for a run, and which modelets each of them has. Part of Run, which decides; a group knows
// where each of its members stands, and what they must be sent. form() makes the next group, in the next epoch.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "comm/control/control.h"
#include "scheduler/plan/planning.h"

namespace modelet::scheduler {

struct Pool;

// Its index in Group::members() is its rank.
struct Member {
  uint64_t node = 0;  // 0: it is not in the pool now
  std::string name;
  uint64_t incarnation = 0;    // of the agent process
  std::string endpoint;        // empty: not prepared yet
  std::string public_key;      // of the endpoint
  uint64_t planned_bytes = 0;  // of its modelets
  uint64_t memory_bytes = 0;   // planned for all that it needs
  double planned_seconds = 0;  // that it computes in a step
  double speed = 1;            // relative to what the node says of itself
  bool measured = false;       // `speed` was measured; else it is assumed
  bool done = false;           // its node stays reserved until the next group is formed or the run has ended
  comm::control::Outcome outcome = comm::control::Outcome::Ok;
};

class Group {
 public:
  Group() = default;
  // Of a former scheduler.
  Group(uint32_t epoch, std::vector<Member> members, std::vector<uint32_t> owner)
      : epoch_(epoch), members_(std::move(members)), owner_(std::move(owner)) {}

  uint32_t epoch() const { return epoch_; }
  const std::vector<Member>& members() const { return members_; }
  const std::vector<uint32_t>& owner() const { return owner_; }  // [modelets] -> rank
  const std::vector<Member>& spare() const { return spare_; }    // nodes to which the plan gave no modelets
  const Member* member(uint64_t node) const;                     // null: it is none
  bool has_been_ready(const std::string& name) const { return ready_names_.contains(name); }
  bool has_ever_been_ready() const { return !ready_names_.empty(); }  // any group of the run
  bool are_all_done() const;
  bool is_one_done() const;
  double prepare_began() const { return prepare_began_; }
  double prepare_seconds() const { return prepare_seconds_; }  // of the last group that got ready
  // Start for its members; nothing while one of them is not prepared.
  std::optional<comm::control::StartT> start(uint64_t run) const;
  struct Unreachable {
    const Member* member = nullptr;  // the one to do without
    std::string why;
  };
  std::optional<Unreachable> unreachable() const;

  // What its members are sent. Those that still work end after the next step, or at once. Nodes of the run that are
  // not in `next` end, or are free if they are done.
  void stop(Pool& pool, uint64_t run) const;
  std::string trace(Pool& pool, uint64_t run, uint32_t steps) const;  // returns why it cannot, or nothing
  void abort(Pool& pool, uint64_t run, const std::string& reason) const;
  void release_others(Pool& pool, uint64_t run, const std::vector<Member>& next,
                      const std::string& reason) const;
  void release_done(Pool& pool, uint64_t run) const;

  // Deals out the modelets as in the plan, whose nodes are `chosen`, in the same order. Returns the members of the next
  // group.
  std::vector<Member> deal_out(std::vector<Member> chosen, const Plan& plan, const Experiment& experiment,
                               const DataShape& shape);
  // Begins the next epoch, with members that are all there. Returns the former ones.
  std::vector<Member> form(const Pool& pool, std::vector<Member> next);
  void give_up(std::vector<Member> former) {
    members_ = std::move(former);
  }  // undoes form(), but for the epoch
  // Each for a member of this group:
  void set_prepared(const Member& member, const comm::control::PreparedT& message);
  void set_done(const Member& member, comm::control::Outcome outcome);
  void set_lost(const Member& member) { own(member).node = 0; }
  void set_returned(const Member& member, uint64_t node);
  void set_all_lost();
  void set_started(double now);  // all are prepared

 private:
  Member& own(const Member& member) { return members_[static_cast<size_t>(&member - members_.data())]; }

  uint32_t epoch_ = 0;
  std::vector<Member> members_;
  std::vector<uint32_t> owner_;
  std::vector<Member> spare_;
  std::set<std::string> ready_names_;
  double prepare_began_ = 0, prepare_seconds_ = 0;
};

}  // namespace modelet::scheduler
