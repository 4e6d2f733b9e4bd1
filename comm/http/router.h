// Router: the routes of a server: which handler gets a request, by method and path. It also does what all
// routes have in common: it checks the token, turns errors into responses, counts, and answers
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
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/http/metrics.h"

namespace modelet::comm::http {

// Its texts are valid while the request is handled.
struct Request {
  std::string_view method, target, content_type, authorization, body;

  std::string_view path() const { return target.substr(0, target.find('?')); }
};

struct Response {
  unsigned status = 200;
  std::string body;
  std::string_view content_type = "application/json";
  std::string allow;  // for status 405: the methods that are allowed
};

// A response that says what is wrong: {"error": "..."}.
Response error_response(unsigned status, std::string_view what);

// Reads the token that requests must bring, a single line. Throws UsageError if it is no token, or if other users can
// read the file: whoever has the token may send requests.
std::string read_token_file(const std::string& file);

struct Route {
  std::string method, path;  // GET answers HEAD as well. The body of a POST is JSON
  // Any thread calls it. FormatErrors and UsageErrors that it throws become status 400, other errors 500.
  std::function<Response(const Request&)> handler;
  bool open = false;  // needs no token
  bool slow = false;  // no more than ServerOptions::threads requests of such routes are handled at a time
  Histogram* seconds = nullptr;  // observes how long a request is handled
};

class Router {
 public:
  // `token` is what requests must bring. Empty: they need none.
  explicit Router(std::string token = {});
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  void add(Route route);
  // `write` adds metrics of the program to /metrics. Any thread calls it.
  void add_metrics(std::function<void(MetricsText&)> write);

  bool has_token() const { return !token_.empty(); }

  // The rest is for Server.

  // The route of a request, which follows from its header. nullptr: there is none, and `refusal` says why.
  const Route* find(const Request& request, Response& refusal);
  // The response to a request that has arrived whole. Never throws: whatever goes wrong is a response.
  Response handle(const Route& route, const Request& request);
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

  const std::string token_;
  std::list<Route> routes_;  // requests hold pointers to them
  std::vector<std::function<void(MetricsText&)>> metrics_;
  std::atomic<uint64_t> connections_ = 0, turned_away_ = 0, in_flight_ = 0;
  std::atomic<bool> ending_ = false;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string_view, unsigned>, uint64_t> requests_;  // by path of a route, and status
};

}  // namespace modelet::comm::http
