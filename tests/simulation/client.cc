#include "tests/simulation/client.h"

#include "tests/simulation/pool.h"

namespace modelet::simulation {

World& Client::pool_world(Pool& pool) { return pool.world; }

void Client::start(std::optional<msg::SubmitT> submit) {
  born();
  submit_ = std::move(submit);
  is_done_ = !submit_;
  pool_.network.connect(*this);
}

void Client::send(msg::ToSchedulerMessage message) { pool_.network.send(*this, std::move(message)); }

void Client::connected() {
  if (is_done_) return;
  if (run_ == 0) return send(*submit_);
  send(msg::WatchT{{}, run_});
  if (stops_) send(msg::StopRunT{{}, run_});
}

void Client::received(const msg::FromSchedulerMessage& message) {
  if (const auto* accepted = std::get_if<msg::AcceptedT>(&message); accepted && run_ == 0) {
    run_ = accepted->run;
    pool_.promises.accepted(submit_->name, run_);
    connected();
  }
  if (const auto* status = std::get_if<msg::RunStatusT>(&message); status && status->run == run_)
    is_done_ = is_done_ || scheduler::has_ended(status->state);
  if (const auto* refused = std::get_if<msg::RefusedT>(&message); refused && !is_done_)
    pool_.world.violated("a client is refused: " + refused->reason);
}

// A user would start the command again at once, which looks to the pool like a new connection.
void Client::kill() { pool_.network.reset(*this); }

void Client::stop() {
  stops_ = true;
  if (run_ != 0 && !is_done_) send(msg::StopRunT{{}, run_});
}

void Client::drain(const std::string& node, bool is_drained) { send(msg::DrainNodeT{{}, node, is_drained}); }

}  // namespace modelet::simulation
