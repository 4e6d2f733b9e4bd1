#include "comm/transport/zmq.h"

#include <poll.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
#include <zmq.hpp>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#include "base/error.h"
#include "base/parallel/short_slice.h"
#include "base/system/clock.h"
#include "base/system/wake_event.h"
#include "comm/security/curve.h"
#include "comm/transport/endpoint.h"

namespace modelet::comm {
namespace {

// Seconds between two looks at the connections: while nothing arrives, and while something does.
constexpr double kLookSeconds = 0.02, kLookWhileBusySeconds = 0.5;

// Milliseconds. kDeadAfter: how long a connection may show no sign of life. kAsk: how often it is asked for
// one, because a connection that the other end has forgotten is noticed only when something is sent.
constexpr int kDeadAfter = 10'000, kAsk = 2000;
constexpr int kReconnect = 10, kLongestReconnect = 1000;  // until the next attempt

// With which a rank's messages begin where there are no keys.
std::string name_of(uint64_t run, uint32_t epoch, int rank) {
  return fmt::format("{:016x}/{}/{}", run, epoch, rank);
}

// The message parts of a frame: keeps received memory alive without copying it.
class Parts final : public Recyclable {
 public:
  zmq::message_t envelope, payload;

 private:
  void clear() noexcept override {
    envelope.rebuild();
    payload.rebuild();
  }
};

// A message is handed to ZeroMQ's thread, which later lets go of it. ZeroMQ orders the two, in code that
// the thread sanitizer does not see (tests/tsan.supp), so these functions tell it.
#ifdef __SANITIZE_THREAD__
void hand_over(void* message) { __tsan_release(message); }
void take_over(void* message) { __tsan_acquire(message); }
#else
void hand_over(void*) {}
void take_over(void*) {}
#endif

// A part of a message for ZeroMQ to send. The bytes stay in `message`, which is let go of when they have
// left. This is cheaper than a copy at any size: 28 ns, where copying takes 31 ns for an envelope and 110
// ns for 8 KiB.
zmq::message_t part_of(const RecycledPtr<Message>& message, std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  zmq::message_t part(
      const_cast<std::byte*>(bytes.data()), bytes.size(),
      [](void*, void* owner) {
        take_over(owner);
        static_cast<Message*>(owner)->release();
      },
      message.get());
  message->retain();
  hand_over(message.get());
  return part;
}

std::span<const std::byte> bytes(const zmq::message_t& part) {
  return {static_cast<const std::byte*>(part.data()), part.size()};
}

// The first socket of a context, which starts ZeroMQ's thread.
zmq::socket_t make_receiver(zmq::context_t& context) {
  const ShortSlice of_its_thread;
  return {context, zmq::socket_type::pull};
}

}  // namespace

class ZmqTransport::Impl {
 public:
  using ConnectionHandler = Transport::ConnectionHandler;
  using Connection = Transport::Connection;

  explicit Impl(const ZmqOptions& options) : options_(options), receiver_(make_receiver(context_)) {
    receiver_.set(zmq::sockopt::rcvhwm, options.queue_messages);
    receiver_.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(options.max_message_bytes));
    if (options.curve) {
      own_keys_ = make_key_pair();
      self_.public_key = own_keys_->public_key;
      use_curve_server(receiver_, *own_keys_);
      gate_ = std::make_unique<Authenticator>(context_, receiver_, "data socket");
    }
    listen_at(receiver_, options.bind);
    self_.endpoint = receiver_.get(zmq::sockopt::last_endpoint);
    if (self_.endpoint.starts_with("tcp://0.0.0.0:") || self_.endpoint.starts_with("tcp://[::]:"))
      throw UsageError(options.bind +
                       ": listens on every address; name the one at which peers reach this machine");
  }

