// HttpServer: serves a Service over HTTP/1.1: connections, their limits and time-outs, and an orderly
// shutdown.
//
// A connection may send several questions (keep-alive), and may send the next one before it has its answer
// (pipelining). Answers are sent in the order of the questions. The thread that has read a question answers
// it. At most `threads` threads predict at a time, and there is one more, so signals, time-outs and short
// questions do not wait for long ones. If a limit is exceeded, the server sends an answer and closes the
// connection: 408 to a client that sends too slowly, and 413 or 431 if it sends too much.
//
// If all connections are taken, or all that one address may have, the one that has waited longest for a
// question gives way to a new one: of that address, or of the address that has the most. If none waits, the
// new one gets 503.
//
// On a loopback address the server answers only questions to the names of this machine. A page in a browser
// may otherwise ask under the name of its own site, once that name leads to the loopback address (DNS
// rebinding).
//
// Only http_server.cc includes Boost.Beast and Boost.Asio. One thread constructs and runs a server.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/system/clock.h"
#include "scheduler/cli/serve/service.h"

namespace modelet::cli {

struct HttpOptions {
  std::string listen = "127.0.0.1:8080";  // ADDRESS:PORT; port 0: any free port
  unsigned threads = 1;                   // that predict at a time
  size_t connections = 1024;
  size_t connections_of_address = 0;                     // 0: half of `connections`
  std::vector<std::string> hosts;                        // further names for a server on a loopback address
  size_t header_bytes = 16 << 10, body_bytes = 4 << 20;  // of a question
  Seconds read{10};                                      // from the first byte of a question to its last
  Seconds write{10};                                     // for an answer
  Seconds idle{60};                                      // between two questions of a connection
  Seconds grace{30};                                     // for open questions when the server is asked to end
};

// Whether only this machine can reach `listen`, which is as HttpOptions::listen. Throws UsageError if it is
// not an address.
bool is_loopback(const std::string& listen);

// Throws as HttpServer does if nobody can listen there now.
void require_free(const std::string& listen);

class HttpServer {
 public:
  // Listens from here on. Throws UsageError or Error if it cannot. The service and the statistics must
  // outlive the server.
  HttpServer(Service& service, Statistics& statistics, const HttpOptions& options);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  std::string endpoint() const;  // "http://127.0.0.1:8080"

  // Answers questions until SIGTERM or SIGINT. Then it accepts no new connections, and closes each one after
  // its next answer, or soon if no question comes. It ends when all are closed, or after HttpOptions::grace. A
  // second signal ends the process. SIGHUP calls `hung_up`. Returns whether all questions were answered.
  bool run(const std::function<void()>& hung_up);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace modelet::cli
