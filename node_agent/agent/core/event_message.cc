#include "node_agent/agent/core/event_message.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace modelet::agent {

comm::control::RunEventT event_message(nlohmann::json event) {
  using enum comm::control::EventKind;
  comm::control::RunEventT message;
  const std::string kind = event.value("event", "");
  if (kind == "preparing") {
    message.kind = Preparing;
    message.done = event.value("done", 0.0);
  } else if (kind == "fetching") {
    message.kind = Fetching;
    message.done = event.value("bytes", 0.0) / std::max(1.0, event.value("total_bytes", 0.0));
  } else if (kind == "progress") {
    message.kind = Progress;
    message.step = event.value("step", uint64_t{0});
    message.seconds_left = event.value("eta_seconds", 0.0);
    for (const nlohmann::json& node : event.value("nodes", nlohmann::json::array()))
      message.times.emplace_back(node.at("compute_seconds"), node.at("codec_seconds"),
                                 node.at("wait_seconds"));
  } else if (kind == "interrupted") {
    message.kind = Interrupted;
  } else if (kind == "trace") {
    message.kind = Trace;
  }
  for (const char* key : {"path", "checkpoint"})
    if (const auto path = event.find(key); path != event.end())
      *path = std::filesystem::path(path->get<std::string>()).filename().string();
  message.json = event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return message;
}

}  // namespace modelet::agent
