#include "comm/control/control.h"

#include <netinet/in.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "base/error.h"
#include "base/system/log.h"
#include "comm/content/content.h"
#include "comm/security/curve.h"
#include "comm/transport/endpoint.h"
#include "comm/wire/aligned_copy.h"

namespace modelet::comm::control {
namespace {

constexpr char kToSchedulerIdentifier[] = "MCTS";
constexpr char kFromSchedulerIdentifier[] = "MCFS";
constexpr int kTransportHeartbeat = 2000;  // ms; with it ZeroMQ notices half-open connections
constexpr int kDeadAfter = 2 * kTransportHeartbeat,
              kDeadAfterWithChunks = 60'000;  // ms without a whole message
// Messages that may wait for a peer. A peer that does not read loses the others.
constexpr int kQueuedMessages = 10'000, kQueuedChunks = 8;
constexpr size_t kMaxChunkMessage = kLargestChunk + (64 << 10);  // also enough for a manifest
constexpr size_t kBytesOfEncryption = 64;                        // CURVE adds 33 bytes to a message
constexpr double kLongestSilence = 60;                           // seconds, of a new connection
constexpr size_t kMostOfStranger = 8 << 10;                      // bytes of a message; a Register has some hundred
constexpr size_t kRoutingIdBytes = 5;                            // that ZeroMQ gives: 0 and a number
constexpr int kReconnectFirst = 100, kReconnectLast = 1000;      // ms

size_t largest_message(Traffic traffic) {
  return traffic == Traffic::kChunks ? kMaxChunkMessage : kMaxControlBytes;
}

// The large messages that an agent gets without a question. An agent that is refused ends.
bool is_for_agent(const FromSchedulerMessage& message) {
  return std::holds_alternative<PrepareT>(message) || std::holds_alternative<StartT>(message) ||
         std::holds_alternative<AdmitT>(message);
}

// The version in which this message got its present meaning.
template <class FirstOf10, class Message>
uint16_t version_of(const Message& message) {
  return message.index() < Message(FirstOf10{}).index() ? kOldestControlVersion : kControlVersion;
}

template <class Root, class Message>
std::string encode_root(Message message, const char* identifier, uint16_t version) {
  typename Root::NativeTableType root;
  root.version = version;
  std::visit([&root](auto&& body) { root.body.Set(std::move(body)); }, std::move(message));
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(Root::Pack(builder, &root), identifier);
  return {reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize()};
}

// The members of the union have the numbers 1, 2, ... in the order of the variant's alternatives.
template <class Message, class Union, size_t... kIndex>
Message take_body(Union& body, std::index_sequence<kIndex...>) {
  Message message;
  const auto take = [&]<size_t kI>(std::integral_constant<size_t, kI>) {
    using Body = std::variant_alternative_t<kI, Message>;
    if (static_cast<size_t>(body.type) == kI + 1) message = std::move(*static_cast<Body*>(body.value));
  };
  (take(std::integral_constant<size_t, kIndex>{}), ...);
  return message;
}

// Limits the bytes that a message unpacks into. Strings, and whole vectors of strings, may share their
// bytes in a message, so without a limit a small message could unpack into any size. A message that shares
// nothing never needs more than four times its bytes.
class UnpackedSize {
 public:
  void add(const flatbuffers::String* text) {
    if (text != nullptr) add(text->size());
  }
  void add(const RunStatus* run) {
    add(run->name());
    add(run->detail());
    add(run->submitter());
    add(run->submitted());
    add(run->node_names());
  }
  void add(const NodeStatus* node) {
    add(node->name());
    add(node->version());
    add(node->why());
    add(node->address());
    add(node->suspended());
    add(node->key());
    add(node->private_data());
  }
  void add(const SnapshotFile* file) {
    add(file->name());
    add(file->holders());
  }
  void add(const Snapshot* snapshot) {
    if (snapshot != nullptr) add(snapshot->files());
  }
  void add(const Holder* holder) {
    add(holder->node());
    add(holder->endpoint());
    add(holder->public_key());
    add(holder->fetch_key());
  }
  template <class Element>
  void add(const flatbuffers::Vector<flatbuffers::Offset<Element>>* list) {
    if (list == nullptr) return;
    if constexpr (requires { typename Element::NativeTableType; })
      add(list->size() * sizeof(typename Element::NativeTableType));
    else
      add(list->size() * sizeof(std::string));
    for (const Element* element : *list) add(element);
  }

