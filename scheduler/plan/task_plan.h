// TaskPlan: how long the tasks of a run of towers (base/experiment/towers.h) take on given nodes, and one network of the
// same settings. A node takes the next task when it is free, the fastest first, as in scheduler/core/queue.cc. Pure.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "scheduler/plan/cost_model.h"
#include "scheduler/plan/traffic.h"

namespace modelet::scheduler {

// How long one network takes: on all nodes or on the fastest one alone, whichever is less.
struct NetworkPlan {
  double seconds = 0;
  size_t nodes = 0;               // on which that is; 0: it does not fit
  double on_all_nodes = INFINITY;  // seconds
};

struct TaskPlan {
  uint32_t tasks = 0;
  // [node] seconds of a task with an equal part of the labels, alone on this node; 0: it has no room for one.
  std::vector<double> seconds;
  uint64_t memory_bytes = 0;   // of a task
  double makespan = 0;         // seconds until all tasks are done
  NetworkPlan network;         // of the same settings
};

// Evaluations and the fitting of classifiers do not count.
NetworkPlan plan_network(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes,
                         const Link& link);

// The same for towers. Throws Error if no node has room for a task.
TaskPlan plan_tasks(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes,
                    const Link& link);

std::string to_text(const TaskPlan& plan);

}  // namespace modelet::scheduler
