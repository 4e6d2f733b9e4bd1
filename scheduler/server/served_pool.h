// ServedPool: the pool of a Server as a page shows it (scheduler/dashboard/pool_view.h). Each question is answered by
// the server's thread, like one of a client, so the page sees and does what an administrator's client could; the router
// has checked the token. The state of the pool is made at most twice a second, whoever asks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "base/system/clock.h"
#include "scheduler/core/core.h"
#include "scheduler/dashboard/history.h"
#include "scheduler/dashboard/pool_view.h"
#include "scheduler/server/server.h"

namespace modelet::scheduler {

class ServedPool : public PoolView {
 public:
  // The folder of the store, if there is one, and its limit.
  ServedPool(bool keeps_state, std::filesystem::path store, uint64_t store_most_bytes);

  // ServerOptions::observe of the server that is shown.
  void observe(const Core& core);
  // The server, which must outlive the threads that call the functions below. Call this before they start.
  void show(Server& server) { server_ = &server; }

  std::shared_ptr<const PoolState> pool() override;
  NodeHistory history() override { return history_.get(); }
  RunDetails run(uint64_t run) override;
  comm::control::RunLogT events(uint64_t run, uint64_t after) override;
  comm::control::RunLogT log(uint64_t run, const std::string& node, uint64_t after) override;
  void drain(const comm::http::Token* by, const std::string& node, bool drain) override;
  void stop(const comm::http::Token* by, uint64_t run) override;

 private:
  template <class Answer>
  Answer look_for(comm::control::ToSchedulerMessage question);
  void act(const comm::http::Token* by, comm::control::ToSchedulerMessage message, const std::string& what);
  std::shared_ptr<const PoolState> make_state();
  uint64_t store_bytes();

  Server* server_ = nullptr;
  const bool keeps_state_;
  const std::filesystem::path store_;
  const uint64_t store_most_bytes_;
  const std::string started_;
  const SteadyClock clock_;
  History history_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::shared_ptr<const PoolState> state_;
  double state_at_ = 0, store_measured_at_ = 0;
  uint64_t store_bytes_ = 0;
};

}  // namespace modelet::scheduler
