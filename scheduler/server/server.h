// Server: everything in the scheduler except the decisions, which are in Core. It has one ZeroMQ socket for
// agents and clients, the clock, the log, the thread that makes plans and, with a store, the server for the
// data of runs (comm/content/transfer/data_server.h). One thread calls run(). request_stop() may be called
// from a signal handler.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/system/wake_event.h"
#include "comm/content/transfer/data_server.h"
#include "comm/control/control.h"
#include "scheduler/access/invitations.h"
#include "scheduler/access/store_policy.h"
#include "scheduler/core/core.h"
#include "scheduler/server/errands.h"
#include "scheduler/server/planner.h"
#include "scheduler/server/turns.h"

namespace modelet::scheduler {

struct ServerOptions {
  std::string listen = "tcp://127.0.0.1:5570";
  bool insecure = false;  // may listen without keys
  std::optional<comm::control::ServerKeys> keys;
  uint16_t data_port = 0;                       // for data; 0: a free one
  uint16_t former_data_port = 0;                // preferred if `data_port` is 0, because agents look there
  std::optional<comm::DataServerOptions> data;  // without why_not; empty: no store
  CoreOptions core;                             // without data_port
  // Writes down what must outlive this process. If it throws, run() ends with that exception. Empty: nothing
  // outlives this process.
  std::function<void(const Records&)> persist;
  Records restored;  // what a former process has written down
  // The folder of invitations (scheduler/access/invitations.h); empty: there are none.
  std::filesystem::path invitations;
  // Reads a page of the log of a run, or of a node in it (Ledger::read_log).
  std::function<LogPage(uint64_t run, const std::string& node, uint64_t after)> read_log;
  std::function<std::vector<std::string>(uint64_t run)> nodes_with_log;  // Ledger::nodes_with_log
  Planner::Work plan = carry_out;  // makes a plan, on the planner's thread
  // Called about once a second by the thread of run(), to keep a history of the pool. It must be quick.
  std::function<void(const Core&)> observe;
};

class Server {
 public:
  // Binds the sockets. Throws UsageError if `listen` is not an address, or if other machines can reach it and
  // there are neither keys nor `insecure`.
  explicit Server(const ServerOptions& options);

  const std::string& endpoint() const { return socket_.endpoint(); }
  uint16_t data_port() const { return data_ ? data_->port() : uint16_t{0}; }
  // Works until request_stop(). Throws what `persist` throws; nothing that follows from these changes was
  // sent then.
  void run();
  void request_stop();  // async-signal-safe

  // For other threads of this process, while run() works. They wait until the thread of run() has done what they ask
  // for; Error if run() ends before, or is too busy.
  //
  // Handles the message as if a client had sent it, and returns the answer.
  comm::control::FromSchedulerMessage ask(const comm::Identity& sender,
                                          comm::control::ToSchedulerMessage message);
  template <class Result>
  Result look(std::function<Result(const Core&)> at) {
    return errands_.run<Result>([this, at = std::move(at)] { return at(core_); });
  }

 private:
  std::string why_not_submitted(const Received& received) const;
  void read_messages(double wait);
  comm::control::FromSchedulerMessage answer(const comm::Identity& sender,
                                             comm::control::ToSchedulerMessage message);
  void carry_out(double now);
  void update_store();  // which files it must keep, and who may fetch which
  void act(double now, Action& action);
  std::string why_not_let_in(const LetIn& asked);
  comm::control::FromSchedulerMessage answer_about_log(const ReadLog& asked) const;
  comm::control::FromSchedulerMessage read_log(const ReadLog& asked) const;

  comm::control::ServerSocket socket_;
  const bool is_local_;  // only this machine can reach the socket
  StorePolicy policy_;
  const std::filesystem::path allow_list_;
  std::optional<Invitations> invitations_;
  std::unique_ptr<comm::DataServer> data_;  // null: no store
  WakeEvent wake_;                          // set when a plan is ready, or by request_stop()
  std::atomic<bool> stop_{false};
  const std::function<void(const Records&)> persist_;
  const std::function<LogPage(uint64_t run, const std::string& node, uint64_t after)> read_log_;
  const std::function<std::vector<std::string>(uint64_t run)> nodes_with_log_;
  Core core_;
  Turns<Received> waiting_;                   // messages that were read
  double tick_;                               // seconds between two Ticks of the core
  double last_update_ = 0, next_update_ = 0;  // when the store was told last, and when it may be told again
  bool store_lags_ = false;                   // it has to be told
  Errands errands_;
  std::optional<comm::control::FromSchedulerMessage> inner_answer_;  // to the message that answer() handles
  std::exception_ptr failure_;                                       // of answer(), with which run() ends
  const std::function<void(const Core&)> observe_;
  Planner planner_;
};

}  // namespace modelet::scheduler
