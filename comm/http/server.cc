#include "comm/http/server.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/log.h"
#include "base/version.h"
#include "comm/http/endpoint.h"

namespace modelet::comm::http {
namespace {

namespace asio = boost::asio;
namespace protocol = boost::beast::http;
using asio::ip::tcp;
using Failure = boost::system::error_code;

tcp::endpoint endpoint_of(const ServerOptions& options) {
  if (const auto endpoint = parse_endpoint(options.listen)) return *endpoint;
  throw UsageError(options.listen_option + " " + options.listen +
                   ": ADDRESS:PORT is expected, for example 127.0.0.1:8080, [::1]:8080 or 0.0.0.0:8080");
}

std::chrono::steady_clock::duration ticks(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Whose connections count together. Whoever has one address of an IPv6 network has all of it.
asio::ip::address counted(const asio::ip::address& peer) {
  if (peer.is_v4()) return peer;
  auto bytes = peer.to_v6().to_bytes();
  if (peer.to_v6().is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, peer.to_v6());
  std::fill(bytes.begin() + bytes.size() / 2, bytes.end(), uint8_t{0});
  return asio::ip::address_v6(bytes);
}

// Whether `host`, the field of a request, names this machine or is one of `others`.
bool is_own_host(std::string_view host, const std::vector<std::string>& others) {
  const std::optional<HostAndPort> found = split_host(host);
  const auto is = [&](std::string_view other) {
    return boost::beast::iequals({found->host.data(), found->host.size()}, {other.data(), other.size()});
  };
  if (found && !found->has_brackets && (is("localhost") || std::ranges::any_of(others, is))) return true;
  const auto endpoint = parse_endpoint(host, 0);
  return endpoint && endpoint->address().is_loopback();
}

// An address may have half of the connections, so that one alone cannot take them all.
ServerOptions with_share(ServerOptions options) {
  if (options.connections_per_address == 0)
    options.connections_per_address = std::max<size_t>(options.connections / 2, 1);
  return options;
}

void listen_at(tcp::acceptor& acceptor, const ServerOptions& options, bool has_token) {
  const tcp::endpoint endpoint = endpoint_of(options);
  if (!has_token && !endpoint.address().is_loopback())
    throw UsageError(
        fmt::format("{} {}: other machines can reach this address: give {} FILE, or listen on 127.0.0.1",
                    options.listen_option, options.listen, options.token_option));
  Failure failure;
  acceptor.open(endpoint.protocol(), failure);
  if (!failure) acceptor.set_option(asio::socket_base::reuse_address(true), failure);
  if (!failure) acceptor.bind(endpoint, failure);
  if (!failure) acceptor.listen(asio::socket_base::max_listen_connections, failure);
  if (failure) throw Error(options.listen + ": cannot listen there: " + failure.message());
}

std::string text_of(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return fmt::format("http://{}:{}", endpoint.address().is_v6() ? "[" + host + "]" : host, endpoint.port());
}

}  // namespace

class Server::Implementation {
 public:
  Implementation(Router& router, const ServerOptions& options);
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;
  ~Implementation();
  const std::string& endpoint() const { return endpoint_; }
  bool stop();

 private:
  class Connection;
  // So many connections beyond the limit get a response that says so; any others are closed without one.
  static constexpr size_t kMostTurnedAway = 64;

  // The open connections of an address, those turned away left out.
  struct Peer {
    size_t open = 0;
    std::map<uint64_t, Connection*> waiting;  // for a whole request, by turn: the longest first
  };

  void accept();
  void admit(tcp::socket socket);
  std::string make_room(const asio::ip::address& peer, std::shared_ptr<Connection>& leaving);
  void begin_waiting(Connection* connection);
  void end_waiting(Connection* connection);
  void drain();
  void end_connections();
  void release(Connection* connection);
  void enter(const std::shared_ptr<Connection>& connection);
  void leave(Connection* connection);
  bool may_begin_slow(const std::shared_ptr<Connection>& connection);
  void end_slow();
  bool join();

