#include "scheduler/core/status_json.h"

#include <array>
#include <nlohmann/json.hpp>

#include "scheduler/core/run/run.h"

namespace modelet::scheduler {

const char* state_name(comm::control::NodeState state) {
  constexpr std::array kStates = {"free", "training", "draining", "drained", "leaving", "lost", "pending"};
  const auto place = static_cast<size_t>(state);
  return place < kStates.size() ? kStates[place] : "unknown";
}

nlohmann::json to_json(const comm::control::NodeStatusT& node) {
  return {{"name", node.name},
          {"version", node.version},
          {"cores", node.cores},
          {"memory_bytes", node.memory_bytes},
          {"gflops", node.gflops},
          {"bf16_gflops", node.bf16_gflops},
          {"memory_gbps", node.memory_gbps},
          {"run", node.run},
          {"step", node.step},
          {"silent_seconds", node.silent_seconds},
          {"compute_seconds", node.compute_seconds},
          {"codec_seconds", node.codec_seconds},
          {"wait_seconds", node.wait_seconds},
          {"wait_share", node.wait_share},
          {"draining", node.draining},
          {"state", state_name(node.state)},
          {"why", node.why},
          {"state_seconds", node.state_seconds},
          {"address", node.address},
          {"disk_free_bytes", node.disk_free_bytes},
          {"suspended", node.suspended},
          {"sent_bytes", node.sent_bytes},
          {"received_bytes", node.received_bytes},
          {"key", node.key},
          {"private_data", node.private_data}};
}

nlohmann::json to_json(const comm::control::RunStatusT& run) {
  return {{"run", run.run},
          {"name", run.name},
          {"submitter", run.submitter},
          {"state", state_name(run.state)},
          {"detail", run.detail},
          {"step", run.step},
          {"nodes", run.node_names},
          {"seconds", run.seconds},
          {"submitted", run.submitted},
          {"epoch", run.epoch},
          {"stable_step", run.stable_step},
          {"recoveries", run.recoveries},
          {"replans", run.replans},
          {"straggler", run.straggler},
          {"straggler_excess", run.straggler_excess},
          {"parent", run.parent},
          {"task", run.task},
          {"tasks", run.tasks},
          {"tasks_done", run.tasks_done},
          {"tasks_at_work", run.tasks_at_work},
          {"seconds_left", run.seconds_left},
          {"steps", run.steps},
          {"loss", run.loss},
          {"samples_per_second", run.samples_per_second},
          {"bytes_per_step", run.bytes_per_step},
          {"stable_seconds", run.stable_seconds},
          {"repeated_steps", run.repeated_steps},
          {"queue_place", run.queue_place}};
}

}  // namespace modelet::scheduler
