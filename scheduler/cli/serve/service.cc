#include "scheduler/cli/serve/service.h"

#include <sodium.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/log.h"
#include "base/text/printable.h"
#include "base/version.h"
#include "scheduler/cli/serve/openapi.h"

namespace modelet::cli {
namespace {

using Answered = nlohmann::ordered_json;

struct Route {
  std::string_view path, method;
  bool open;  // needs no token
};
constexpr Route kRoutes[] = {{kPredictPath, "POST", false}, {"/v1/model", "GET", false},
                             {"/healthz", "GET", true},     {"/readyz", "GET", true},
                             {"/metrics", "GET", false},    {"/openapi.json", "GET", false}};

std::string_view path_of(std::string_view target) { return target.substr(0, target.find('?')); }

const Route* route_of(std::string_view target) {
  const auto found = std::ranges::find(kRoutes, path_of(target), &Route::path);
  return found == std::end(kRoutes) ? nullptr : &*found;
}

// HEAD is a GET whose answer has no body (RFC 9110).
bool takes(const Route& route, std::string_view method) {
  return method == route.method || (method == "HEAD" && route.method == "GET");
}

std::string dumped(const Answered& json) {
  return json.dump(-1, ' ', false, Answered::error_handler_t::replace) + "\n";
}

std::string shown(std::string_view text) {
  constexpr size_t kShown = 200;
  return printable(text, kShown);
}

bool equal_but_for_case(std::string_view one, std::string_view two) {
  return std::ranges::equal(
      one, two, [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
}

// Whether the type is "application/json", with any parameters.
bool is_json(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  return equal_but_for_case(type, "application/json");
}

// Compares the tokens in a time that does not depend on where they differ.
bool is_bearer(std::string_view authorization, const std::string& token) {
  constexpr std::string_view kScheme = "Bearer ";
  if (!equal_but_for_case(authorization.substr(0, kScheme.size()), kScheme)) return false;
  const std::string_view given = authorization.substr(kScheme.size());
  return given.size() == token.size() && sodium_memcmp(given.data(), token.data(), token.size()) == 0;
}

Answered labels_of(const ServedModel::Answer& answer, const Interpreter& interpreter) {
  Answered labels = Answered::array();
  for (const ScoredLabel& found : answer) {
    Answered entry = {{"label", found.label}};
    if (interpreter.has_names()) entry["name"] = found.name;
    entry["score"] = found.score;
    if (interpreter.has_probabilities()) entry["probability"] = found.probability;
    labels.push_back(std::move(entry));
  }
  return labels;
}

}  // namespace

Reply error_reply(unsigned status, const std::string& what) {
  constexpr size_t kMostShown = 2000;
  return {.status = status, .body = dumped({{"error", printable(what, kMostShown)}})};
}

Service::Service(const ModelHolder& models, Statistics& statistics, RequestLimits limits, std::string token)
    : models_(models),
      statistics_(statistics),
      limits_(limits),
      token_(std::move(token)),
      openapi_(openapi_text(limits, !token_.empty())) {}

Reply Service::check(const Question& question) const {
  const Route* route = route_of(question.target);
  if ((route == nullptr || !route->open) && !token_.empty() && !is_bearer(question.authorization, token_))
    return error_reply(401,
                       "this server answers those who bring its token: send 'Authorization: Bearer TOKEN'");
  if (route == nullptr) {
    std::string known;
    for (const Route& each : kRoutes) known += fmt::format("{}{}", known.empty() ? "" : ", ", each.path);
    return error_reply(404,
                       fmt::format("there is no {}; there are {}", shown(path_of(question.target)), known));
  }
  if (!takes(*route, question.method)) {
    Reply reply = error_reply(405, fmt::format("{} is for {}", route->path, route->method));
    reply.allow = route->method == "GET" ? "GET, HEAD" : route->method;
    return reply;
  }
  if (route->method == "POST" && !is_json(question.content_type))
    return error_reply(415,
                       fmt::format("the content type is '{}'; send JSON, as 'Content-Type: application/json'",
                                   shown(question.content_type)));
  return {};
}

Reply Service::handle(const Question& question) const {
  statistics_.begun();
  const Stopwatch watch;
  Reply reply = check(question);
  if (reply.status == 200) {
    try {
      reply = answer(question);
    } catch (const FormatError& error) {
      reply = error_reply(400, error.what());
    } catch (const UsageError& error) {
      reply = error_reply(400, error.what());
    } catch (const std::bad_alloc&) {
      reply = error_reply(503, "not enough memory to answer: ask again later, or for fewer samples");
    } catch (const std::exception& error) {
      log_error("{} failed: {}", question.target, error.what());
      reply = error_reply(500, error.what());
    }
  }
  const Route* route = route_of(question.target);
  statistics_.answered(route != nullptr ? std::string(route->path) : "other", reply.status, watch.seconds());
  statistics_.ended();
  return reply;
}

Reply Service::answer(const Question& question) const {
  const std::string_view path = path_of(question.target);
  if (path == kPredictPath) return predict(question.body);
  if (path == "/v1/model") return model();
  if (path == "/metrics") return metrics();
  if (path == "/openapi.json") return {.body = openapi_};
  if (path == "/readyz" && ending_) return error_reply(503, "the server is ending; ask another one");
  return {.body = dumped({{"status", "ok"}})};
}

Reply Service::predict(std::string_view body) const {
  const std::shared_ptr<const ServedModel> served = models_.model();
  const PredictRequest request = parse_request(body, served->columns(), limits_);
  const std::vector<ServedModel::Answer> answers = served->answer(request);
  statistics_.predicted(answers.size());
  Answered json = {{"step", served->step()}};
  if (request.single) {
    json["labels"] = labels_of(answers.front(), served->interpreter());
  } else {
    json["predictions"] = Answered::array();
    for (const ServedModel::Answer& answer : answers)
      json["predictions"].push_back({{"labels", labels_of(answer, served->interpreter())}});
  }
  return {.body = dumped(json)};
}

Reply Service::model() const {
  const std::shared_ptr<const ServedModel> served = models_.model();
  Answered json = {{"checkpoint", served->folder().string()},
                   {"step", served->step()},
                   {"features", served->shape().features},
                   {"labels", served->shape().labels},
                   {"hidden", served->experiment().model.hidden},
                   {"loss", spelling(served->experiment().model.loss)},
                   {"format", spelling(served->columns().format())},
                   {"columns", served->columns().names()},
                   {"sparse", served->sparse()},
                   {"names", served->interpreter().has_names()},
                   {"probabilities", served->interpreter().has_probabilities()},
                   {"modelet_version", kVersion}};
  return {.body = dumped(json)};
}

Reply Service::metrics() const {
  const std::shared_ptr<const ServedModel> served = models_.model();
  const ModelHolder::Reloads reloads = models_.reloads();
  return {.body = statistics_.text({.checkpoint = served->folder().string(),
                                    .step = served->step(),
                                    .reloads = reloads.done,
                                    .failed_reloads = reloads.failed}),
          .content_type = "text/plain; version=0.0.4; charset=utf-8"};
}

}  // namespace modelet::cli