  Router& router_;
  const ServerOptions options_;
  std::mutex mutex_;
  std::map<Connection*, std::weak_ptr<Connection>> connections_;
  size_t served_ = 0, turned_away_ = 0;  // open connections of both kinds
  std::map<asio::ip::address, Peer> peers_;
  uint64_t turns_ = 0;
  const bool on_loopback_;
  unsigned slow_ = 0;                                // threads that handle requests of slow routes
  std::deque<std::shared_ptr<Connection>> waiting_;  // to handle one
  bool ending_ = false, over_ = false;               // over_: no thread runs any more
  asio::io_context context_;  // owns the connections, so they are destroyed before the members above
  tcp::acceptor acceptor_;    // on a strand, like the timers
  asio::steady_timer grace_, pause_;
  std::string endpoint_;
  std::vector<std::thread> threads_;
};

// One connection. Its handlers run one after the other on its strand.
class Server::Implementation::Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `refusal`: empty, or why the connection is turned away.
  Connection(Implementation& server, tcp::socket socket, const asio::ip::address& peer, std::string refusal)
      : server_(server),
        socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        buffer_(2 * server.options_.header_bytes + kReadBytes),
        peer_(peer),
        refusal_(std::move(refusal)) {
    counts = refusal_.empty();
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { server_.leave(this); }

  const asio::ip::address& peer() const { return peer_; }
  bool turned_away() const { return !refusal_.empty(); }

  // Under the server's lock; this connection's own handlers alone change `turn`.
  bool counts = true;  // among the open ones; not once it was asked to give way
  uint64_t turn = 0;   // not 0: it waits for the last byte of a request, and may have to give way

  void start() {
    Failure ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    if (!turned_away()) return wait_for_request();
    server_.router_.turned_away();
    last_ = true;
    respond(error_response(503, refusal_));
  }

  // The connection gives way to another one, unless its request has arrived by now.
  void give_way() {
    asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
      if (self->idle_ || self->turn != 0) self->close();
      self->last_ = true;
    });
  }

  // Handles the request of a slow route. Call it if may_begin_slow(), or when its turn has come.
  void handle_slow() {
    Response response = server_.router_.handle(*route_, request());
    server_.end_slow();
    respond(std::move(response));
  }

  tcp::socket::executor_type executor() { return socket_.get_executor(); }

