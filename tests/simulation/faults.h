// Faults: what happens to a pool from outside. Each fault of a history has a random draw of its own, so
// leaving out the faults of one kind does not change the others.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace modelet::simulation {

class Pool;

enum class Fault : uint8_t {
  kReset,           // a control connection breaks
  kHalfOpen,        // a connection breaks, and its ends learn of it seconds later
  kOneWay,          // messages between a node and the scheduler pass in one direction only
  kIsolate,         // a node is cut off from all machines
  kSchedulerCut,    // the scheduler is cut off from all nodes
  kCut,             // two nodes are cut off from each other, in one direction or both
  kSlow,            // all messages from and to a node are slow
  kDouble,          // messages arrive twice
  kKill,            // an agent's process is killed, and comes back
  kPower,           // a machine fails; what it wrote last is lost
  kWipe,            // a machine fails, and comes back with an empty disk
  kStall,           // an agent's process is suspended for a while
  kLeave,           // an agent is asked to leave; some come back as new agents
  kJoin,            // a new agent joins
  kDrain,           // a node is drained, and may work again later
  kRot,             // a file on a disk is damaged
  kFull,            // a disk is full
  kDiskFails,       // a disk neither reads nor writes for a while
  kSchedulerKill,   // the scheduler's process is killed between two events, and comes back
  kSchedulerPoint,  // the same, between two actions of one event
  kSchedulerStall,  // the process of the scheduler is suspended for a while
  kSubmit,          // another run is submitted
  kStop,            // a user stops a run
  kPreempt,  // all agents are asked to leave at once; most come back as new agents, some with empty disks
};

struct FaultName {
  Fault fault;
  std::string_view name;
};
inline constexpr std::array kFaults = {
    FaultName{Fault::kReset, "reset"},
    FaultName{Fault::kHalfOpen, "half-open"},
    FaultName{Fault::kOneWay, "one-way"},
    FaultName{Fault::kIsolate, "isolate"},
    FaultName{Fault::kSchedulerCut, "scheduler-cut"},
    FaultName{Fault::kCut, "cut"},
    FaultName{Fault::kSlow, "slow"},
    FaultName{Fault::kDouble, "double"},
    FaultName{Fault::kKill, "kill"},
    FaultName{Fault::kPower, "power"},
    FaultName{Fault::kWipe, "wipe"},
    FaultName{Fault::kStall, "stall"},
    FaultName{Fault::kLeave, "leave"},
    FaultName{Fault::kJoin, "join"},
    FaultName{Fault::kDrain, "drain"},
    FaultName{Fault::kRot, "rot"},
    FaultName{Fault::kFull, "full"},
    FaultName{Fault::kDiskFails, "disk-fails"},
    FaultName{Fault::kSchedulerKill, "scheduler-kill"},
    FaultName{Fault::kSchedulerPoint, "scheduler-point"},
    FaultName{Fault::kSchedulerStall, "scheduler-stall"},
    FaultName{Fault::kSubmit, "submit"},
    FaultName{Fault::kStop, "stop"},
    FaultName{Fault::kPreempt, "preempt"},
};

struct PlannedFault {
  double time = 0;
  Fault fault = Fault::kReset;
  uint64_t seed = 0;
};
// Whether the fault is no failure but a wish of a user.
inline bool is_of_user(Fault fault) { return fault == Fault::kSubmit || fault == Fault::kStop; }
// Draws the faults of a history. A few kinds, which are drawn as well, are more frequent than the others.
// Half of the histories without faults have a stop.
std::vector<PlannedFault> plan_faults(uint64_t seed, double first, double last);
void happen(Pool& pool, const PlannedFault& fault);
// Ends all faults: wires work again, and processes that were away come back.
void cease(Pool& pool);

}  // namespace modelet::simulation
