// Router: the routes of a server: which handler gets a request, by method and path. It also does what all
// routes have in common: it checks the token and what its holder may do, turns errors into responses, counts, and
// answers
//
//   GET /healthz   whether the process lives. Needs no token
//   GET /readyz    whether it accepts requests; not while it is shutting down. Needs no token
//   GET /metrics   metrics of the server and of the program, for Prometheus
//
// A router knows nothing of sockets. Add routes and metrics before a Server has the router. After that, any
// thread may call the other functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/http/metrics.h"
#include "comm/http/token.h"

namespace modelet::comm::http {

// Its texts are valid while the request is handled.
struct Request {
  std::string_view method, target, content_type, authorization, body;
  std::string_view cookies = {}, if_none_match = {};
  std::string_view action = {};  // the field X-Modelet-Action
  // From the router: whose token the request brings, nullptr if the server needs none; and what the path has in place
  // of the names in braces of the route's.
  const Token* token = nullptr;
  std::vector<std::string_view> parts = {};

  std::string_view path() const { return target.substr(0, target.find('?')); }
  // The value of a name in the query, decoded; nothing: the query does not have the name.
  std::optional<std::string> query(std::string_view name) const;
};

struct Response {
  unsigned status = 200;
  std::string body;
  std::string_view content_type = "application/json";
  std::string allow;  // for status 405: the methods that are allowed
  std::vector<std::pair<std::string_view, std::string>> fields = {};  // further ones of the header
};

// A response that says what is wrong: {"error": "..."}.
Response error_response(unsigned status, std::string_view what);

// Whether the client has what `tag` names, so that not_modified() is the response. A tag is any text without quotes.
bool has_already(const Request& request, std::string_view tag);
Response not_modified(std::string_view tag);
// The response with its tag, for the client to ask whether it is still the same.
Response tagged(Response response, std::string_view tag);

struct Route {
  std::string method;  // GET answers HEAD as well. The body of a POST is JSON
  std::string path;    // a name in braces stands for any text between two slashes: "/runs/{run}"
  // Any thread calls it. FormatErrors and UsageErrors that it throws become status 400, other errors 500.
  std::function<Response(const Request&)> handler;
  bool open = false;  // needs no token
  // It changes something: a viewer's token is not enough. A page of another site cannot make a browser send the field
  // X-Modelet-Action, which such requests must have.
  bool acts = false;
  bool slow = false;  // no more than ServerOptions::threads requests of such routes are handled at a time
  Histogram* seconds = nullptr;  // observes how long a request is handled
};

class Router {
 public:
  // Requests must bring one of the tokens. Without tokens they need none.
  explicit Router(std::vector<Token> tokens = {});
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  void add(Route route);
  // `write` adds metrics of the program to /metrics. Any thread calls it.
  void add_metrics(std::function<void(MetricsText&)> write);

  bool has_token() const { return !tokens_.empty(); }
  const std::vector<Token>& tokens() const { return tokens_; }

  // The rest is for Server.

  // The route of a request, which follows from its header. nullptr: there is none, and `refusal` says why.
  const Route* find(const Request& request, Response& refusal);
  // The response to a request that has arrived whole. Never throws: whatever goes wrong is a response.
  Response handle(const Route& route, const Request& received);
  // The response to something that is no request, or one that is not read.
  Response refuse(unsigned status, const std::string& what);

  void connected() { ++connections_; }
  void disconnected() { --connections_; }
  void turned_away() { ++turned_away_; }
  uint64_t in_flight() const { return in_flight_; }

  void end() { ending_ = true; }  // from here on /readyz says no
  bool ending() const { return ending_; }

 private:
  Response check(const Route* route, const Request& request) const;
  void count(std::string_view path, unsigned status);
  Response metrics() const;

  const std::vector<Token> tokens_;
  std::list<Route> routes_;  // requests hold pointers to them
  std::vector<std::function<void(MetricsText&)>> metrics_;
  std::atomic<uint64_t> connections_ = 0, turned_away_ = 0, in_flight_ = 0;
  std::atomic<bool> ending_ = false;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string_view, unsigned>, uint64_t> requests_;  // by path of a route, and status
};

}  // namespace modelet::comm::http