  // The server shuts down: an idle connection waits only a little longer for a request.
  void end() {
    asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
      if (self->idle_) self->set_deadline(self->patience());
    });
  }

 private:
  static constexpr size_t kReadBytes = 64 << 10;
  static constexpr double kLinger = 2, kLastPatience = 1;  // seconds
  static constexpr std::chrono::milliseconds kCancelAgain{100};

  // How long the connection waits for a request. A client that was told to keep the connection may have sent
  // one before it can know that the server shuts down. So for a while such requests are still answered, and
  // the responses say that they are the last ones.
  double patience() const {
    const ServerOptions& options = server_.options_;
    return server_.router_.ending()
               ? std::min({kLastPatience, options.grace_seconds / 2, options.idle_seconds})
               : options.idle_seconds;
  }

  // When the time is over, cancels what the connection waits for, and sets timed_out_.
  void set_deadline(double seconds) {
    timed_out_ = false;
    timer_.expires_after(ticks(seconds));
    cancel_when_over();
  }

  void cancel_when_over() {
    timer_.async_wait([self = shared_from_this()](Failure failure) {
      if (failure || self->timer_.expiry() > std::chrono::steady_clock::now()) return;
      self->timed_out_ = true;
      if (!self->socket_.is_open()) return;
      Failure ignored;
      self->socket_.cancel(ignored);
      // A read of several parts goes on if its next part was there already, so it is cancelled again.
      self->timer_.expires_after(kCancelAgain);
      self->cancel_when_over();
    });
  }

  void wait_for_request() {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(server_.options_.header_bytes));
    parser_->body_limit(server_.options_.body_bytes);
    server_.begin_waiting(this);
    if (buffer_.size() > 0) return read_header();  // the next request has arrived already
    idle_ = true;
    set_deadline(patience());
    socket_.async_read_some(buffer_.prepare(kReadBytes),
                            [self = shared_from_this()](Failure failure, size_t bytes) {
                              self->idle_ = false;
                              if (failure && !self->came_just_in_time()) return self->close();
                              self->buffer_.commit(bytes);
                              self->read_header();
                            });
  }

  // Whether a request has arrived, although the time for it is over: the thread was busy.
  bool came_just_in_time() {
    Failure failure;
    return timed_out_ && socket_.available(failure) > 0;
  }

  void read_header() {
    set_deadline(server_.options_.read_seconds);
    protocol::async_read_header(socket_, buffer_, *parser_,
                                [self = shared_from_this()](Failure failure, size_t) {
                                  if (failure) return self->refuse(failure);
                                  self->begin_request();
                                });
  }

  // What is wrong with the header, whatever the route: a status other than 200, and a message.
  std::pair<unsigned, std::string> check_header() const {
    const auto& message = parser_->get();
    // Another program before this one might see other requests in the same bytes.
    if (const size_t codings = message.count(protocol::field::transfer_encoding);
        codings > 0 &&
        (codings > 1 || message.version() < 11 || message.count(protocol::field::content_length) > 0 ||
         !boost::beast::iequals(message[protocol::field::transfer_encoding], "chunked")))
      return {400,
              "the only Transfer-Encoding that this server reads is 'chunked', in HTTP/1.1 and without "
              "Content-Length"};
    if (message.count(protocol::field::host) > 1) return {400, "the header has more than one Host"};
    const std::string_view host = view(message[protocol::field::host]);
    const bool has_host = message.count(protocol::field::host) > 0;  // browsers always give one
    if (!server_.on_loopback_ || !has_host || is_own_host(host, server_.options_.hosts)) return {200, {}};
    return {421, fmt::format("the Host of the request is '{}', but this server is for its own machine and "
                             "accepts localhost and 127.0.0.1: give --host to it for further names",
                             host)};
  }

  // Checks the header before the body is read.
  void begin_request() {
    if (const auto [status, what] = check_header(); status != 200) {
      last_ = true;
      server_.end_waiting(this);
      return respond(server_.router_.refuse(status, what));
    }
    Response refusal;
    route_ = server_.router_.find(request(), refusal);
    if (route_ == nullptr) {
      last_ = last_ || !parser_->is_done();  // the body is not read
      end_reading();
      return respond(std::move(refusal));
    }
    if (parser_->is_done()) return handle();
    if (view(parser_->get()[protocol::field::expect]) != "100-continue") return read_body();
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(socket_, asio::buffer(kContinue.data(), kContinue.size()),
                      [self = shared_from_this()](Failure failure, size_t) {
                        if (failure) return self->refuse(failure);
                        self->read_body();
                      });
  }

  void read_body() {
    protocol::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](Failure failure, size_t) {
      if (failure) return self->refuse(failure);
      self->handle();
    });
  }

  Request request() const {
    const auto& message = parser_->get();
    return {.method = view(message.method_string()),
            .target = view(message.target()),
            .content_type = view(message[protocol::field::content_type]),
            .authorization = view(message[protocol::field::authorization]),
            .body = message.body(),
            .cookies = view(message[protocol::field::cookie]),
            .if_none_match = view(message[protocol::field::if_none_match]),
            .action = view(message["X-Modelet-Action"])};
  }

  void end_reading() {
    server_.end_waiting(this);
    timer_.cancel();
    last_ = last_ || !parser_->get().keep_alive() || server_.router_.ending();
  }

  void handle() {
    end_reading();
    if (!route_->slow) return respond(server_.router_.handle(*route_, request()));
    if (server_.may_begin_slow(shared_from_this())) handle_slow();
  }

  // Responds to a request that cannot be read.
  void refuse(Failure failure) {
    const ServerOptions& options = server_.options_;
    server_.end_waiting(this);
    last_ = true;
    const auto refuse_with = [this](unsigned status, const std::string& what) {
      respond(server_.router_.refuse(status, what));
    };
    if (timed_out_)
      return refuse_with(408,
                         fmt::format("the request did not arrive within {:g} seconds: send it faster, or "
                                     "raise --read-seconds",
                                     options.read_seconds));
    if (failure == protocol::error::body_limit)
      return refuse_with(413, fmt::format("the request is larger than {} bytes: send a smaller one, or "
                                          "raise --body-bytes",
                                          options.body_bytes));
    if (failure == protocol::error::header_limit || failure == protocol::error::buffer_overflow)
      return refuse_with(431, fmt::format("the header is larger than {} bytes: send a shorter one, or raise "
                                          "--header-bytes",
                                          options.header_bytes));
    if (failure == protocol::error::end_of_stream || failure == protocol::error::partial_message ||
        failure.category() != make_error_code(protocol::error::bad_method).category())
      return close();  // the client is gone
    refuse_with(400, "this is not HTTP/1.1: " + failure.message());
  }

  void respond(Response response) {
    response_ = {};
    response_.version(11);
    response_.result(response.status);
    response_.set(protocol::field::server, std::string("modelet/") + kVersion);
    response_.set(protocol::field::content_type,
                  boost::beast::string_view(response.content_type.data(), response.content_type.size()));
    // What a response contains is for the pages of this server alone, and these take nothing from elsewhere.
    response_.set("Content-Security-Policy",
                  "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'");
    response_.set("X-Content-Type-Options", "nosniff");
    response_.set("Referrer-Policy", "no-referrer");
    for (const auto& [name, value] : response.fields)
      response_.set(boost::beast::string_view(name.data(), name.size()), value);
    if (!response.allow.empty()) response_.set(protocol::field::allow, response.allow);
    if (response.status == 401) response_.set(protocol::field::www_authenticate, "Bearer");
    if (response.status == 503) response_.set(protocol::field::retry_after, "1");
    response_.keep_alive(!last_);
    response_.body() = std::move(response.body);
    response_.prepare_payload();
    // To HEAD, the header says how long the body would be.
    if (parser_ && parser_->get().method() == protocol::verb::head) response_.body().clear();
    set_deadline(server_.options_.write_seconds);
    protocol::async_write(socket_, response_, [self = shared_from_this()](Failure failure, size_t) {
      if (failure) return self->close();
      if (self->last_) return self->finish();
      self->wait_for_request();
    });
  }

  // If a socket is closed while it has unread bytes, the client may lose the response. So what the client still
  // sends is read for a while.
  void finish() {
    Failure ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    set_deadline(kLinger);
    discard();
  }

  void discard() {
    socket_.async_read_some(asio::buffer(rest_), [self = shared_from_this()](Failure failure, size_t) {
      if (failure || self->timer_.expiry() <= std::chrono::steady_clock::now()) return self->close();
      self->discard();
    });
  }

  void close() {
    timer_.cancel();
    Failure ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

  Implementation& server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<protocol::request_parser<protocol::string_body>> parser_;
  const Route* route_ = nullptr;  // of the request
  protocol::response<protocol::string_body> response_;
  std::array<char, 4096> rest_;
  const asio::ip::address peer_;
  const std::string refusal_;
  bool idle_ = false;       // it waits for the first byte of a request
  bool timed_out_ = false;  // the deadline has passed
  bool last_ = false;       // the connection will be closed after this response
};

