// The scheduler's edge: one ZeroMQ socket for agents and clients, the clock, the log, and with a store the
// server of the runs' data (scheduler/data_server.h). All decisions are in Core. run() belongs to one thread;
// request_stop() may be called from a signal handler.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/wake_event.h"
#include "comm/control.h"
#include "scheduler/core.h"
#include "scheduler/data_server.h"

namespace modelet::scheduler {

struct ServerOptions {
  std::string listen = "tcp://127.0.0.1:5570";
  bool insecure = false;  // may listen beyond loopback without keys
  std::optional<comm::control::ServerKeys> keys;
  std::optional<DataServerOptions> data;  // none: all agents can read the data of runs
  CoreOptions core;                       // but for data_port
};

class Server {
 public:
  // Binds. UsageError if `listen` is no address, or is reachable from outside and there are no keys and not
  // `insecure`.
  explicit Server(const ServerOptions& options);

  const std::string& endpoint() const { return socket_.endpoint(); }
  void run();           // until request_stop()
  void request_stop();  // async-signal-safe

 private:
  void handle(double now, const Event& event);

  comm::control::ServerSocket socket_;
  std::unique_ptr<DataServer> data_;  // null: no store
  WakeEvent stop_;
  Core core_;
  double tick_;  // seconds between two Ticks of the core
};

}  // namespace modelet::scheduler
