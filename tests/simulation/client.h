// Client: a command of a user. It submits a run, watches it, reconnects when its connection is lost, and may
// ask for a stop. A client without a run is an administrator, who drains nodes.
#pragma once

#include <optional>
#include <string>

#include "tests/simulation/network.h"

namespace modelet::simulation {

class Pool;

class Client : public ControlEnd {
 public:
  Client(Pool& pool, int machine) : ControlEnd(pool_world(pool), machine), pool_(pool) {}

  void start(std::optional<msg::SubmitT> submit = {});
  void stop();
  void drain(const std::string& node, bool is_drained);

  bool is_done() const { return is_done_; }
  uint64_t run() const { return run_; }
  bool has_stopped() const { return stops_; }

  void kill() override;
  void connected() override;
  void received(const msg::FromSchedulerMessage& message) override;

 private:
  static World& pool_world(Pool& pool);
  void send(msg::ToSchedulerMessage message);

  Pool& pool_;
  std::optional<msg::SubmitT> submit_;
  uint64_t run_ = 0;
  bool stops_ = false, is_done_ = false;
};

}  // namespace modelet::simulation
