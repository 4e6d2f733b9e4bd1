#include "scheduler/server.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "comm/endpoint.h"

namespace modelet::scheduler {
namespace {

// Seconds: who watches a run hears of it once a second, however rarely the agents beat.
constexpr double kLongestTick = 1;

const std::string& checked_endpoint(const ServerOptions& options) {
  comm::check_endpoint(options.listen, true);
  comm::require_loopback(options.listen, options.keys.has_value(), options.insecure,
                         "the scheduler's address", "--key FILE and --allow-list FILE");
  return options.listen;
}

CoreOptions with_data_port(CoreOptions options, const DataServer* data) {
  options.data_port = data == nullptr ? uint16_t{0} : data->port();
  return options;
}

}  // namespace

Server::Server(const ServerOptions& options)
    : socket_(checked_endpoint(options), options.keys),
      data_(options.data ? std::make_unique<DataServer>(*options.data, socket_.endpoint(), options.keys)
                         : nullptr),
      core_(with_data_port(options.core, data_.get())),
      tick_(std::min(options.core.heartbeat, kLongestTick)) {
  if (!comm::is_loopback(endpoint()) && !options.keys)
    log_warning(
        "{} can be reached from other machines: connections are neither encrypted nor authenticated, anybody "
        "there can "
        "run jobs and read data; for closed test networks only",
        endpoint());
}

void Server::run() {
  const SteadyClock clock;
  double next_tick = clock.now();
  while (!stop_.is_set()) {
    // Everything that has arrived is read before time passes: a busy scheduler must not take a waiting
    // heartbeat for a dead agent.
    const double wait = std::max(0.0, next_tick - clock.now());
    if (auto received = socket_.receive(wait, stop_.fd())) {
      handle(clock.now(),
             Received{std::move(received->peer), std::move(received->message), std::move(received->sender)});
      if (clock.now() < next_tick + tick_) continue;
    }
    if (clock.now() < next_tick) continue;
    next_tick = clock.now() + tick_;
    handle(clock.now(), Tick{});
    if (data_) data_->keep(core_.data_in_use());
  }
}

void Server::handle(double now, const Event& event) {
  for (Action& action : core_.handle(now, event)) {
    if (auto* line = std::get_if<Log>(&action)) {
      log_info("{}", line->text);
      continue;
    }
    auto& [peer, message] = std::get<Send>(action);
    if (socket_.send(peer, std::move(message)) != comm::control::ServerSocket::Sent::kQueued)
      core_.handle(now, PeerGone{peer});
  }
}

void Server::request_stop() { stop_.set(); }

}  // namespace modelet::scheduler
