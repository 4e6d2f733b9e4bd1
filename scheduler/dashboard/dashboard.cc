#include "scheduler/dashboard/dashboard.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/version.h"
#include "scheduler/core/run/run.h"
#include "scheduler/core/status_json.h"
#include "scheduler/dashboard/assets.h"
#include "scheduler/dashboard/pool_metrics.h"

namespace modelet::scheduler {
namespace {

using comm::http::Request;
using comm::http::Response;
using comm::http::tagged;
using comm::http::Token;
using nlohmann::json;

constexpr size_t kUsualRuns = 200, kMostRuns = 10000;  // that have ended, in one response

std::string page_text(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

Response json_response(std::string text) {
  return {.body = std::move(text) + "\n", .fields = {{"Cache-Control", "no-store"}}};
}

// Number `name` of the query. Throws FormatError.
uint64_t number_of(const Request& request, std::string_view name, uint64_t otherwise) {
  const auto text = request.query(name);
  if (!text) return otherwise;
  uint64_t number = 0;
  const char* const end = text->data() + text->size();
  if (text->empty() || std::from_chars(text->data(), end, number) != std::from_chars_result{end, std::errc()})
    throw FormatError(fmt::format("'{}' is a number that is not negative", name));
  return number;
}

uint64_t run_of(const Request& request) {
  const std::string_view text = request.parts.front();
  uint64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ptr != text.data() + text.size())
    throw NotThere("the number of a run is expected in the path");
  return number;
}

// What the view has not is 404.
comm::http::Response found(const std::function<Response()>& answer) {
  constexpr unsigned kNotFound = 404;
  try {
    return answer();
  } catch (const NotThere& error) {
    return comm::http::error_response(kNotFound, error.what());
  }
}

// What is refused is 409.
comm::http::Response done(const std::function<void()>& action) {
  constexpr unsigned kConflict = 409;
  try {
    action();
    return json_response(R"({"done":true})");
  } catch (const UsageError& error) {
    return comm::http::error_response(kConflict, error.what());
  }
}

// The lines of a log of events as a list. Each is an object, as the scheduler has made sure.
std::string events_text(const comm::control::RunLogT& log) {
  std::string list;
  for (std::string_view rest = log.text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.empty()) continue;
    if (!list.empty()) list += ',';
    list += line;
  }
  return fmt::format(R"({{"events":[{}],"next":{},"complete":{}}})", list, log.next, log.complete);
}

json facts_json(const PoolFacts& facts) {
  return {{"version", kVersion},
          {"address", facts.address},
          {"started", facts.started},
          {"keeps_state", facts.keeps_state},
          {"losses", facts.losses},
          {"refused", facts.refused},
          {"errors", facts.errors},
          {"store_bytes", facts.store_bytes},
          {"store_most_bytes", facts.store_most_bytes}};
}

// Without what changes with time alone: a page can count seconds itself. Free space, which everything on a machine
// changes, counts in whole GiB.
json lasting(json object) {
  for (const char* key : {"silent_seconds", "seconds", "seconds_left", "stable_seconds"}) object.erase(key);
  if (const auto free = object.find("disk_free_bytes"); free != object.end()) *free = free->get<uint64_t>() >> 30;
  return object;
}

json interval_list(const std::vector<NodeHistory::Interval>& intervals, float NodeHistory::Interval::*what) {
  json list = json::array();
  constexpr double kDigits = 1e6;
  for (const auto& each : intervals)
    list.push_back(each.there ? json(std::round(double{each.*what} * kDigits) / kDigits) : json());
  return list;
}

}  // namespace

Dashboard::Dashboard(PoolView& view, comm::http::Router& router)
    : view_(view),
      router_(router),
      start_(fmt::format("{:x}", std::chrono::system_clock::now().time_since_epoch().count())) {
  add_page(router);
  add_api(router);
  add_actions(router);
  router.add_metrics([this](comm::http::MetricsText& text) { write_metrics(*view_.pool(), text); });
}

void Dashboard::add_page(comm::http::Router& router) {
  const auto serve = [](const Asset& asset, const Request& request) -> Response {
    if (has_already(request, asset.tag)) return comm::http::not_modified(asset.tag);
    return tagged({.body = std::string(asset.text),
                   .content_type = asset.type,
                   .fields = {{"Cache-Control", "no-cache"}}},
                  asset.tag);
  };
  for (const Asset& asset : assets()) {
    const bool is_page = asset.name == "index.html";
    router.add({.method = "GET",
                .path = "/" + std::string(is_page ? "" : asset.name),
                .handler =
                    [this, serve, &asset, is_page](const Request& request) {
                      return is_page && request.query("token") ? page(request) : serve(asset, request);
                    },
                .open = true});
  }
}

// The token of the address goes into a cookie, and out of the address, which others may see.
Response Dashboard::page(const Request& request) const {
  constexpr unsigned kSeeOther = 303, kUnauthorised = 401;
  const Token* const token = find_token(router_.tokens(), *request.query("token"));
  if (router_.has_token() && token == nullptr)
    return comm::http::error_response(kUnauthorised, "there is no such token");
  Response response{.status = kSeeOther, .fields = {{"Location", "/"}, {"Cache-Control", "no-store"}}};
  if (token != nullptr) response.fields.emplace_back("Set-Cookie", cookie_of(*token));
  return response;
}

