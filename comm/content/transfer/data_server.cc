#include "comm/content/transfer/data_server.h"

#include <utility>

#include "base/system/log.h"
#include "comm/transport/endpoint.h"

namespace modelet::comm {
namespace {

namespace msg = control;

constexpr double kTurn = 1;  // seconds between two ticks of the core

}  // namespace

std::string data_endpoint(const std::string& listen, uint16_t port) {
  const std::string endpoint = msg::with_port(listen.c_str(), port).endpoint;
  return port != 0 ? endpoint : endpoint.substr(0, endpoint.rfind(':')) + ":*";
}

DataServer::DataServer(const DataServerOptions& options, const std::string& endpoint,
                       const std::optional<msg::ServerKeys>& keys)
    : core_(options), socket_(endpoint, keys, msg::Traffic::kChunks), thread_([this] { run(); }) {}

DataServer::~DataServer() {
  stop_.set();
  thread_.join();
  unlink_socket(socket_.endpoint());
}

uint16_t DataServer::port() const {
  const std::string& endpoint = socket_.endpoint();
  return static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
}

void DataServer::keep(std::map<std::string, std::string> addresses, std::set<std::string> remove_last) {
  const std::lock_guard lock(mutex_);
  to_keep_ = std::move(addresses);
  to_remove_last_ = std::move(remove_last);
}

void DataServer::close(const std::vector<std::string>& addresses) {
  const std::lock_guard lock(mutex_);
  to_close_.insert(to_close_.end(), addresses.begin(), addresses.end());
}

void DataServer::run() {
  double next_turn = 0;
  while (!stop_.is_set()) {
    const auto received = socket_.receive(core_.has_work() ? 0 : kTurn, stop_.fd());
    {
      const std::lock_guard lock(mutex_);
      if (auto addresses = std::exchange(to_keep_, std::nullopt))
        core_.keep(std::move(*addresses), std::move(to_remove_last_));
      core_.close(std::exchange(to_close_, {}));
    }
    if (received) send(core_.handle(clock_.now(), *received));
    send(core_.work());
    if (clock_.now() < next_turn) continue;
    next_turn = clock_.now() + kTurn;
    send(core_.tick(clock_.now()));
  }
}

void DataServer::send(DataCore::Replies replies) {
  for (auto& [peer, message] : replies) {
    const auto* wanted = std::get_if<msg::WantedT>(&message);
    const std::string missing_of = wanted != nullptr ? wanted->data : "";
    const auto sent = socket_.send(peer, std::move(message));
    if (sent == msg::ServerSocket::Sent::kGone) core_.gone(peer);
    if (sent != msg::ServerSocket::Sent::kFull) continue;
    if (!missing_of.empty()) {
      core_.undelivered(peer, missing_of);
    } else if (dropped_.next()) {  // the peer asks for more at once than it reads
      log_warning("dropped an answer about data: the peer does not read (number {})", dropped_.count());
    }
  }
}

}  // namespace modelet::comm