 private:
  void add(size_t bytes) {
    bytes_ += bytes;
    if (bytes_ > 4 * kMaxControlBytes)
      throw FormatError("control message that unpacks into far more than its size");
  }

  size_t bytes_ = 0;
};

void check_unpacked_size(const ToScheduler* root) {
  UnpackedSize size;
  if (const auto* self = root->body_as_Register()) size.add(self->private_data());
  if (const auto* submit = root->body_as_Submit()) {
    size.add(submit->resume_files());
    size.add(submit->resume_tasks());
  }
  if (const auto* held = root->body_as_SnapshotHeld()) size.add(held->files());
}

void check_unpacked_size(const FromScheduler* root) {
  UnpackedSize size;
  if (const auto* prepare = root->body_as_Prepare()) {
    size.add(prepare->node_names());
    size.add(prepare->holders());
    size.add(prepare->snapshot());
  }
  if (const auto* files = root->body_as_RunFiles()) {
    size.add(files->holders());
    size.add(files->snapshots());
  }
  if (const auto* admit = root->body_as_Admit()) size.add(admit->holders());
  if (const auto* start = root->body_as_Start()) {
    size.add(start->endpoints());
    size.add(start->public_keys());
  }
  if (const auto* run = root->body_as_RunStatus()) size.add(run);
  if (const auto* list = root->body_as_RunList()) size.add(list->runs());
  if (const auto* list = root->body_as_NodeList()) size.add(list->nodes());
}

template <class Root, class Message>
Message decode_root(std::span<const std::byte> bytes, const char* identifier) {
  if (bytes.size() > kMaxControlBytes)
    throw FormatError("control message of " + std::to_string(bytes.size()) +
                      " bytes, more than the limit of " + std::to_string(kMaxControlBytes));
  std::vector<uint64_t> memory;
  const std::span<const uint8_t> copy = aligned_copy(bytes, memory);
  constexpr flatbuffers::uoffset_t kMaxDepth = 8, kMaxTables = 1 << 16;  // the files of several snapshots
  flatbuffers::Verifier verifier(copy.data(), copy.size(), kMaxDepth, kMaxTables);
  if (!verifier.VerifyBuffer<Root>(identifier)) throw FormatError("not a well-formed control message");
  const Root* root = flatbuffers::GetRoot<Root>(copy.data());
  if (root->version() < kOldestControlVersion || root->version() > kControlVersion)
    throw VersionError(root->version());
  constexpr size_t kBodies = std::variant_size_v<Message>;
  const auto type = static_cast<size_t>(root->body_type());
  if (type == 0 || type > kBodies || root->body() == nullptr)
    throw FormatError("control message of an unknown kind");
  check_unpacked_size(root);
  typename Root::NativeTableType unpacked;
  root->UnPackTo(&unpacked);
  return take_body<Message>(unpacked.body, std::make_index_sequence<kBodies>{});
}

// Waits until the socket, `other` (if not null) or `wake_fd` is readable. True if the socket has a message.
bool wait_readable(zmq::socket_t& socket, void* other, double timeout_seconds, int wake_fd) {
  std::vector<zmq::pollitem_t> items = {{socket.handle(), 0, ZMQ_POLLIN, 0}};
  if (other != nullptr) items.push_back({other, 0, ZMQ_POLLIN, 0});
  if (wake_fd >= 0) items.push_back({nullptr, wake_fd, ZMQ_POLLIN, 0});
  try {
    zmq::poll(items, std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000)));
  } catch (const zmq::error_t& error) {
    if (error.num() != EINTR) throw;
    return false;
  }
  return (items[0].revents & ZMQ_POLLIN) != 0;
}

std::span<const std::byte> bytes_of(const zmq::message_t& message) {
  return {message.data<std::byte>(), message.size()};
}

