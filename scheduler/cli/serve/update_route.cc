#include "scheduler/cli/serve/update_route.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "scheduler/cli/serve/request.h"
#include "shard/data/read/json_lines.h"
#include "shard/data/read/line_reader.h"

namespace modelet::cli {

using comm::http::Request;
using comm::http::Response;

UpdateRoute::UpdateRoute(ModelHolder& models, comm::http::Router& router) : models_(models) {
  if (!models_.model()->query_encoder().has_histories())
    throw UsageError("--update: this model has no histories: it was trained without columns of the types entity and time");
  router.add({.method = "POST",
              .path = "/v1/update",
              .handler = [this](const Request& request) { return update(request); },
              .acts = true});
}

Response UpdateRoute::update(const Request& request) const {
  const nlohmann::json body = shard::parse_json_values(request.body, "the request", kMostNestedInSamples);
  if (!body.is_object()) throw FormatError("the request: a JSON object is expected");
  require_known_keys(body, std::vector<std::string>{"samples"}, "the request");
  const shard::NewEvents events = models_.add_events(text_of_samples(body));
  const nlohmann::ordered_json answer = {
      {"added", events.added}, {"unknown_labels", events.unknown_labels}, {"step", models_.model()->step()}};
  return {.body = answer.dump() + "\n"};
}

}  // namespace modelet::cli