Server::Implementation::Implementation(Router& router, const ServerOptions& options)
    : router_(router),
      options_(with_share(options)),
      on_loopback_(endpoint_of(options).address().is_loopback()),
      context_(static_cast<int>(options.threads + options.others)),
      acceptor_(asio::make_strand(context_)),
      grace_(acceptor_.get_executor()),
      pause_(acceptor_.get_executor()) {
  listen_at(acceptor_, options, router.has_token());
  endpoint_ = text_of(acceptor_.local_endpoint());
  accept();
  // More than may handle requests of slow routes, so that one is always there for the rest.
  for (unsigned i = 0; i < options.threads + options.others; ++i) threads_.emplace_back([this] { context_.run(); });
}

Server::Implementation::~Implementation() {
  context_.stop();
  join();
}

// Returns whether all connections are closed.
bool Server::Implementation::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  over_ = true;
  const bool all_closed = connections_.empty();
  waiting_.clear();
  return all_closed;
}

void Server::Implementation::accept() {
  if (!acceptor_.is_open()) return end_connections();
  acceptor_.async_accept(asio::make_strand(context_), [this](Failure failure, tcp::socket socket) {
    if (!failure) admit(std::move(socket));
    if (!failure || !acceptor_.is_open()) return accept();
    // There are no descriptors or no memory now. Other connections may give some back.
    constexpr auto kPause = std::chrono::milliseconds(100);
    pause_.expires_after(kPause);
    pause_.async_wait([this](Failure) { accept(); });
  });
}

void Server::Implementation::admit(tcp::socket socket) {
  Failure gone;
  const asio::ip::address peer = counted(socket.remote_endpoint(gone).address());
  if (gone) return;
  std::string refusal;
  std::shared_ptr<Connection> leaving;
  {
    const std::lock_guard lock(mutex_);
    refusal = make_room(peer, leaving);
    if (!refusal.empty() && turned_away_ >= kMostTurnedAway) return;  // closes the socket
    if (refusal.empty()) ++peers_[peer].open;
    ++(refusal.empty() ? served_ : turned_away_);
  }
  if (leaving != nullptr) leaving->give_way();
  const auto executor = socket.get_executor();
  const auto connection = std::make_shared<Connection>(*this, std::move(socket), peer, std::move(refusal));
  enter(connection);
  asio::dispatch(executor, [connection] { connection->start(); });
}

