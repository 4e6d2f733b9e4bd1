#include "comm/http/router.h"

#include <sodium.h>
#include <spdlog/fmt/fmt.h>
#include <strings.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "base/text/printable.h"

namespace modelet::comm::http {
namespace {

constexpr std::string_view kOther = "other";  // the path of what no route is for, in metrics

// HEAD is a GET whose response has no body (RFC 9110).
bool accepts(const Route& route, std::string_view method) {
  return method == route.method || (method == "HEAD" && route.method == "GET");
}

std::string shown(std::string_view text) {
  constexpr size_t kShown = 200;
  return printable(text, kShown);
}

// Whether the type is "application/json", with any parameters.
bool is_json(std::string_view content_type) {
  constexpr std::string_view kJson = "application/json";
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (type.ends_with(' ')) type.remove_suffix(1);
  return type.size() == kJson.size() && ::strncasecmp(type.data(), kJson.data(), kJson.size()) == 0;
}

// Whether the value of the field Authorization is "Bearer TOKEN". Takes a time that does not depend on where the
// tokens differ.
bool bears_token(std::string_view authorization, std::string_view token) {
  constexpr std::string_view kScheme = "Bearer ";  // its case does not matter (RFC 9110)
  if (authorization.size() != kScheme.size() + token.size() ||
      ::strncasecmp(authorization.data(), kScheme.data(), kScheme.size()) != 0)
    return false;
  return sodium_memcmp(authorization.data() + kScheme.size(), token.data(), token.size()) == 0;
}

Response status_ok() { return {.body = "{\"status\":\"ok\"}\n"}; }

}  // namespace

Response error_response(unsigned status, std::string_view what) {
  constexpr size_t kMostShown = 2000;
  return {.status = status, .body = nlohmann::json{{"error", printable(what, kMostShown)}}.dump() + "\n"};
}

std::string read_token_file(const std::string& file) {
  constexpr size_t kFewest = 16, kMost = 1024;
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) throw UsageError(errno_text(file));
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    throw UsageError(file + ": others may read or change this token: chmod 600 it");
  std::string token = read_text_file(file, kMost);
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.size() < kFewest || !std::ranges::all_of(token, [](char c) { return c > ' ' && c < 127; }))
    throw UsageError(file + ": a token is one line of at least " + std::to_string(kFewest) +
                     " visible ASCII characters; 'openssl rand -hex 32' makes one");
  return token;
}

Router::Router(std::string token) : token_(std::move(token)) {
  add({.method = "GET",
       .path = "/healthz",
       .handler = [](const Request&) { return status_ok(); },
       .open = true});
  add({.method = "GET",
       .path = "/readyz",
       .handler =
           [this](const Request&) {
             return ending_ ? error_response(503, "the server is shutting down; ask another one")
                            : status_ok();
           },
       .open = true});
  add({.method = "GET", .path = "/metrics", .handler = [this](const Request&) { return metrics(); }});
}

void Router::add(Route route) { routes_.push_back(std::move(route)); }

void Router::add_metrics(std::function<void(MetricsText&)> write) { metrics_.push_back(std::move(write)); }

const Route* Router::find(const Request& request, Response& refusal) {
  const std::string_view path = request.path();
  const Route* found = nullptr;  // a route of the path: the one of the method, if there is one
  for (const Route& route : routes_)
    if (route.path == path && (found == nullptr || accepts(route, request.method))) found = &route;
  refusal = check(found, request);
  if (refusal.status == 200) return found;
  count(found != nullptr ? found->path : kOther, refusal.status);
  return nullptr;
}

Response Router::check(const Route* route, const Request& request) const {
  if ((route == nullptr || !route->open) && has_token() && !bears_token(request.authorization, token_))
    return error_response(401,
                          "this server is for those who have its token: send 'Authorization: Bearer TOKEN'");
  if (route == nullptr) {
    std::string known;
    for (const Route& each : routes_) known += (known.empty() ? "" : ", ") + each.path;
    return error_response(404, fmt::format("there is no {}; there are {}", shown(request.path()), known));
  }
  if (!accepts(*route, request.method)) {
    std::string methods;
    for (const Route& each : routes_)
      if (each.path == route->path)
        methods += (methods.empty() ? "" : ", ") + each.method + (each.method == "GET" ? ", HEAD" : "");
    Response response = error_response(405, fmt::format("{} is for {}", route->path, methods));
    response.allow = std::move(methods);
    return response;
  }
  if (route->method == "POST" && !is_json(request.content_type))
    return error_response(
        415, fmt::format("the content type is '{}'; send JSON, as 'Content-Type: application/json'",
                         shown(request.content_type)));
  return {};
}

Response Router::handle(const Route& route, const Request& request) {
  ++in_flight_;
  const Stopwatch watch;
  Response response;
  try {
    response = route.handler(request);
  } catch (const FormatError& error) {
    response = error_response(400, error.what());
  } catch (const UsageError& error) {
    response = error_response(400, error.what());
  } catch (const std::bad_alloc&) {
    response =
        error_response(503, "not enough memory for this request: send it again later, or a smaller one");
  } catch (const std::exception& error) {
    log_error("{} failed: {}", request.target, error.what());
    response = error_response(500, error.what());
  }
  if (route.seconds != nullptr) route.seconds->observe(watch.seconds());
  count(route.path, response.status);
  --in_flight_;
  return response;
}

Response Router::refuse(unsigned status, const std::string& what) {
  count(kOther, status);
  return error_response(status, what);
}

void Router::count(std::string_view path, unsigned status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
}

Response Router::metrics() const {
  MetricsText text;
  text.begin("modelet_requests_total", "counter", "Requests answered, by path and status.");
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : requests_)
      text.sample({{"path", key.first}, {"code", std::to_string(key.second)}}, static_cast<double>(count));
  }
  text.gauge("modelet_requests_in_flight", "Requests that have arrived and are not yet answered.",
             static_cast<double>(in_flight_));
  text.gauge("modelet_connections", "Open connections.", static_cast<double>(connections_));
  text.counter("modelet_connections_refused_total", "Connections beyond the limit.",
               static_cast<double>(turned_away_));
  for (const auto& write : metrics_) write(text);
  return {.body = text.take(), .content_type = kMetricsType};
}

}  // namespace modelet::comm::http
