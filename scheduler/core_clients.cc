// The part of Core that hears clients: what is submitted, looked at and stopped.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/codec.h"
#include "comm/content.h"
#include "scheduler/core.h"
#include "scheduler/core_text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using msg::RunState;

constexpr uint64_t kMostModelets = 65536;  // of one run
constexpr uint64_t kMostLabels = uint64_t{1} << 32;

DataShape to_shape(const msg::ShapeT& shape) {
  return {shape.features,         shape.labels,         shape.train_rows, shape.test_rows,
          shape.features_per_row, shape.labels_per_row, shape.encoder};
}

// Throws UsageError if the submission cannot be run anywhere.
void check_size(const Experiment& experiment, const DataShape& shape) {
  const auto in_range = [](uint64_t value) { return value >= 1 && value <= kMostLabels; };
  if (!in_range(shape.features) || !in_range(shape.labels) || !in_range(shape.train_rows) ||
      !is_measure(shape.features_per_row) || !is_measure(shape.labels_per_row))
    throw UsageError("the shape of the data is missing or absurd");
  uint64_t modelets = std::min<uint64_t>(experiment.modelets.output_modelets, shape.labels);
  for (const uint64_t width : experiment.model.hidden)
    modelets += width / experiment.modelets.hidden_columns + 1;
  if (modelets > kMostModelets)
    throw UsageError(
        fmt::format("the cut has {} modelets, more than the limit of {}: make modelets.hidden_columns "
                    "larger or modelets.output_modelets smaller",
                    modelets, kMostModelets));
}

// Data for agents that do not have it: both files or none, in the store of this scheduler.
void check_data(const msg::SubmitT& message, uint16_t data_port) {
  if (message.train_data.empty() && message.test_data.empty()) return;
  comm::parse_content_id(message.train_data);
  comm::parse_content_id(message.test_data);
  if (data_port == 0) throw UsageError("this scheduler keeps no data: start it with --store");
}

}  // namespace

void Core::on(const std::string& peer, const msg::SubmitT& message) {
  const auto refuse = [&](const std::string& reason) { send(peer, msg::RefusedT{{}, reason}); };
  Run run{.submit = message, .submitted = now_};
  try {
    if (!is_name(message.name)) throw UsageError(fmt::format("a run's name is {}", kNameRule));
    if (message.nodes > options_.max_nodes)
      throw UsageError(fmt::format("a pool has at most {} nodes", options_.max_nodes));
    if (message.shape == nullptr) throw UsageError("the shape of the data is missing");
    run.experiment = parse_experiment(message.experiment, "submitted experiment");
    run.shape = to_shape(*message.shape);
    check_size(run.experiment, run.shape);
    if (message.nodes % run.experiment.cluster.replicas != 0)
      throw UsageError(fmt::format("cluster.replicas is {}, and {} do not make so many equal groups",
                                   run.experiment.cluster.replicas, nodes_text(message.nodes)));
    comm::exchange_codecs(run.experiment.exchange);
    check_data(message, options_.data_port);
  } catch (const Error& error) {
    return refuse(error.what());
  }
  if (!make_room_for_run())
    return refuse(fmt::format("{} runs are waiting or running, no more are taken", runs_.size()));
  const uint64_t id = next_run_++;
  runs_[id] = std::move(run);
  log(fmt::format("run {} '{}' submitted{}", id, message.name, with_key(sender_)));
  send(peer, msg::AcceptedT{{}, id});
  start_waiting_runs();
}

void Core::on(const std::string& peer, const msg::FindDataPortT&) {
  send(peer, msg::DataPortT{{}, options_.data_port});
}

std::set<std::string> Core::data_in_use() const {
  std::set<std::string> addresses;
  for (const auto& [id, run] : runs_)
    if (!has_ended(run.state)) addresses.insert({run.submit.train_data, run.submit.test_data});
  return addresses;
}

bool Core::make_room_for_run() {
  if (runs_.size() < options_.max_runs) return true;
  const auto has_nodes = [this](uint64_t run) {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [run](const auto& entry) { return entry.second.run == run; });
  };
  const auto oldest = std::find_if(runs_.begin(), runs_.end(), [&](const auto& entry) {
    return has_ended(entry.second.state) && !has_nodes(entry.first);
  });
  if (oldest == runs_.end()) return false;
  runs_.erase(oldest);
  return true;
}

void Core::on(const std::string& peer, const msg::ListRunsT&) {
  msg::RunListT list;
  for (msg::RunStatusT& run : runs()) list.runs.push_back(std::make_unique<msg::RunStatusT>(std::move(run)));
  send(peer, std::move(list));
}

void Core::on(const std::string& peer, const msg::ListNodesT&) {
  msg::NodeListT list;
  for (msg::NodeStatusT& node : nodes())
    list.nodes.push_back(std::make_unique<msg::NodeStatusT>(std::move(node)));
  send(peer, std::move(list));
}

void Core::on(const std::string& peer, const msg::WatchT& message) {
  const auto found = runs_.find(message.run);
  if (found == runs_.end())
    return send(peer, msg::RefusedT{{}, fmt::format("there is no run {}", message.run)});
  Run& run = found->second;
  for (const std::string& json : run.events) send(peer, msg::RunEventT{{}, message.run, json});
  if (!has_ended(run.state)) run.watchers.insert(peer);
  send(peer, status(message.run, run));
}

void Core::on(const std::string& peer, const msg::StopRunT& message) {
  const auto found = runs_.find(message.run);
  if (found == runs_.end())
    return send(peer, msg::RefusedT{{}, fmt::format("there is no run {}", message.run)});
  auto& [id, run] = *found;
  if (run.state == RunState::Queued) {
    set_state(id, run, RunState::Stopped, "stopped while it waited");
  } else if (run.state == RunState::Preparing) {
    abort_members(id, run, "the run was stopped");
    set_state(id, run, RunState::Stopped,
              run.replans == 0
                  ? "stopped before its first step"
                  : fmt::format("stopped at step {} while its modelets were placed anew, checkpoint written",
                                run.step));
  } else if (run.state == RunState::Running) {
    run.stop_asked = now_;
    run.replan.reset();
    ask_to_stop(id, run);
    set_state(id, run, RunState::Stopping, "asked to stop at the next step");
  }
  send(peer, status(id, run));
  start_waiting_runs();
}

}  // namespace modelet::scheduler
