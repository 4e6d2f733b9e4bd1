// Runs that consist of tasks, and the runs of their tasks.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/experiment/partition.h"
#include "base/experiment/towers.h"
#include "comm/control/shape_tables.h"
#include "scheduler/core/run/pool.h"
#include "scheduler/core/run/run.h"
#include "scheduler/core/values/text.h"
#include "scheduler/plan/makespan.h"

namespace modelet::scheduler {

namespace msg = comm::control;
using msg::RunState;

Run::Run(uint64_t id, const Run& parent, uint32_t task, std::optional<comm::Snapshot> from)
    : id_(id),
      submitter_(parent.submitter_),
      submitted_at_(parent.submitted_at_),
      parent_(parent.id_),
      task_(task),
      is_submission_written_(true) {
  if (from) snapshots_ = Snapshots(*std::move(from));
  accept_task(parent);
}

void Run::accept_task(const Run& parent) {
  const msg::TaskLabels& labels = parent.submit_.tasks.at(task_);
  submission_.experiment = tower_experiment(parent.submission_.experiment);
  // As many nodes as its parent is given are those of all its tasks together.
  submission_.experiment.cluster.min_nodes = 1;
  submission_.experiment.cluster.max_nodes = 0;
  submission_.shape = tower_shape(parent.submission_.shape, labels.labels(), labels.entries());
  submit_ = parent.submit_;
  submit_.name = fmt::format("{:.59}.{:03}", parent.submit_.name, task_);
  submit_.shape = msg::to_table(submission_.shape);
  submit_.nodes = 1;
  submit_.token = 0;
  submit_.tasks.clear();
}

size_t Run::most_nodes_at_once() const {
  const size_t most = submission_.experiment.cluster.max_nodes, wanted = submit_.nodes;
  if (most == 0 || wanted == 0) return std::max(most, wanted);
  return std::min(most, wanted);
}

bool Run::has_nodes() const {
  return planning_.is_open() || state_ == RunState::Forming || state_ == RunState::Running ||
         state_ == RunState::Stopping;
}

double Run::seconds_left(double now) const {
  return left_ < 0 ? left_ : std::max(0.0, left_ - (now - left_at_));
}

bool Run::is_worth_a_copy(double now) const {
  return state_ == RunState::Running && !regroup_ && seconds_left(now) > 2 * group_.prepare_seconds();
}

std::optional<comm::Snapshot> Run::start_of_copy() const {
  const comm::Snapshot* stored = snapshots_.newest_at_hand([](const std::string& holder) { return holder.empty(); });
  return stored == nullptr ? std::nullopt : std::optional(*stored);
}

void Run::give_up(Pool& pool, const std::string& why) {
  group_.abort(pool, id_, why);
  set_state(pool, RunState::Stopped, why);
}

void Run::look_after(Pool& pool, const std::vector<std::vector<Run*>>& copies) {
  if (has_ended(state_)) return;
  for (const auto& of_task : copies)
    for (Run* copy : of_task)
      if (copy->state_ == RunState::Finished && results_[copy->task_] == 0) accept_result(pool, *copy);
  bool all_ended = true, has_begun = false;
  const auto has_run_yet = [](const Run* copy) { return copy->has_run(); };
  const bool one_has_run = std::ranges::any_of(
      copies, [&](const auto& of_task) { return std::ranges::any_of(of_task, has_run_yet); });
  for (uint32_t task = 0; task < results_.size(); ++task) {
    std::vector<Run*> left;
    const Run* failed = nullptr;
    for (Run* copy : copies[task]) {
      copy->sibling_has_run_ = one_has_run;
      has_begun = has_begun || copy->epoch() > 0;
      if (copy->state_ == RunState::Failed) failed = copy;
      if (!has_ended(copy->state_)) left.push_back(copy);
    }
    if (results_[task] != 0) {
      for (Run* copy : left) copy->give_up(pool, fmt::format("run {} was first", results_[task]));
      continue;
    }
    // Of two copies, one without nodes is of no use.
    while (left.size() > 1) {
      const auto idle = std::ranges::find_if_not(left.rbegin(), left.rend(), &Run::has_nodes);
      if (idle == left.rend()) break;
      (*idle)->give_up(pool, "it lost its node, and another copy of the task has one");
      left.erase(std::next(idle).base());
    }
    all_ended = all_ended && left.empty();
    if (!left.empty() || state_ == RunState::Stopping) continue;
    const std::string why = failed == nullptr ? "was stopped" : failed->detail_;
    for (const auto& of_task : copies)
      for (Run* copy : of_task)
        if (!has_ended(copy->state_)) copy->give_up(pool, "another task has failed");
    return fail(pool, fmt::format("task {}: {}", task, why), failed != nullptr && failed->user_error_);
  }
  tally(pool, copies);
  if (tally_.done == results_.size()) return set_state(pool, RunState::Finished, "");
  if (state_ == RunState::Stopping) {
    if (all_ended) set_state(pool, RunState::Stopped, "stopped with " + tasks_text());
  } else if (state_ == RunState::Queued && has_begun) {
    set_state(pool, RunState::Running, tasks_text());
    publish_start(pool, copies);
  }
  if (state_ == RunState::Running) detail_ = tasks_text();
}

void Run::accept_result(Pool& pool, const Run& copy) {
  results_[copy.task_] = copy.id_;
  ++tally_.done;
  pool.changed_runs.insert(id_);
  publish_task(pool, copy, "finished");
}

void Run::publish_start(Pool& pool, const std::vector<std::vector<Run*>>& tasks) {
  uint64_t parameters = 0;
  for (const auto& of_task : tasks) {
    const Submission& tower = of_task.front()->submission_;
    for (const ModeletSpec& spec : partition_model(tower.experiment, tower.shape)) parameters += spec.parameters();
  }
  publish(pool, {{"event", "started"},
                 {"run", submit_.name},
                 {"epochs", submission_.experiment.train.epochs},
                 {"towers", results_.size()},
                 {"parameters", parameters},
                 {"nodes", tally_.nodes.size()},
                 {"features", submission_.shape.features},
                 {"labels", submission_.shape.labels},
                 {"train_rows", submission_.shape.train_rows}});
}

void Run::publish_task(Pool& pool, const Run& copy, const char* what) {
  nlohmann::json event = {{"event", "task"},           {"state", what},
                          {"task", copy.task_},        {"tasks", results_.size()},
                          {"tasks_done", tally_.done}, {"run", copy.id_}};
  event["nodes"] = nlohmann::json::array();
  for (const Member& each : copy.members()) event["nodes"].push_back(each.name);
  publish(pool, std::move(event));
}

// What its tasks have come to. A node takes the next task when it is free, so the rest takes as long as the longest
// of the nodes' queues.
void Run::tally(const Pool& pool, const std::vector<std::vector<Run*>>& copies) {
  tally_ = {};
  std::vector<double> busy, waiting;
  double sum = 0;  // of the seconds of tasks of which it is known how long they take as a whole
  size_t known = 0;
  const auto whole = [&](const Run& copy) {
    const double end = has_ended(copy.state_) ? copy.ended_ : pool.now + copy.seconds_left(pool.now);
    return copy.began_ > 0 && (has_ended(copy.state_) || copy.left_ >= 0) ? end - copy.began_ : -1;
  };
  for (uint32_t task = 0; task < results_.size(); ++task) {
    bool is_at_work = false;
    double left = -1;
    for (const Run* copy : copies[task]) {
      if (const double seconds = whole(*copy);
          seconds >= 0 && (copy->id_ == results_[task] || results_[task] == 0)) {
        sum += seconds;
        ++known;
      }
      if (has_ended(copy->state_)) continue;
      is_at_work = is_at_work || copy->has_nodes();
      if (const double seconds = copy->seconds_left(pool.now); seconds >= 0 && (left < 0 || seconds < left))
        left = seconds;
      if (copy->has_nodes())
        for (const Member& each : copy->members()) tally_.nodes.push_back(each.name);
    }
    if (results_[task] != 0)
      ++tally_.done;
    else if (is_at_work)
      busy.push_back(left);
    else
      waiting.push_back(left);
  }
  tally_.at_work = static_cast<uint32_t>(busy.size());
  if (known == 0 || busy.empty()) return;
  for (std::vector<double>* list : {&busy, &waiting})
    for (double& seconds : *list)
      if (seconds < 0) seconds = sum / static_cast<double>(known);
  tally_.seconds_left = makespan(std::move(busy), waiting);
}

std::string Run::tasks_text() const {
  return fmt::format("{} of {} tasks done, {} at work", tally_.done, results_.size(), tally_.at_work);
}

}  // namespace modelet::scheduler