void Dashboard::add_api(comm::http::Router& router) {
  const auto add = [&](std::string path, std::function<Response(const Request&)> answer) {
    router.add({.method = "GET",
                .path = std::move(path),
                .handler = [answer = std::move(answer)](
                               const Request& request) { return found([&] { return answer(request); }); },
                .slow = true});
  };
  add("/api/pool", [this](const Request& request) { return pool(request); });
  add("/api/history", [this](const Request&) { return history(); });
  add("/api/runs/{run}", [this](const Request& request) { return run(request); });
  add("/api/runs/{run}/events", [this](const Request& request) {
    return json_response(events_text(view_.events(run_of(request), number_of(request, "after", 0))));
  });
  add("/api/runs/{run}/logs/{node}", [this](const Request& request) {
    const auto log =
        view_.log(run_of(request), std::string(request.parts[1]), number_of(request, "after", 0));
    return json_response(page_text({{"text", log.text}, {"next", log.next}, {"complete", log.complete}}));
  });
}

void Dashboard::add_actions(comm::http::Router& router) {
  const auto add = [&](std::string path, std::function<void(const Request&)> act) {
    router.add(
        {.method = "POST",
         .path = std::move(path),
         .handler = [act = std::move(act)](const Request& request) { return done([&] { act(request); }); },
         .acts = true,
         .slow = true});
  };
  for (const bool drain : {true, false})
    add(drain ? "/api/nodes/{node}/drain" : "/api/nodes/{node}/undrain",
        [this, drain](const Request& request) {
          view_.drain(request.token, std::string(request.parts.front()), drain);
        });
  add("/api/runs/{run}/stop", [this](const Request& request) { view_.stop(request.token, run_of(request)); });
}

Response Dashboard::pool(const Request& request) {
  const std::shared_ptr<const Rendered> now = rendered();
  const bool may_act = now->of->facts.can_act && (request.token == nullptr || request.token->may_act);
  const size_t ended = std::min<uint64_t>(number_of(request, "runs", kUsualRuns), kMostRuns);
  const std::string tag = fmt::format("{}-{}-{}-{}", start_, now->version, may_act, ended);
  if (has_already(request, tag)) return comm::http::not_modified(tag);
  const size_t shown = std::min(now->runs.size(), now->at_work + ended);
  std::string text = fmt::format(R"({{"version":{},"may_act":{},)", now->version, may_act) + now->beginning;
  for (size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ",") + now->runs[i];
  Response response = json_response(text + "]}");
  response.fields = {{"Cache-Control", "no-cache"}};
  return tagged(std::move(response), tag);
}

std::shared_ptr<const Dashboard::Rendered> Dashboard::rendered() {
  const std::shared_ptr<const PoolState> state = view_.pool();
  const std::lock_guard lock(mutex_);
  if (rendered_ && rendered_->of == state) return rendered_;
  auto next = std::make_shared<Rendered>();
  next->of = state;
  json nodes = json::array(), lasting_nodes = json::array();
  for (const auto& node : state->nodes) {
    nodes.push_back(to_json(node));
    lasting_nodes.push_back(lasting(nodes.back()));
  }
  const json facts = facts_json(state->facts);
  next->lasting = page_text(facts) + page_text(lasting_nodes);
  for (const bool of_ended : {false, true}) {
    for (auto run = state->runs.rbegin(); run != state->runs.rend(); ++run) {
      if (has_ended(run->state) != of_ended) continue;
      const json text = to_json(*run);
      next->runs.push_back(page_text(text));
      next->lasting += page_text(lasting(text));
    }
    if (!of_ended) next->at_work = next->runs.size();
  }
  next->beginning = fmt::format(R"("now":{},"scheduler":{},"nodes":{},"runs_total":{},"runs":[)",
                                page_text(state->now), page_text(facts), page_text(nodes), next->runs.size());
  next->version = rendered_ ? rendered_->version + (rendered_->lasting == next->lasting ? 0 : 1) : 1;
  return rendered_ = next;
}

Response Dashboard::history() const {
  const NodeHistory history = view_.history();
  json nodes = json::array();
  using Interval = NodeHistory::Interval;
  for (size_t i = 0; i < history.names.size(); ++i)
    nodes.push_back({{"name", history.names[i]},
                     {"compute_seconds", interval_list(history.nodes[i], &Interval::compute)},
                     {"codec_seconds", interval_list(history.nodes[i], &Interval::codec)},
                     {"wait_seconds", interval_list(history.nodes[i], &Interval::wait)}});
  return json_response(page_text({{"interval_seconds", history.seconds},
                                  {"began", history.began},
                                  {"first", history.first},
                                  {"nodes", std::move(nodes)}}));
}

Response Dashboard::run(const Request& request) const {
  const RunDetails details = view_.run(run_of(request));
  json placement = json::array();
  for (const Placed& each : details.placement)
    placement.push_back({{"node", each.node}, {"modelets", each.modelets}, {"bytes", each.bytes}});
  return json_response(page_text({{"run", to_json(details.status)},
                                  {"experiment", details.experiment},
                                  {"placement", std::move(placement)}}));
}

}  // namespace modelet::scheduler
