// HttpServer: HTTP/1.1 around a Service: connections, their limits and time-outs, and an orderly end.
//
// A connection may ask again and again (keep-alive), also before it has its answer (pipelining); it is answered
// in order. Questions are answered on the thread that read them. Each limit that is passed is an answer, and
// then the connection is closed: who sends too slowly gets 408, too much 413 or 431, and who comes when all
// connections are taken 503.
//
// Only http_server.cc includes Boost.Beast and Boost.Asio. One thread makes and runs a server.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/system/clock.h"
#include "scheduler/cli/serve/service.h"

namespace modelet::cli {

struct HttpOptions {
  std::string listen = "127.0.0.1:8080";  // ADDRESS:PORT; port 0: any that is free
  unsigned threads = 1;
  size_t connections = 1024;
  size_t header_bytes = 16 << 10, body_bytes = 4 << 20;  // of a question
  Seconds read{10};                                      // from the first byte of a question to its last
  Seconds write{10};                                     // for an answer
  Seconds idle{60};                                      // between two questions of a connection
  Seconds grace{30};  // for questions that have begun when the server is asked to end
};

// Whether only this machine can reach an address as in HttpOptions::listen. UsageError if it is none.
bool is_loopback(const std::string& listen);

class HttpServer {
 public:
  // Listens from here on. UsageError or Error if it cannot. All must outlive it.
  HttpServer(Service& service, Statistics& statistics, const HttpOptions& options);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  std::string endpoint() const;  // "http://127.0.0.1:8080"

  // Answers until SIGTERM or SIGINT; then takes no new connections, closes those that are idle, and ends when
  // the others have their answers, or after HttpOptions::grace. A second signal ends the process. SIGHUP calls
  // `hung_up`. Returns whether all were answered.
  bool run(const std::function<void()>& hung_up);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace modelet::cli
