#include "comm/security/curve.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace modelet::comm {
namespace {

constexpr char kZapAddress[] = "inproc://zeromq.zap.01";
// version, request, domain, address, the server's own routing id, mechanism, with CURVE the key
constexpr std::string_view kStrangers = "strangers";  // no key
constexpr size_t kZapFrames = 6, kZapFramesOfCurve = 7;

std::string_view property(zmq::message_t& message, const char* name, const char* otherwise) {
  const char* value = zmq_msg_gets(message.handle(), name);
  return value == nullptr ? otherwise : value;
}

std::vector<zmq::message_t> receive_all(zmq::socket_t& socket) {
  zmq::message_t first;
  if (!socket.recv(first, zmq::recv_flags::dontwait)) return {};  // the usual case, which takes no memory
  std::vector<zmq::message_t> parts;
  parts.push_back(std::move(first));
  while (parts.back().more()) {
    parts.emplace_back();
    if (!socket.recv(parts.back(), zmq::recv_flags::dontwait)) return {};
  }
  return parts;
}

}  // namespace

void use_curve_server(zmq::socket_t& socket, const KeyPair& own) {
  socket.set(zmq::sockopt::curve_server, true);
  socket.set(zmq::sockopt::curve_secretkey, to_bytes(own.secret_key));
}

void use_curve_client(zmq::socket_t& socket, const KeyPair& own, const std::string& server_key) {
  socket.set(zmq::sockopt::curve_serverkey, to_bytes(server_key));
  socket.set(zmq::sockopt::curve_publickey, to_bytes(own.public_key));
  socket.set(zmq::sockopt::curve_secretkey, to_bytes(own.secret_key));
}

// The authenticator has answered "KEY/NUMBER" (answer_request).
Sender sender_of(zmq::message_t& message) {
  const std::string_view id = property(message, "User-Id", "/0");
  const size_t slash = id.find('/');
  MODELET_CHECK(slash != id.npos, "messages come from connections that the authenticator has let in");
  Sender sender{id.substr(0, slash)};
  std::from_chars(id.data() + slash + 1, id.data() + id.size(), sender.number);
  return sender;
}

std::string peer_address(zmq::message_t& message) {
  return std::string(property(message, "Peer-Address", "unknown address"));
}

// ---- HandshakeMonitor

HandshakeMonitor::HandshakeMonitor(zmq::context_t& context, zmq::socket_t& socket, Side side)
    : side_(side), socket_(context, zmq::socket_type::pair) {
  const std::string address = fmt::format("inproc://handshakes-{}", fmt::ptr(socket.handle()));
  // A server needs no events for refusals: its authenticator logs them, with the key.
  const int events =
      ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_DISCONNECTED |
      (side == Side::kServer ? ZMQ_EVENT_ACCEPTED
                             : ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
  MODELET_CHECK(zmq_socket_monitor(socket.handle(), address.c_str(), events) == 0);
  socket_.set(zmq::sockopt::linger, 0);
  socket_.connect(address);
}

std::optional<HandshakeMonitor::Event> HandshakeMonitor::next() {
  while (true) {
    const auto parts = receive_all(socket_);
    if (parts.empty()) return std::nullopt;
    // Number and value of the event, native byte order (zmq_socket_monitor(3)).
    uint16_t event = 0;
    uint32_t value = 0;
    MODELET_CHECK(parts[0].size() == sizeof event + sizeof value);
    std::memcpy(&event, parts[0].data(), sizeof event);
    std::memcpy(&value, parts[0].data<char>() + sizeof event, sizeof value);
    if (auto result = interpret(event, value)) return result;
  }
}

std::optional<HandshakeMonitor::Event> HandshakeMonitor::interpret(uint16_t event, uint32_t value) {
  const int descriptor = static_cast<int>(value);
  if (event == ZMQ_EVENT_ACCEPTED) return Event{Kind::kAccepted, descriptor};
  if (event == ZMQ_EVENT_DISCONNECTED && side_ == Side::kClient)
    return std::exchange(connected_, false) ? std::optional(Event{Kind::kEnded}) : std::nullopt;
  if (event == ZMQ_EVENT_DISCONNECTED)  // comes right after the failure of the same connection
    return Event{std::exchange(failed_, std::nullopt).value_or(Kind::kEnded), descriptor};
  Kind kind = Kind::kClosed;
  if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) kind = Kind::kSucceeded;
  if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) kind = Kind::kRefused;
  if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
    kind = value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH ? Kind::kOtherSecurity : Kind::kBroken;
  if (side_ == Side::kClient) {
    connected_ = kind == Kind::kSucceeded;
    return Event{kind};
  }
  failed_ = kind;
  return std::nullopt;
}

// ---- Authenticator

Authenticator::Authenticator(zmq::context_t& context, zmq::socket_t& server, std::string what)
    : what_(std::move(what)),
      requests_(context, zmq::socket_type::rep),
      monitor_(context, server, HandshakeMonitor::Side::kServer) {
  constexpr int kHandshake = 5000;  // ms; after that, a peer that connected and says nothing is disconnected
  server.set(zmq::sockopt::handshake_ivl, kHandshake);
  server.set(zmq::sockopt::zap_domain, "modelet");  // without CURVE nobody would be asked otherwise
  requests_.set(zmq::sockopt::linger, 0);
  requests_.bind(kZapAddress);
}