  ~Impl() { unlink_socket(self_.endpoint); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Peer& self() const { return self_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(senders_.size()); }
  uint64_t dropped_messages() const { return dropped_; }

  void interrupt(const std::string& reason) {
    const std::lock_guard lock(interrupt_mutex_);
    if (interrupt_.is_set()) return;
    interrupt_reason_ = reason;
    interrupt_.set();
  }

  void connect(int rank, std::span<const Peer> ranks, uint64_t run, uint32_t epoch) {
    const int size = static_cast<int>(ranks.size());
    MODELET_CHECK(rank_ < 0, "connect() twice");
    MODELET_CHECK(rank >= 0 && rank < size);
    own_name_ = name_of(run, epoch, rank);
    for (int peer = 0; peer < size; ++peer) {
      const bool other = peer != rank;
      const Peer& where = ranks[static_cast<size_t>(peer)];
      senders_.push_back(other ? sender_to(peer, where) : zmq::socket_t());
      names_.push_back(!other ? std::string() : gate_ ? where.public_key : name_of(run, epoch, peer));
    }
    if (gate_) {
      ConnectionLimits limits;
      limits.silent_of_address += ranks.size();  // all ranks may be behind one address, and may send later
      gate_->open(limits, [keys = names_](const std::string& key) {
        const bool is_of_rank = std::find(keys.begin(), keys.end(), key) != keys.end();
        return Authenticator::Verdict{.why_not = is_of_rank ? "" : "it is of no rank of this run"};
      });
    }
    rank_ = rank;
  }

  void send(std::span<const int> to, const RecycledPtr<Message>& message) {
    if (options_.sending) wait_for_the_link(to.size() * (message->envelope.size() + message->payload.size()));
    zmq::message_t envelope = part_of(message, message->envelope),
                   payload = part_of(message, message->payload);
    for (const int rank : to) {
      MODELET_CHECK(rank >= 0 && rank < size() && rank != rank_);
      zmq::socket_t& socket = senders_[static_cast<size_t>(rank)];
      constexpr auto kNow = zmq::send_flags::dontwait;
      bool sent = gate_ || socket.send(zmq::buffer(own_name_), kNow | zmq::send_flags::sndmore).has_value();
      zmq::message_t copy;  // shares the bytes of the original
      copy.copy(envelope);
      sent = sent && socket.send(copy, kNow | zmq::send_flags::sndmore).has_value();
      copy.copy(payload);
      sent = sent && socket.send(copy, kNow).has_value();
      if (sent) continue;
      look_at_connections();
      throw PeerError(rank, fmt::format("rank {} has left {} messages unread or is not connected", rank,
                                        options_.queue_messages));
    }
  }

  ConnectionHandler when_connections_change(ConnectionHandler handler) {
    return std::exchange(handler_, std::move(handler));
  }

  bool receive(double timeout_seconds, Frame& frame) {
    const double deadline = clock_.now() + timeout_seconds;
    while (true) {
      throw_if_interrupted();
      const double now = clock_.now();
      if (now - looked_ > kLookWhileBusySeconds) look_at_connections();
      if (take(frame)) return true;
      const double left = deadline - now;
      if (left <= 0) return false;
      if (!wait(std::min(left, kLookSeconds))) look_at_connections();
    }
  }

 private:
  // The connection over which this rank sends to a peer.
  struct Link {
    int peer = -1;
    HandshakeMonitor monitor;
    bool has_ended = false;  // it has ended and is not back yet
  };

  void wait_for_the_link(size_t bytes) {
    const double until = clock_.now() + options_.sending->take(bytes, clock_.now());
    for (double left = 0; (left = until - clock_.now()) > 0;) {
      throw_if_interrupted();
      pollfd interrupted{interrupt_.fd(), POLLIN, 0};
      const double milliseconds = std::ceil(std::min(left, kLookSeconds) * 1000);
      ::poll(&interrupted, 1, static_cast<int>(milliseconds));
    }
  }

  void throw_if_interrupted() {
    if (!interrupt_.is_set()) return;
    const std::lock_guard lock(interrupt_mutex_);
    throw Interrupted(interrupt_reason_);
  }

  // Throws if a peer refuses this rank: nothing will ever come from it.
  void look_at_connections() {
    looked_ = clock_.now();
    for (Link& link : links_)
      while (const auto event = link.monitor.next()) note(link, event->kind);
  }

  void note(Link& link, HandshakeMonitor::Kind what) {
    using enum HandshakeMonitor::Kind;
    if (what == kEnded) {
      link.has_ended = true;
      if (handler_) handler_(link.peer, Connection::kEnded);
    } else if (what == kSucceeded && std::exchange(link.has_ended, false)) {
      if (handler_) handler_(link.peer, Connection::kBack);
    }
    if (what != kRefused && what != kOtherSecurity) return;
    throw PeerError(
        link.peer,
        fmt::format("rank {} refuses this rank: {}", link.peer,
                    what == kRefused
                        ? fmt::format("it does not take the key {} for one of this run's ranks: see its log",
                                      self_.public_key)
                        : "one of both uses keys, the other does not; give all agents keys, or none"));
  }

  zmq::socket_t sender_to(int peer, const Peer& where) {
    if (where.public_key.empty() == own_keys_.has_value())
      throw Error(fmt::format("rank {} at {} uses {} keys, this rank {}: give all agents keys, or none", peer,
                              where.endpoint, own_keys_ ? "no" : "has", own_keys_ ? "does" : "does not"));
    zmq::socket_t socket(context_, zmq::socket_type::push);
    if (own_keys_)
      use_curve_client(socket, *own_keys_, parse_key(where.public_key, fmt::format("key of rank {}", peer)));
    links_.push_back({peer, HandshakeMonitor(context_, socket, HandshakeMonitor::Side::kClient)});
    socket.set(zmq::sockopt::sndhwm, options_.queue_messages);
    socket.set(zmq::sockopt::linger, static_cast<int>(options_.linger_seconds * 1000));
    socket.set(zmq::sockopt::heartbeat_ivl, kAsk);
    socket.set(zmq::sockopt::heartbeat_timeout, kDeadAfter);
    socket.set(zmq::sockopt::tcp_maxrt, kDeadAfter);
    socket.set(zmq::sockopt::reconnect_ivl, kReconnect);
    socket.set(zmq::sockopt::reconnect_ivl_max, kLongestReconnect);
    try {
      connect_to(socket, where.endpoint);
    } catch (const Error& error) {
      throw Error(fmt::format("rank {}: {}", peer, error.what()));
    }
    return socket;
  }

  // Takes the next message, if there is one. Also false if the message was dropped because its sender is no
  // peer.
  bool take(Frame& frame) {
    RecycledPtr<Parts> parts = parts_.take();
    zmq::message_t name, rest;
    const std::array<zmq::message_t*, 3> places{&name, &parts->envelope, &parts->payload};
    size_t place = gate_ ? 1 : 0;
    if (!receiver_.recv(*places[place], zmq::recv_flags::dontwait)) return false;
    bool more = places[place]->more(), too_many = false;
    while (more) {
      too_many = too_many || ++place == places.size();
      zmq::message_t& part = too_many ? rest : *places[place];
      // The parts of a message arrive together, so this does not wait.
      MODELET_CHECK(receiver_.recv(part, zmq::recv_flags::dontwait).has_value());
      more = part.more();
    }
    const bool whole = !too_many && place + 1 == places.size();
    if (whole && gate_) gate_->has_read(parts->payload, parts->envelope.size() + parts->payload.size());
    const auto sender = std::find(names_.begin(), names_.end(),
                                  gate_ ? sender_of(parts->envelope).key : name.to_string_view());
    if (!whole || sender == names_.end() || sender->empty()) {
      ++dropped_;
      return false;
    }
    if (options_.sending) options_.sending->arrived(parts->envelope.size() + parts->payload.size());
    frame.from = static_cast<int>(sender - names_.begin());
    frame.envelope = bytes(parts->envelope);
    frame.payload = bytes(parts->payload);
    frame.owner = std::move(parts);
    return true;
  }

  // False if nothing happened.
  bool wait(double seconds) {
    zmq::pollitem_t items[] = {{receiver_.handle(), 0, ZMQ_POLLIN, 0},
                               {nullptr, interrupt_.fd(), ZMQ_POLLIN, 0}};
    const auto milliseconds = static_cast<long>(std::min(seconds, 3600.0) * 1000) + 1;
    try {
      return zmq::poll(items, std::size(items), std::chrono::milliseconds(milliseconds)) > 0;
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;  // a signal handler ran
      return true;
    }
  }

  ZmqOptions options_;
  WakeEvent interrupt_;
  std::mutex interrupt_mutex_;
  std::string interrupt_reason_;
  zmq::context_t context_ = make_context();
  std::optional<KeyPair> own_keys_;
  std::unique_ptr<Authenticator> gate_;  // must outlive the receiver (Authenticator says why); null: no keys
  zmq::socket_t receiver_;
  Peer self_;
  int rank_ = -1;
  std::string own_name_;
  std::vector<std::string> names_;      // [size] public keys; without keys, name_of(); own entry empty
  std::vector<zmq::socket_t> senders_;  // [size]; own entry unused
  std::vector<Link> links_;
  ConnectionHandler handler_;
  SteadyClock clock_;
  double looked_ = clock_.now();  // when the connections were last looked at
  Recycler<Parts> parts_;
  uint64_t dropped_ = 0;
};

ZmqTransport::ZmqTransport(const ZmqOptions& options) : impl_(std::make_unique<Impl>(options)) {}
ZmqTransport::~ZmqTransport() = default;
const Peer& ZmqTransport::self() const { return impl_->self(); }
void ZmqTransport::connect(int rank, std::span<const Peer> ranks, uint64_t run, uint32_t epoch) {
  impl_->connect(rank, ranks, run, epoch);
}
int ZmqTransport::rank() const { return impl_->rank(); }
int ZmqTransport::size() const { return impl_->size(); }
void ZmqTransport::send(std::span<const int> to, const RecycledPtr<Message>& message) {
  impl_->send(to, message);
}
bool ZmqTransport::receive(double timeout_seconds, Frame& frame) {
  return impl_->receive(timeout_seconds, frame);
}
void ZmqTransport::interrupt(const std::string& reason) { impl_->interrupt(reason); }
Transport::ConnectionHandler ZmqTransport::when_connections_change(ConnectionHandler handler) {
  return impl_->when_connections_change(std::move(handler));
}
uint64_t ZmqTransport::dropped_messages() const { return impl_->dropped_messages(); }

}  // namespace modelet::comm
