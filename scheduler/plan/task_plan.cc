#include "scheduler/plan/task_plan.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/experiment/towers.h"
#include "scheduler/plan/bytes_text.h"
#include "scheduler/plan/placement.h"

namespace modelet::scheduler {
namespace {

double steps_of(const Experiment& experiment, double rows) {
  const double trained = rows * (1 - experiment.data.validation);
  return std::ceil(trained / experiment.train.batch) * experiment.train.epochs;
}

std::optional<Plan> plan_if_it_fits(const Experiment& experiment, const DataShape& shape,
                                    std::span<const NodeCapacity> nodes) {
  try {
    return make_plan(experiment, shape, nodes);
  } catch (const UsageError&) {
    throw;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The share of the samples on which a tower trains, if labels are dealt out evenly.
double trained_share(const Experiment::Model& model, const DataShape& shape) {
  const double without = std::pow(1 - 1.0 / model.towers, shape.labels_per_row);
  return 1 - without * (1 - static_cast<double>(model.tower_samples));
}

// As scheduler/core does it: each task goes to the node that is free first, of those free at once to the fastest.
double finish_of_all(uint32_t tasks, std::span<const double> seconds) {
  std::vector<double> free_at(seconds.size(), 0);
  double last = 0;
  for (uint32_t task = 0; task < tasks; ++task) {
    std::optional<size_t> next;
    for (size_t node = 0; node < seconds.size(); ++node)
      if (seconds[node] > 0 &&
          (!next || std::pair(free_at[node], seconds[node]) < std::pair(free_at[*next], seconds[*next])))
        next = node;
    free_at[*next] += seconds[*next];
    last = std::max(last, free_at[*next]);
  }
  return last;
}

}  // namespace

NetworkPlan plan_network(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes,
                         const Link& link) {
  const double steps = steps_of(experiment, static_cast<double>(shape.train_rows));
  NetworkPlan result;
  const auto consider = [&](size_t count, double seconds_per_step) {
    const double seconds = steps * seconds_per_step;
    if (result.nodes == 0 || seconds < result.seconds) result = {.seconds = seconds, .nodes = count};
  };
  for (const NodeCapacity& node : nodes)
    if (const auto alone = plan_if_it_fits(experiment, shape, std::span(&node, 1)))
      consider(1, alone->seconds_per_step);
  if (const auto together = plan_if_it_fits(experiment, shape, nodes)) {
    const double seconds_per_step = together->seconds_per_step + wire_seconds(*together, link);
    consider(nodes.size(), seconds_per_step);
    result.on_all_nodes = steps * seconds_per_step;
  }
  return result;
}

TaskPlan plan_tasks(const Experiment& experiment, const DataShape& shape, std::span<const NodeCapacity> nodes,
                    const Link& link) {
  TaskPlan result{.tasks = tower_tasks(experiment.model)};
  const Experiment tower = tower_experiment(experiment);
  const double entries = shape.labels_per_row * static_cast<double>(shape.train_rows);
  const uint32_t towers = experiment.model.towers;
  const DataShape part = tower_shape(shape, std::max<uint64_t>(1, shape.labels / towers),
                                     static_cast<uint64_t>(entries / towers));
  const double rows = static_cast<double>(shape.train_rows);
  const double steps = steps_of(experiment, rows * trained_share(experiment.model, shape));
  for (const NodeCapacity& node : nodes) {
    const auto alone = plan_if_it_fits(tower, part, std::span(&node, 1));
    result.seconds.push_back(alone ? steps * alone->seconds_per_step : 0);
    if (alone) result.memory_bytes = alone->nodes.front().memory_bytes;
  }
  if (result.memory_bytes == 0) {
    make_plan(tower, part, nodes.first(1));  // says what is missing
    throw Error("no node has room for a tower");
  }
  result.makespan = finish_of_all(result.tasks, result.seconds);
  result.network = plan_network(tower, shape, nodes, link);
  return result;
}

std::string to_text(const TaskPlan& plan) {
  std::vector<double> of_a_task = plan.seconds;
  std::erase(of_a_task, 0);
  const auto [least, most] = std::ranges::minmax(of_a_task);
  std::string text = fmt::format(
      "{} tasks: {:.1f} to {:.1f} s each, alone on one of {} nodes with {}; all of them: {:.1f} s\n",
      plan.tasks, least, most, of_a_task.size(), bytes_text(plan.memory_bytes), plan.makespan);
  if (plan.network.nodes == 0) return text + "one network of these settings does not fit on these nodes\n";
  return text +
         fmt::format("one network of these settings takes {:.1f} s on {}: {} faster here\n",
                     plan.network.seconds,
                     plan.network.nodes == 1 ? "the fastest node alone" : "all nodes, over these links",
                     plan.makespan < plan.network.seconds ? "towers are" : "the one network is");
}

}  // namespace modelet::scheduler