Authenticator::~Authenticator() {
  stop_.set();
  if (thread_.joinable()) thread_.join();
}

void Authenticator::open(const ConnectionLimits& limits, Judge judge) {
  MODELET_CHECK(!thread_.joinable(), "open() twice");
  connections_.emplace(what_, limits);
  limits_ = limits;
  judge_ = std::move(judge);
  thread_ = std::thread([this] { work(); });
}

void Authenticator::has_read(zmq::message_t& last_part, size_t bytes, bool is_stranger) {
  const Sender sender = sender_of(last_part);
  connections_->read(last_part.get(ZMQ_SRCFD), bytes, sender.key, sender.number, is_stranger);
}

void Authenticator::refuse(zmq::message_t& message, const std::string& why) {
  connections_->refuse(message.get(ZMQ_SRCFD), sender_of(message).number, why);
}

void Authenticator::work() {
  while (!stop_.is_set()) {
    constexpr int kMilliseconds = 1000;
    const bool watches = connections_->watches();
    if (watches) connections_->look(clock_.now());
    zmq::pollitem_t items[] = {{requests_.handle(), 0, ZMQ_POLLIN, 0},
                               {monitor_.handle(), 0, ZMQ_POLLIN, 0},
                               {nullptr, stop_.fd(), ZMQ_POLLIN, 0}};
    const long wait = watches ? static_cast<long>(kMilliseconds * Connections::kLook) : -1;
    if (zmq_poll(items, std::size(items), wait) < 0) continue;  // a signal handler ran
    // Connections first: when the answer lets one in, a message of it may be read at once, and has_read() only
    // counts for a connection that is known.
    while (const auto event = monitor_.next()) note(*event);
    if ((items[0].revents & ZMQ_POLLIN) != 0) answer_request();
  }
}

bool Authenticator::has_room(const std::string& key) {
  Room& room = rooms_.try_emplace(key, Room{limits_.made_at_once, clock_.now()}).first->second;
  const double passed = clock_.now() - std::exchange(room.at, clock_.now());
  room.left = std::min(limits_.made_at_once, room.left + limits_.made_per_second * passed);
  if (room.left < 1) return false;
  --room.left;
  return true;
}

void Authenticator::answer_request() {
  const auto request = receive_all(requests_);
  if (request.empty()) return;
  const std::string_view mechanism = request.size() >= kZapFrames ? request[5].to_string_view() : "";
  std::string key;
  Verdict verdict;
  std::string& why = verdict.why_not;
  if (request.size() == kZapFramesOfCurve && mechanism == "CURVE" && request[6].size() == kKeyBytes) {
    key = to_hex(request[6].to_string_view());
    verdict = judge_(key);
  } else if (mechanism !=
             "NULL") {  // that of a socket without keys: libzmq asks only for the socket's own one
    why = "it is not a CURVE client";
  }
  const bool too_often = why.empty() && !key.empty() && !has_room(verdict.is_stranger ? std::string(kStrangers) : key);
  if (too_often)
    why = fmt::format("its key makes more than {} connections a second", limits_.made_per_second);
  if (!why.empty() && refusals_.next())
    log_warning("{}: refused key {} from {}: {} (number {})", what_, key,
                request.size() > 3 ? request[3].to_string_view() : "", why, refusals_.count());
  // Noted before the answer: the first message may be read at once.
  const std::string id = why.empty() ? fmt::format("{}/{}", key, ++let_in_) : "";
  // version, request, status (300: try again), text, user id, metadata
  const std::string_view answer[] = {"1.0",
                                     request.size() > 1 ? request[1].to_string_view() : "",
                                     why.empty() ? "200"
                                     : too_often ? "300"
                                                 : "400",
                                     why.empty() ? "OK" : "refused",
                                     id,
                                     ""};
  for (size_t i = 0; i < std::size(answer); ++i)
    requests_.send(zmq::buffer(answer[i].data(), answer[i].size()),
                   i + 1 < std::size(answer) ? zmq::send_flags::sndmore : zmq::send_flags::none);
}

void Authenticator::note(const HandshakeMonitor::Event& event) {
  using enum HandshakeMonitor::Kind;
  if (event.kind == kAccepted) return connections_->accepted(event.descriptor);
  const std::string peer = connections_->ended(event.descriptor);
  if (event.kind == kEnded || peer.empty() || !failures_.next()) return;
  const char* why = "it closed the connection during the handshake; perhaps it uses no keys";
  if (event.kind == kOtherSecurity) why = "it uses no keys";
  if (event.kind == kBroken) why = "it expects another key of this server, or is not a Modelet program";
  log_warning("{}: no connection with {}: {} (number {})", what_, peer, why, failures_.count());
}

}  // namespace modelet::comm