// Limits on bytes that wait. One message may arrive while another is read; with chunks, as many as may wait.
// Few chunks wait for a peer, so their bytes need no limit.
ConnectionLimits limits_of(Traffic traffic, bool hears_strangers) {
  if (traffic == Traffic::kChunks)
    return {.silent_seconds = kLongestSilence,
            .unread_bytes = 2 * kQueuedChunks * kMaxChunkMessage,
            .all_unread_bytes = uint64_t{1} << 30};
  ConnectionLimits limits{.silent_seconds = kLongestSilence,
                          .unread_bytes = 2 * kMaxControlBytes,
                          .all_unread_bytes = uint64_t{64} << 20,
                          .unsent_bytes = 8 * kMaxControlBytes,
                          .all_unsent_bytes = uint64_t{1} << 30};
  if (!hears_strangers) return limits;
  // So many that strangers from one address leave half of all bytes to others: 64 connections that are silent, and 256
  // that are not.
  limits.unread_bytes_of_silent = kMaxFirstMessage + (64 << 10);
  limits.unread_bytes_of_stranger = 64 << 10;
  limits.all_unread_bytes = uint64_t{160} << 20;
  return limits;
}

// The port of the other end of a TCP connection; 0: it is none.
uint16_t port_of_peer(int descriptor) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return 0;
  if (peer.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(peer).sin_port);
  if (peer.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(peer).sin6_port);
  return 0;
}

// Returns whether it was set. ZeroMQ may have closed the connection meanwhile, and the number may be another
// connection's by now: that of another server is left alone.
bool set_pacing_rate(int descriptor, const std::string& server, double bytes_per_second) {
  if (!server.ends_with(fmt::format(":{}", port_of_peer(descriptor)))) return false;
  constexpr uint32_t kNoLimit = UINT32_MAX;
  const uint32_t rate =
      bytes_per_second > 0 ? static_cast<uint32_t>(std::min<double>(bytes_per_second, kNoLimit)) : kNoLimit;
  return ::setsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) == 0;
}

void set_common_options(zmq::socket_t& socket, Traffic traffic) {
  const bool chunks = traffic == Traffic::kChunks;
  const int queued = chunks ? kQueuedChunks : kQueuedMessages;
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::sndhwm, queued);
  socket.set(zmq::sockopt::rcvhwm, queued);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(largest_message(traffic)));
  socket.set(zmq::sockopt::heartbeat_ivl, kTransportHeartbeat);
  socket.set(zmq::sockopt::heartbeat_timeout, chunks ? kDeadAfterWithChunks : kDeadAfter);
}

}  // namespace

VersionError::VersionError(uint16_t theirs)
    : FormatError(fmt::format(
          "control message of version {}, this program speaks {} to {}: use releases that follow each other", theirs,
          kOldestControlVersion, kControlVersion)),
      theirs_(theirs) {}

std::string encode(ToSchedulerMessage message) {
  const uint16_t version = version_of<ApproveNodeT>(message);
  return encode_root<ToScheduler>(std::move(message), kToSchedulerIdentifier, version);
}

std::string encode(FromSchedulerMessage message, uint16_t version) {
  if (version == 0) version = version_of<PendingT>(message);
  return encode_root<FromScheduler>(std::move(message), kFromSchedulerIdentifier, version);
}

ToSchedulerMessage decode_to_scheduler(std::span<const std::byte> bytes) {
  return decode_root<ToScheduler, ToSchedulerMessage>(bytes, kToSchedulerIdentifier);
}

FromSchedulerMessage decode_from_scheduler(std::span<const std::byte> bytes) {
  return decode_root<FromScheduler, FromSchedulerMessage>(bytes, kFromSchedulerIdentifier);
}

SchedulerAddress with_port(const SchedulerAddress& scheduler, uint16_t port) {
  const std::string& endpoint = scheduler.endpoint;
  if (!endpoint.starts_with("tcp://"))
    throw UsageError("data is sent over TCP, which '" + endpoint +
                     "' is not: use an address like tcp://127.0.0.1:5570");
  return {endpoint.substr(0, endpoint.rfind(':') + 1) + std::to_string(port), scheduler.keys};
}

