// Server: serves the routes of a Router over HTTP/1.1: connections, their limits and time-outs, and an orderly
// shutdown. It has no encryption.
//
// A connection may carry several requests (keep-alive), and a client may send the next one before it has the
// response (pipelining). Responses are sent in the order of the requests. The thread that has read a request
// handles it. At most `threads` threads handle requests of slow routes at a time, and there is one more (`others`), so
// time-outs and other requests do not wait for slow ones. If a limit is exceeded, the server sends a response
// and closes the connection: 408 to a client that sends too slowly, and 413 or 431 if it sends too much.
//
// If all connections are taken, or all that one address may have, the one that has waited longest for a
// request gives way to a new one: of that address, or of the address that has the most. If none waits, the
// new one gets 503.
//
// Without a token the server listens only on a loopback address. There it accepts only requests to the names of
// this machine. A page in a browser may otherwise send requests under the name of its own site, once that name
// leads to the loopback address (DNS rebinding).
//
// Messages name the options of a program after those below: read_seconds is --read-seconds.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/http/router.h"

namespace modelet::comm::http {

struct ServerOptions {
  std::string listen = "127.0.0.1:8080";  // ADDRESS:PORT; port 0: any free port
  // The options of the program that say where to listen, and which tokens there are.
  std::string listen_option = "--listen", token_option = "--token-file";
  unsigned threads = 1;  // that handle requests of slow routes at a time
  unsigned others = 1;   // further threads, so that requests of other routes never wait for slow ones
  size_t connections = 1024;
  size_t connections_per_address = 0;                    // 0: half of `connections`
  std::vector<std::string> hosts;                        // further names for a server on a loopback address
  size_t header_bytes = 16 << 10, body_bytes = 4 << 20;  // of a request
  double read_seconds = 10;                              // from the first byte of a request to its last
  double write_seconds = 10;                             // for a response
  double idle_seconds = 60;                              // between two requests of a connection
  double grace_seconds = 30;                             // for open requests when the server shuts down
};

// Throws what the constructor of a server throws now. For programs that have much to do before they have one.
void check_listening(const ServerOptions& options, bool has_token);

class Server {
 public:
  // Listens and serves from here on, on `threads` + `others` threads of its own. Throws UsageError or Error if it cannot.
  // The router must outlive the server.
  Server(Router& router, const ServerOptions& options);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();  // drops the connections that there are

  std::string endpoint() const;  // "http://127.0.0.1:8080"

  // Accepts no new connections, and closes each one after its next response, or soon if no request comes. Returns
  // when all are closed, or after grace_seconds: whether all requests were answered.
  bool stop();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace modelet::comm::http