// Makes room for another connection of `peer`, by one that is `leaving` then. Returns why there is none; empty:
// there is room. Under the lock.
std::string Server::Implementation::make_room(const asio::ip::address& peer,
                                              std::shared_ptr<Connection>& leaving) {
  auto from = peers_.find(peer);
  const bool has_its_share = from != peers_.end() && from->second.open >= options_.connections_per_address;
  if (!has_its_share && served_ < options_.connections) return {};
  if (!has_its_share)
    from = std::ranges::max_element(
        peers_, {}, [](const auto& each) { return each.second.waiting.empty() ? 0 : each.second.open; });
  for (const auto& [turn, connection] : from->second.waiting)
    if ((leaving = connections_.at(connection).lock()) != nullptr) break;
  if (leaving != nullptr) {
    release(leaving.get());
    return {};
  }
  return has_its_share
             ? fmt::format(
                   "{} has {} connections to this server already, and requests are being handled on all of "
                   "them: try again later, or raise --connections-per-address",
                   peer.to_string(), options_.connections_per_address)
             : fmt::format(
                   "this server has {} connections already, which is its limit, and requests are being "
                   "handled on them: try again later, or raise --connections",
                   options_.connections);
}

// From here on the connection does not count. Under the lock.
void Server::Implementation::release(Connection* connection) {
  if (!std::exchange(connection->counts, false)) return;
  --served_;
  const auto found = peers_.find(connection->peer());
  found->second.waiting.erase(connection->turn);
  if (--found->second.open == 0) peers_.erase(found);
}

void Server::Implementation::begin_waiting(Connection* connection) {
  const std::lock_guard lock(mutex_);
  if (!connection->counts) return;
  connection->turn = ++turns_;
  peers_.at(connection->peer()).waiting.emplace(connection->turn, connection);
}

void Server::Implementation::end_waiting(Connection* connection) {
  const std::lock_guard lock(mutex_);
  if (const auto found = peers_.find(connection->peer()); found != peers_.end())
    found->second.waiting.erase(connection->turn);
  connection->turn = 0;
}

void Server::Implementation::enter(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  connections_.emplace(connection.get(), connection);
  router_.connected();
}

void Server::Implementation::leave(Connection* connection) {
  const std::lock_guard lock(mutex_);
  if (connection->turned_away()) --turned_away_;
  release(connection);
  connections_.erase(connection);
  router_.disconnected();
  if (ending_ && !over_ && connections_.empty())
    asio::post(acceptor_.get_executor(), [this] { grace_.cancel(); });
}

// False if as many threads as may handle requests of slow routes. The connection is then called when its turn has
// come.
bool Server::Implementation::may_begin_slow(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  if (slow_ == options_.threads) {
    waiting_.push_back(connection);
    return false;
  }
  ++slow_;
  return true;
}

void Server::Implementation::end_slow() {
  std::shared_ptr<Connection> next;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) {
      --slow_;
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  const auto executor = next->executor();
  asio::post(executor, [next = std::move(next)] { next->handle_slow(); });
}

// Drains the queue of new connections, then stops listening. accept() then ends the connections. Runs on the
// acceptor's strand.
void Server::Implementation::drain() {
  Failure failure;
  acceptor_.non_blocking(true, failure);
  while (!failure) {
    tcp::socket socket = acceptor_.accept(asio::make_strand(context_), failure);
    if (!failure) admit(std::move(socket));
  }
  acceptor_.close(failure);
  pause_.cancel();
}

void Server::Implementation::end_connections() {
  std::vector<std::shared_ptr<Connection>> open;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    for (const auto& [key, connection] : connections_)
      if (auto there = connection.lock()) open.push_back(std::move(there));
  }
  log_info("shutting down; {} requests are being handled", router_.in_flight());
  if (open.empty()) return;
  grace_.expires_after(ticks(options_.grace_seconds));
  grace_.async_wait([this](Failure cancelled) {
    if (!cancelled) context_.stop();
  });
  for (const auto& connection : open) connection->end();
}

bool Server::Implementation::stop() {
  router_.end();
  asio::post(acceptor_.get_executor(), [this] { drain(); });
  return join();
}

void check_listening(const ServerOptions& options, bool has_token) {
  asio::io_context context;
  tcp::acceptor acceptor(context);
  listen_at(acceptor, options, has_token);
}

Server::Server(Router& router, const ServerOptions& options)
    : implementation_(std::make_unique<Implementation>(router, options)) {}
Server::~Server() = default;
std::string Server::endpoint() const { return implementation_->endpoint(); }
bool Server::stop() { return implementation_->stop(); }

}  // namespace modelet::comm::http
