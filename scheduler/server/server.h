// Server: everything of the scheduler that Core leaves out: one ZeroMQ socket for agents and clients, the
// clock, the log, the thread that makes plans and, with a store, the server of the runs' data
// (comm/content/transfer/data_server.h). All decisions are in Core. run() belongs to one thread; request_stop() may
// be called from a signal handler.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/system/wake_event.h"
#include "comm/content/transfer/data_server.h"
#include "comm/control/control.h"
#include "scheduler/access/store_policy.h"
#include "scheduler/core/core.h"
#include "scheduler/server/planner.h"

namespace modelet::scheduler {

struct ServerOptions {
  std::string listen = "tcp://127.0.0.1:5570";
  bool insecure = false;  // may listen without keys
  std::optional<comm::control::ServerKeys> keys;
  uint16_t data_port = 0;                       // for data; 0: a free one,
  uint16_t former_data_port = 0;                // if possible this one, where agents look for it
  std::optional<comm::DataServerOptions> data;  // but for why_not; none: all agents can read the data of runs
  CoreOptions core;                             // but for data_port
  // Writes down what must outlive this process; what it throws ends run(). Empty: nothing does.
  std::function<void(const Records&)> persist;
  Records restored;  // that a former process has written down
  // Reads what was written down of the log of a run, or of a node in it (Ledger::read_log); then `nodes_with_log`.
  std::function<LogPart(uint64_t run, const std::string& node, uint64_t after)> read_log;
  std::function<std::vector<std::string>(uint64_t run)> nodes_with_log;
  Planner::Work plan = carry_out;  // makes a plan, on the planner's thread
};

class Server {
 public:
  // Binds. UsageError if `listen` is not an address, or if others can reach it and there are neither keys nor
  // `insecure`.
  explicit Server(const ServerOptions& options);

  const std::string& endpoint() const { return socket_.endpoint(); }
  uint16_t data_port() const { return data_ ? data_->port() : uint16_t{0}; }
  // Until request_stop(). Throws what `persist` does; then nothing that follows from it was sent.
  void run();
  void request_stop();  // async-signal-safe

 private:
  void handle(double now, const Event& event);
  void carry_out(double now);
  void tell_store();  // what it has to keep, and who may fetch what
  void act(double now, Action& action);
  comm::control::FromSchedulerMessage read_log(const ReadLog& asked) const;

  comm::control::ServerSocket socket_;
  const bool is_local_;  // only this machine reaches the socket
  StorePolicy policy_;
  std::unique_ptr<comm::DataServer> data_;  // null: no store
  WakeEvent wake_;                          // a plan is made, or asked to stop
  std::atomic<bool> stop_{false};
  const std::function<void(const Records&)> persist_;
  const std::function<LogPart(uint64_t run, const std::string& node, uint64_t after)> read_log_;
  const std::function<std::vector<std::string>(uint64_t run)> nodes_with_log_;
  Core core_;
  std::vector<Action> actions_;  // of events that were handled, to be carried out
  double tick_;                  // seconds between two Ticks of the core
  Planner planner_;
};

}  // namespace modelet::scheduler
