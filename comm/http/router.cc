#include "comm/http/router.h"

#include <spdlog/fmt/fmt.h>
#include <strings.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/system/clock.h"
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

// Whether the path is one of the route's. `parts` gets what stands for the names in braces.
bool fits(std::string_view pattern, std::string_view path, std::vector<std::string_view>& parts) {
  parts.clear();
  while (!pattern.empty() && !path.empty()) {
    if (!pattern.starts_with('{')) {
      if (pattern.front() != path.front()) return false;
      pattern.remove_prefix(1);
      path.remove_prefix(1);
      continue;
    }
    const std::string_view part = path.substr(0, path.find('/'));
    if (part.empty()) return false;
    parts.push_back(part);
    path.remove_prefix(part.size());
    pattern.remove_prefix(pattern.find('}') + 1);
  }
  return pattern.empty() && path.empty();
}

// Of a query: %XX is a byte, and '+' a blank.
std::string decoded(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    constexpr size_t kDigits = 2;
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + kDigits < text.size() &&
        std::from_chars(digits, digits + kDigits, byte, 16).ptr == digits + kDigits) {
      plain += static_cast<char>(byte);
      i += kDigits;
    } else {
      plain += text[i] == '+' ? ' ' : text[i];
    }
  }
  return plain;
}

Response status_ok() { return {.body = "{\"status\":\"ok\"}\n"}; }

}  // namespace

Response error_response(unsigned status, std::string_view what) {
  constexpr size_t kMostShown = 2000;
  return {.status = status, .body = nlohmann::json{{"error", printable(what, kMostShown)}}.dump() + "\n"};
}

std::optional<std::string> Request::query(std::string_view name) const {
  const size_t mark = target.find('?');
  std::string_view rest = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    const size_t equals = std::min(pair.find('='), pair.size());
    if (pair.substr(0, equals) == name) return decoded(pair.substr(std::min(equals + 1, pair.size())));
  }
  return std::nullopt;
}

bool has_already(const Request& request, std::string_view tag) {
  return request.if_none_match.find(fmt::format("\"{}\"", tag)) != std::string_view::npos;
}

Response not_modified(std::string_view tag) {
  constexpr unsigned kNotModified = 304;
  return tagged({.status = kNotModified}, tag);
}

Response tagged(Response response, std::string_view tag) {
  response.fields.emplace_back("ETag", fmt::format("\"{}\"", tag));
  return response;
}

Router::Router(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
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
  std::vector<std::string_view> parts;
  for (const Route& route : routes_)
    if (fits(route.path, path, parts) && (found == nullptr || accepts(route, request.method))) found = &route;
  refusal = check(found, request);
  if (refusal.status == 200) return found;
  count(found != nullptr ? found->path : kOther, refusal.status);
  return nullptr;
}

Response Router::check(const Route* route, const Request& request) const {
  const Token* const token = find_token(tokens_, request.authorization, request.cookies);
  if ((route == nullptr || !route->open) && has_token() && token == nullptr)
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
      if (std::vector<std::string_view> parts; fits(each.path, request.path(), parts))
        methods += (methods.empty() ? "" : ", ") + each.method + (each.method == "GET" ? ", HEAD" : "");
    Response response = error_response(405, fmt::format("{} is for {}", route->path, methods));
    response.allow = std::move(methods);
    return response;
  }
  if (route->method == "POST" && !is_json(request.content_type))
    return error_response(
        415, fmt::format("the content type is '{}'; send JSON, as 'Content-Type: application/json'",
                         shown(request.content_type)));
  if (route->acts && token != nullptr && !token->may_act)
    return error_response(403,
                          fmt::format("the token of '{}' is a viewer's, which may look and change nothing: "
                                      "an administrator's token may",
                                      token->name));
  if (route->acts && request.action.empty())
    return error_response(
        403,
        "this changes something, so the request needs the field 'X-Modelet-Action: yes', which "
        "pages of other sites cannot send");
  return {};
}

Response Router::handle(const Route& route, const Request& received) {
  Request request = received;
  request.token = find_token(tokens_, request.authorization, request.cookies);
  fits(route.path, request.path(), request.parts);
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
