#include "scheduler/core/node_record.h"

#include "base/error.h"
#include "base/text/strict_json.h"
#include "scheduler/core/status_json.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {
namespace {

constexpr const char* kNodeRecord = "record of a node";
constexpr int kDeepestNodeRecord = 3;

}  // namespace

NodeRecord node_record(const comm::control::NodeStatusT& node, uint64_t lost_at) {
  return {node.name, lost_at, to_json(node).dump()};
}

comm::control::NodeStatusT absent_node(const NodeRecord& record) {
  const nlohmann::json object = parse_strict_json(record.text, kNodeRecord, kDeepestNodeRecord);
  comm::control::NodeStatusT node;
  node.name = record.name;
  if (!is_name(node.name)) throw FormatError(std::string(kNodeRecord) + ": its name is no name");
  node.state = comm::control::NodeState::Lost;
  node.version = string_at(object, "version", kNodeRecord);
  node.cores = static_cast<uint32_t>(unsigned_at(object, "cores", kNodeRecord));
  node.memory_bytes = unsigned_at(object, "memory_bytes", kNodeRecord);
  node.gflops = number_at(object, "gflops", kNodeRecord);
  node.bf16_gflops = number_at(object, "bf16_gflops", kNodeRecord);
  node.memory_gbps = number_at(object, "memory_gbps", kNodeRecord);
  node.silent_seconds = number_at(object, "silent_seconds", kNodeRecord);
  node.address = string_at(object, "address", kNodeRecord);
  node.why = string_at(object, "why", kNodeRecord);
  return node;
}

}  // namespace modelet::scheduler