// ZeroMQ numbers the connections of a ROUTER from a number on that it takes from rand(), which it does not
// seed. A peer may choose its own id. If that is the next number, ZeroMQ ends the process with an assertion; if
// it is a former number, the peer gets what is meant for another one. So the first number must be one that
// nobody can know, and whoever chooses an id must be noticed. (rand() and random() are one generator, random(3).)
zmq::socket_t make_router(zmq::context_t& context) {
  ::srandom(std::random_device()());
  return {context, zmq::socket_type::router};
}

uint32_t number_of(std::string_view routing_id) {
  uint32_t number = 0;
  for (const char byte : routing_id.substr(1)) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

class ServerSocket::Impl {
 public:
  Impl(const std::string& address, const std::optional<ServerKeys>& keys, Traffic traffic)
      : most_bytes(largest_message(traffic) - kBytesOfEncryption) {
    set_common_options(socket, traffic);
    socket.set(zmq::sockopt::router_mandatory, 1);
    if (keys) lock(*keys);
    first_number = number_of_first();
    gate = std::make_unique<Authenticator>(context, socket, "control socket");
    gate->open(limits_of(traffic, hears_strangers), [this](const std::string& key) { return judge(key); });
    listen_at(socket, address);
    endpoint = socket.get(zmq::sockopt::last_endpoint);
  }

  std::optional<Received> take() {
    std::vector<zmq::message_t> parts;
    size_t bytes = 0;
    do {
      parts.emplace_back();
      if (!socket.recv(parts.back(), zmq::recv_flags::dontwait)) return std::nullopt;
      bytes += parts.back().size();
    } while (parts.back().more());
    const std::string_view id = parts.front().to_string_view();
    if (is_claimed(id)) {
      gate->refuse(parts.back(), "it chooses its own routing id, which Modelet programs do not");
      return std::nullopt;
    }
    Identity sender = identity_of(parts.back());
    const bool is_stranger = sender.role == Role::kNobody;
    if (is_stranger && bytes > kMostOfStranger) {
      gate->refuse(parts.back(), fmt::format("its key is not known, and it sends {} bytes at once", bytes));
      return std::nullopt;
    }
    gate->has_read(parts.back(), bytes, is_stranger);
    const std::string peer = fmt::format("{}{}", id, sender_of(parts.back()).number);
    try {
      if (parts.size() != 2) throw FormatError(std::to_string(parts.size() - 1) + " parts instead of one");
      return Received{peer, std::move(sender), peer_address(parts[1]),
                      decode_to_scheduler(bytes_of(parts[1])), bytes};
    } catch (const VersionError& error) {
      const RefusedT refusal{{},
                             fmt::format("it speaks versions {} to {} of the protocol, you speak {}: use releases that "
                                         "follow each other",
                                         kOldestControlVersion, kControlVersion, error.theirs())};
      log_dropped(parts.back(), error);
      send(peer, encode(refusal, error.theirs()));
    } catch (const FormatError& error) {
      log_dropped(parts.back(), error);
    }
    return std::nullopt;
  }

  Sent send(const std::string& peer, FromSchedulerMessage message) {
    const bool for_agent = is_for_agent(message);
    const size_t kind = message.index();
    const std::string bytes = encode(std::move(message));
    if (bytes.size() <= most_bytes) return send(peer, bytes);
    if (too_large.next())
      log_warning("dropped a message of kind {}: it has {} bytes, its receiver accepts {} (number {})", kind,
                  bytes.size(), most_bytes, too_large.count());
    if (for_agent) return Sent::kFull;
    return send(
        peer,
        encode(RefusedT{
            {}, fmt::format("its answer would have {} bytes, the most is {}", bytes.size(), most_bytes)}));
  }

  Sent send(const std::string& peer, const std::string& bytes) {
    uint64_t connection = 0;
    std::from_chars(peer.data() + kRoutingIdBytes, peer.data() + peer.size(), connection);
    if (!gate->is_open(connection)) return Sent::kGone;
    try {
      const auto flags = zmq::send_flags::dontwait;
      const auto size = static_cast<int64_t>(bytes.size());
      gate->queues(connection, size);  // first, because they may be acknowledged at once
      const bool queued =
          socket.send(zmq::buffer(peer.data(), kRoutingIdBytes), flags | zmq::send_flags::sndmore)
              .has_value() &&
          socket.send(zmq::buffer(bytes), flags).has_value();
      if (!queued) gate->queues(connection, -size);
      return queued ? Sent::kQueued : Sent::kFull;
    } catch (const zmq::error_t& error) {
      if (error.num() != EHOSTUNREACH) throw;
      return Sent::kGone;
    }
  }

  void log_dropped(zmq::message_t& message, const FormatError& error) {
    if (malformed.next())
      log_warning("dropped a message from {}: {} (number {})", peer_address(message), error.what(),
                  malformed.count());
  }

  void lock(const ServerKeys& keys) {
    find = keys.find;
    hears_strangers = keys.hears_strangers;
    if (!find) {
      unknown = "it is not in " + keys.allow_list.string();
      find = [list = std::make_shared<AllowList>(keys.allow_list)](const std::string& key) {
        return list->find(key);
      };
    }
    use_curve_server(socket, keys.own);
  }

  Authenticator::Verdict judge(const std::string& key) {
    const bool is_stranger = find(key).role == Role::kNobody;
    return {.why_not = is_stranger && !hears_strangers ? unknown : "", .is_stranger = is_stranger};
  }

  Identity identity_of(zmq::message_t& message) {
    if (!find) return {};
    const std::string key(sender_of(message).key);
    Identity identity = find(key);
    identity.key = key;
    return identity;
  }

  // The number that ZeroMQ gives to the first connection, which is one of this process.
  uint32_t number_of_first() {
    constexpr char kAddress[] = "inproc://first";
    socket.bind(kAddress);
    zmq::socket_t own(context, zmq::socket_type::dealer);
    own.connect(kAddress);
    own.send(zmq::str_buffer("first"));
    zmq::message_t id, text;
    MODELET_CHECK(socket.recv(id).has_value() && socket.recv(text).has_value());
    socket.unbind(kAddress);
    MODELET_CHECK(id.size() == kRoutingIdBytes);
    return number_of(id.to_string_view());
  }
  // Whether ZeroMQ can not have given this id to a connection that was let in.
  bool is_claimed(std::string_view id) const {
    if (id.size() != kRoutingIdBytes || id[0] != '\0') return true;
    const uint32_t number = number_of(id) - first_number;
    return number == 0 || number > gate->let_in();
  }

  zmq::context_t context = make_context();
  std::function<Identity(const std::string&)> find;  // no function: no keys
  std::string unknown = "it is not known here";
  bool hears_strangers = false;
  std::unique_ptr<Authenticator> gate;  // must outlive the socket (Authenticator says why)
  zmq::socket_t socket{make_router(context)};
  uint32_t first_number = 0;
  std::string endpoint;
  const size_t most_bytes;  // of a message that a peer accepts
  LogLimit malformed, too_large;
};

ServerSocket::ServerSocket(const std::string& endpoint, const std::optional<ServerKeys>& keys,
                           Traffic traffic)
    : impl_(std::make_unique<Impl>(endpoint, keys, traffic)) {}
ServerSocket::~ServerSocket() = default;

std::optional<ServerSocket::Received> ServerSocket::receive(double timeout_seconds, int wake_fd) {
  if (!wait_readable(impl_->socket, nullptr, timeout_seconds, wake_fd)) return std::nullopt;
  return impl_->take();
}

ServerSocket::Sent ServerSocket::send(const std::string& peer, FromSchedulerMessage message) {
  return impl_->send(peer, std::move(message));
}

const std::string& ServerSocket::endpoint() const { return impl_->endpoint; }

class ClientSocket::Impl {
 public:
  Impl(const SchedulerAddress& scheduler, Traffic traffic) : address(scheduler) {
    set_common_options(socket, traffic);
    if (address.keys) use_curve_client(socket, address.keys->own, address.keys->scheduler);
    socket.set(zmq::sockopt::immediate, 1);
    socket.set(zmq::sockopt::reconnect_ivl, kReconnectFirst);
    socket.set(zmq::sockopt::reconnect_ivl_max, kReconnectLast);
    connect_to(socket, address.endpoint);
  }

  std::optional<FromSchedulerMessage> take() {
    zmq::message_t message;
    if (!socket.recv(message, zmq::recv_flags::dontwait)) return std::nullopt;
    const Paced now(pace, connections);
    if (paced != now &&
        ((pace == 0 && paced.first == 0) || set_pacing_rate(message.get(ZMQ_SRCFD), address.endpoint, pace)))
      paced = now;
    try {
      return decode_from_scheduler(bytes_of(message));
    } catch (const VersionError& error) {
      throw Error(fmt::format("the scheduler at {} sent a {}", address.endpoint, error.what()));
    } catch (const FormatError& error) {
      log_warning("dropped a message from the scheduler at {}: {}", peer_address(message), error.what());
      return std::nullopt;
    }
  }

  // Throws Error if the scheduler refuses this client for good.
  void watch_handshakes() {
    while (const auto event = handshakes.next()) {
      if (event->kind == HandshakeMonitor::Kind::kEnded) continue;  // ZeroMQ reconnects by itself
      trouble = explanation(event->kind);
      connections += event->kind == HandshakeMonitor::Kind::kSucceeded ? 1 : 0;
      if (event->kind == HandshakeMonitor::Kind::kRefused ||
          event->kind == HandshakeMonitor::Kind::kOtherSecurity)
        throw Error(trouble);
    }
  }

  static std::string how_to_have_a_key() {
    return "'modelet keygen FILE' makes one; then give --key FILE and --scheduler-key with the scheduler's "
           "public key";
  }

  std::string explanation(HandshakeMonitor::Kind kind) const {
    const std::string scheduler = "the scheduler at " + address.endpoint;
    using enum HandshakeMonitor::Kind;
    switch (kind) {
      case kSucceeded:
        return "";
      case kRefused:
        return fmt::format(
            "{0} does not know this key; add 'agent {1} NAME' (for an agent) or 'user {1} NAME' to its "
            "allow-list",
            scheduler, address.keys ? address.keys->own.public_key : "");
      case kOtherSecurity:
        return scheduler + (address.keys
                                ? " uses no keys: leave out --key and --scheduler-key, or give it keys, too"
                                : " wants a key: " + how_to_have_a_key());
      case kBroken:
      case kClosed:
      case kAccepted:
      case kEnded:
        break;
    }
    // The other side may close the connection before this side has read the reason, whether it requires
    // keys or has none.
    if (!address.keys)
      return fmt::format("what listens at {} is not a scheduler, or wants a key: {}", address.endpoint,
                         how_to_have_a_key());
    return fmt::format(
        "what listens at {} does not have the key {} that --scheduler-key says, or uses no keys (then leave "
        "out --key and --scheduler-key), or is not a scheduler",
        address.endpoint, address.keys->scheduler);
  }

  using Paced = std::pair<double, uint64_t>;  // rate and number of the connection

  SchedulerAddress address;
  std::string trouble;
  double pace = 0;
  Paced paced;  // what the present connection was told
  uint64_t connections = 0;
  zmq::context_t context = make_context();
  zmq::socket_t socket{context, zmq::socket_type::dealer};
  HandshakeMonitor handshakes{context, socket, HandshakeMonitor::Side::kClient};
};

ClientSocket::ClientSocket(const SchedulerAddress& scheduler, Traffic traffic)
    : impl_(std::make_unique<Impl>(scheduler, traffic)) {}
ClientSocket::~ClientSocket() = default;

std::optional<FromSchedulerMessage> ClientSocket::receive(double timeout_seconds, int wake_fd) {
  const bool readable = wait_readable(impl_->socket, impl_->handshakes.handle(), timeout_seconds, wake_fd);
  impl_->watch_handshakes();
  return readable ? impl_->take() : std::nullopt;
}

void ClientSocket::pace(double bytes_per_second) { impl_->pace = bytes_per_second; }

uint64_t ClientSocket::connections() const { return impl_->connections; }

const std::string& ClientSocket::trouble() const { return impl_->trouble; }

bool ClientSocket::send(ToSchedulerMessage message) {
  const std::string bytes = encode(std::move(message));
  return impl_->socket.send(zmq::buffer(bytes), zmq::send_flags::dontwait).has_value();
}

void ClientSocket::close(double timeout_seconds) {
  impl_->socket.set(zmq::sockopt::linger, static_cast<int>(timeout_seconds * 1000));
  impl_.reset();
}

}  // namespace modelet::comm::control
