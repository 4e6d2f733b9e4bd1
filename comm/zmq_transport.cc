#include "comm/zmq_transport.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <vector>
#include <zmq.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/wake_event.h"

namespace modelet::comm {
namespace {

std::string routing_id(uint64_t run, uint32_t epoch, int rank) {
  return fmt::format("{:016x}/{}/{}", run, epoch, rank);
}

// The message parts of a frame: keeps received memory alive without copying it.
struct Parts {
  zmq::message_t envelope, payload;
};

std::span<const std::byte> bytes(const zmq::message_t& part) {
  return {static_cast<const std::byte*>(part.data()), part.size()};
}

}  // namespace

class ZmqTransport::Impl {
 public:
  explicit Impl(const ZmqOptions& options) : options_(options), router_(context_, zmq::socket_type::router) {
    router_.set(zmq::sockopt::rcvhwm, options.queue_messages);
    router_.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(options.max_message_bytes));
    router_.set(zmq::sockopt::linger, 0);  // it never sends
    try {
      router_.bind(options.bind);
    } catch (const zmq::error_t& error) {
      throw Error(fmt::format("{}: cannot listen: {}", options.bind, error.what()));
    }
    endpoint_ = router_.get(zmq::sockopt::last_endpoint);
    if (endpoint_.starts_with("tcp://0.0.0.0:") || endpoint_.starts_with("tcp://[::]:"))
      throw UsageError(options.bind +
                       ": listens on every address; name the one at which peers reach this machine");
  }

  const std::string& endpoint() const { return endpoint_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(dealers_.size()); }
  uint64_t dropped_messages() const { return dropped_; }

  void interrupt(const std::string& reason) {
    const std::lock_guard lock(interrupt_mutex_);
    if (interrupt_.is_set()) return;
    interrupt_reason_ = reason;
    interrupt_.set();
  }

  void connect(int rank, std::span<const std::string> endpoints, uint64_t run, uint32_t epoch) {
    const int size = static_cast<int>(endpoints.size());
    MODELET_CHECK(rank_ < 0, "connect() twice");
    MODELET_CHECK(rank >= 0 && rank < size);
    const std::string own_id = routing_id(run, epoch, rank);
    for (int peer = 0; peer < size; ++peer) {
      ids_.push_back(peer == rank ? std::string() : routing_id(run, epoch, peer));
      dealers_.push_back(peer == rank ? zmq::socket_t()
                                      : dealer(own_id, peer, endpoints[static_cast<size_t>(peer)]));
    }
    rank_ = rank;
  }

  void send(int to, std::span<const std::byte> envelope, std::span<const std::byte> payload) {
    MODELET_CHECK(to >= 0 && to < size() && to != rank_);
    zmq::socket_t& socket = dealers_[static_cast<size_t>(to)];
    constexpr auto kNow = zmq::send_flags::dontwait;
    if (!socket.send(zmq::buffer(envelope.data(), envelope.size()), kNow | zmq::send_flags::sndmore))
      throw PeerError(to, fmt::format("rank {} has left {} messages unread or is not connected", to,
                                      options_.queue_messages));
    // ZeroMQ takes all parts of a message or none.
    MODELET_CHECK(socket.send(zmq::buffer(payload.data(), payload.size()), kNow).has_value());
  }

  bool receive(double timeout_seconds, Frame& frame) {
    const SteadyClock clock;
    const double deadline = clock.now() + timeout_seconds;
    while (true) {
      throw_if_interrupted();
      if (take(frame)) return true;
      const double left = deadline - clock.now();
      if (left <= 0) return false;
      wait(left);
    }
  }

 private:
  void throw_if_interrupted() {
    if (!interrupt_.is_set()) return;
    const std::lock_guard lock(interrupt_mutex_);
    throw Interrupted(interrupt_reason_);
  }

  zmq::socket_t dealer(const std::string& own_id, int peer, const std::string& endpoint) {
    zmq::socket_t socket(context_, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::routing_id, own_id);
    socket.set(zmq::sockopt::sndhwm, options_.queue_messages);
    socket.set(zmq::sockopt::linger, static_cast<int>(options_.linger_seconds * 1000));
    try {
      socket.connect(endpoint);
    } catch (const zmq::error_t& error) {
      throw Error(fmt::format("rank {}: cannot connect to \"{}\": {}", peer, endpoint, error.what()));
    }
    return socket;
  }

  // Takes the next message, if there is one; false also if it was dropped because its sender is no peer.
  bool take(Frame& frame) {
    zmq::message_t id;
    if (!router_.recv(id, zmq::recv_flags::dontwait)) return false;
    auto parts = std::make_shared<Parts>();
    const bool whole = take_parts(*parts);
    const auto sender = std::find(ids_.begin(), ids_.end(), id.to_string_view());
    if (!whole || sender == ids_.end()) {
      ++dropped_;
      return false;
    }
    frame.from = static_cast<int>(sender - ids_.begin());
    frame.envelope = bytes(parts->envelope);
    frame.payload = bytes(parts->payload);
    frame.owner = std::move(parts);
    return true;
  }

  // Reads what follows the routing id; false unless it is exactly two parts.
  bool take_parts(Parts& parts) {
    int count = 0;
    for (bool more = true; more; ++count) {
      zmq::message_t rest;
      zmq::message_t& part = count == 0 ? parts.envelope : count == 1 ? parts.payload : rest;
      // The parts of a message arrive together, so this does not wait.
      MODELET_CHECK(router_.recv(part, zmq::recv_flags::dontwait).has_value());
      more = part.more();
    }
    return count == 2;
  }

  void wait(double seconds) {
    zmq::pollitem_t items[] = {{router_.handle(), 0, ZMQ_POLLIN, 0},
                               {nullptr, interrupt_.fd(), ZMQ_POLLIN, 0}};
    const auto milliseconds = static_cast<long>(std::min(seconds, 3600.0) * 1000) + 1;
    try {
      zmq::poll(items, std::size(items), std::chrono::milliseconds(milliseconds));
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;  // a signal handler ran
    }
  }

  ZmqOptions options_;
  WakeEvent interrupt_;
  std::mutex interrupt_mutex_;
  std::string interrupt_reason_;
  zmq::context_t context_;
  zmq::socket_t router_;
  std::string endpoint_;
  int rank_ = -1;
  std::vector<std::string> ids_;        // [size] routing ids; own entry empty, which no socket can have
  std::vector<zmq::socket_t> dealers_;  // [size]; own entry unused
  uint64_t dropped_ = 0;
};

ZmqTransport::ZmqTransport(const ZmqOptions& options) : impl_(std::make_unique<Impl>(options)) {}
ZmqTransport::~ZmqTransport() = default;
const std::string& ZmqTransport::endpoint() const { return impl_->endpoint(); }
void ZmqTransport::connect(int rank, std::span<const std::string> endpoints, uint64_t run, uint32_t epoch) {
  impl_->connect(rank, endpoints, run, epoch);
}
int ZmqTransport::rank() const { return impl_->rank(); }
int ZmqTransport::size() const { return impl_->size(); }
void ZmqTransport::send(int to, std::span<const std::byte> envelope, std::span<const std::byte> payload) {
  impl_->send(to, envelope, payload);
}
bool ZmqTransport::receive(double timeout_seconds, Frame& frame) {
  return impl_->receive(timeout_seconds, frame);
}
void ZmqTransport::interrupt(const std::string& reason) { impl_->interrupt(reason); }
uint64_t ZmqTransport::dropped_messages() const { return impl_->dropped_messages(); }

}  // namespace modelet::comm
