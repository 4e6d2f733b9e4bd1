#include "scheduler/cli/serve/http_server.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <csignal>
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

namespace modelet::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Failure = boost::system::error_code;

tcp::endpoint endpoint_of(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  const std::string wanted =
      listen + ": ADDRESS:PORT is expected, for example 127.0.0.1:8080, [::1]:8080 or 0.0.0.0:8080";
  if (colon == std::string::npos) throw UsageError(wanted);
  std::string host = listen.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  const std::string port = listen.substr(colon + 1);
  const bool is_number =
      !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos;
  Failure bad;
  const asio::ip::address address = asio::ip::make_address(host, bad);
  if (bad || !is_number || std::stoul(port) > 65535) throw UsageError(wanted);
  return {address, static_cast<uint16_t>(std::stoul(port))};
}

std::chrono::steady_clock::duration ticks(Seconds seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(seconds);
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

// "[::1]:8080" -> "::1".
std::string_view name_of_host(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

// Whether `host`, the field of a question, names this machine or is one of `others`.
bool is_own_host(std::string_view host, const std::vector<std::string>& others) {
  const auto is = [name = name_of_host(host)](std::string_view other) {
    return boost::beast::iequals({name.data(), name.size()}, {other.data(), other.size()});
  };
  if (is("localhost") || std::ranges::any_of(others, is)) return true;
  Failure bad;
  const asio::ip::address address = asio::ip::make_address(std::string(name_of_host(host)), bad);
  return !bad && address.is_loopback();
}

// An address may have half of the connections, so that one alone cannot take them all.
HttpOptions with_share(HttpOptions options) {
  if (options.connections_of_address == 0)
    options.connections_of_address = std::max<size_t>(options.connections / 2, 1);
  return options;
}

void listen_at(tcp::acceptor& acceptor, const std::string& listen) {
  const tcp::endpoint endpoint = endpoint_of(listen);
  Failure failure;
  acceptor.open(endpoint.protocol(), failure);
  if (!failure) acceptor.set_option(asio::socket_base::reuse_address(true), failure);
  if (!failure) acceptor.bind(endpoint, failure);
  if (!failure) acceptor.listen(asio::socket_base::max_listen_connections, failure);
  if (failure) throw Error(listen + ": cannot listen there: " + failure.message());
}

}  // namespace

bool is_loopback(const std::string& listen) { return endpoint_of(listen).address().is_loopback(); }

class HttpServer::Implementation {
 public:
  Implementation(Service& service, Statistics& statistics, const HttpOptions& options);
  std::string endpoint() const;
  bool run(const std::function<void()>& hung_up);

 private:
  class Connection;
  // So many connections beyond the limit get an answer that says so; any others are closed without one.
  static constexpr size_t kMostTurnedAway = 64;

  // The open connections of an address, those turned away left out.
  struct Peer {
    size_t open = 0;
    std::map<uint64_t, Connection*> waiting;  // for a whole question, by turn: the longest first
  };

  void accept();
  void welcome(tcp::socket socket);
  std::string make_room(const asio::ip::address& peer, std::shared_ptr<Connection>& leaving);
  void begin_waiting(Connection* connection);
  void end_waiting(Connection* connection);
  void wait_for_signals(const std::function<void()>& hung_up);
  void end();
  void end_connections();
  void forget(Connection* connection);
  void enter(const std::shared_ptr<Connection>& connection);
  void leave(Connection* connection);
  bool may_predict(const std::shared_ptr<Connection>& connection);
  void predicted();

  Service& service_;
  Statistics& statistics_;
  const HttpOptions options_;
  std::mutex mutex_;
  std::map<Connection*, std::weak_ptr<Connection>> connections_;
  size_t served_ = 0, turned_away_ = 0;  // open connections of both kinds
  std::map<asio::ip::address, Peer> peers_;
  uint64_t turns_ = 0;
  const bool on_loopback_;
  unsigned predicting_ = 0;                          // threads
  std::deque<std::shared_ptr<Connection>> waiting_;  // to predict
  bool ending_ = false, over_ = false;               // over_: run() has ended
  asio::io_context context_;  // owns the connections, so they are destroyed before the members above
  tcp::acceptor acceptor_;    // on a strand, like the timers
  asio::signal_set signals_;
  asio::steady_timer grace_, pause_;
};

// One connection. Its handlers run one after the other on its strand.
class HttpServer::Implementation::Connection : public std::enable_shared_from_this<Connection> {
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
  uint64_t turn = 0;   // not 0: it waits for the last byte of a question, and may have to give way

  void start() {
    Failure ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    if (!turned_away()) return wait_for_question();
    server_.statistics_.turned_away();
    last_ = true;
    reply(error_reply(503, refusal_));
  }

  // The connection gives way to another one, unless its question has arrived by now.
  void give_way() {
    asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
      if (self->idle_ || self->turn != 0) self->close();
      self->last_ = true;
    });
  }

  // Answers the question that has been read. Call it if may_predict(), or when its turn has come.
  void predict() {
    Reply answer = server_.service_.handle(question());
    server_.predicted();
    reply(std::move(answer));
  }

  tcp::socket::executor_type executor() { return socket_.get_executor(); }

  // The server shuts down: an idle connection waits only a little longer for a question.
  void end() {
    asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
      if (self->idle_) self->set_deadline(self->patience());
    });
  }

 private:
  static constexpr size_t kReadBytes = 64 << 10;
  static constexpr Seconds kLinger{2};
  static constexpr Seconds kLastPatience{1};
  static constexpr std::chrono::milliseconds kCancelAgain{100};

  // How long the connection waits for a question. A client that was told to keep the connection may have sent
  // one before it can know that the server shuts down. So for a while such questions are still answered, and
  // the answers say that they are the last ones.
  Seconds patience() const {
    const HttpOptions& options = server_.options_;
    return server_.service_.ending() ? std::min({kLastPatience, options.grace / 2, options.idle})
                                     : options.idle;
  }

  // When the time is over, cancels what the connection waits for, and sets timed_out_.
  void set_deadline(Seconds seconds) {
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

  void wait_for_question() {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(server_.options_.header_bytes));
    parser_->body_limit(server_.options_.body_bytes);
    server_.begin_waiting(this);
    if (buffer_.size() > 0) return read_header();  // the next question has arrived already
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

  // Whether a question has arrived, although the time for it is over: the thread was busy.
  bool came_just_in_time() {
    Failure failure;
    return timed_out_ && socket_.available(failure) > 0;
  }

  void read_header() {
    set_deadline(server_.options_.read);
    http::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](Failure failure, size_t) {
      if (failure) return self->refuse(failure);
      self->begin_question();
    });
  }

  // What is wrong with the header, whatever is asked; status 200: nothing.
  Reply check_header() const {
    const auto& message = parser_->get();
    // Another program before this one might see other questions in the same bytes.
    if (const size_t codings = message.count(http::field::transfer_encoding);
        codings > 0 &&
        (codings > 1 || message.version() < 11 || message.count(http::field::content_length) > 0 ||
         !boost::beast::iequals(message[http::field::transfer_encoding], "chunked")))
      return error_reply(
          400,
          "the only Transfer-Encoding that this server reads is 'chunked', in HTTP/1.1 and without "
          "Content-Length");
    if (message.count(http::field::host) > 1) return error_reply(400, "the header has more than one Host");
    const std::string_view host = view(message[http::field::host]);
    const bool has_host = message.count(http::field::host) > 0;  // browsers always give one
    if (!server_.on_loopback_ || !has_host || is_own_host(host, server_.options_.hosts)) return {};
    return error_reply(
        421, fmt::format("the Host of the question is '{}', but this server is for its own machine and "
                         "answers to localhost and 127.0.0.1: give --host to it for further names",
                         host));
  }

  // Checks the header before the body is read.
  void begin_question() {
    if (Reply refusal = check_header(); refusal.status != 200) {
      last_ = true;
      server_.end_waiting(this);
      server_.statistics_.answered("other", refusal.status, 0);
      return reply(std::move(refusal));
    }
    if (server_.service_.check(question()).status != 200) {
      last_ = last_ || !parser_->is_done();  // the body is not read
      return answer();
    }
    if (parser_->is_done()) return answer();
    if (view(parser_->get()[http::field::expect]) != "100-continue") return read_body();
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(socket_, asio::buffer(kContinue.data(), kContinue.size()),
                      [self = shared_from_this()](Failure failure, size_t) {
                        if (failure) return self->refuse(failure);
                        self->read_body();
                      });
  }

  void read_body() {
    http::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](Failure failure, size_t) {
      if (failure) return self->refuse(failure);
      self->answer();
    });
  }

  Question question() {
    const auto& message = parser_->get();
    return {.method = view(message.method_string()),
            .target = view(message.target()),
            .content_type = view(message[http::field::content_type]),
            .authorization = view(message[http::field::authorization]),
            .body = message.body()};
  }

  void answer() {
    server_.end_waiting(this);
    timer_.cancel();
    last_ = last_ || !parser_->get().keep_alive() || server_.service_.ending();
    const bool is_prediction = parser_->get().method() == http::verb::post;
    if (!is_prediction) return reply(server_.service_.handle(question()));
    if (server_.may_predict(shared_from_this())) predict();
  }

  // Answers a question that cannot be read.
  void refuse(Failure failure) {
    const HttpOptions& options = server_.options_;
    server_.end_waiting(this);
    last_ = true;
    const auto refuse_with = [this](unsigned status, const std::string& what) {
      server_.statistics_.answered("other", status, 0);
      reply(error_reply(status, what));
    };
    if (timed_out_)
      return refuse_with(408,
                         fmt::format("the question did not arrive within {:g} seconds: send it faster, or "
                                     "raise --read-seconds",
                                     options.read.count()));
    if (failure == http::error::body_limit)
      return refuse_with(413,
                         fmt::format("the question is larger than {} bytes: send fewer samples at a time, or "
                                     "raise --body-bytes",
                                     options.body_bytes));
    if (failure == http::error::header_limit || failure == http::error::buffer_overflow)
      return refuse_with(431, fmt::format("the header is larger than {} bytes: send a shorter one, or raise "
                                          "--header-bytes",
                                          options.header_bytes));
    if (failure == http::error::end_of_stream || failure == http::error::partial_message ||
        failure.category() != make_error_code(http::error::bad_method).category())
      return close();  // the client is gone
    refuse_with(400, "this is not HTTP/1.1: " + failure.message());
  }

  void reply(Reply reply) {
    response_ = {};
    response_.version(11);
    response_.result(reply.status);
    response_.set(http::field::server, std::string("modelet/") + kVersion);
    response_.set(http::field::content_type,
                  boost::beast::string_view(reply.content_type.data(), reply.content_type.size()));
    if (!reply.allow.empty())
      response_.set(http::field::allow, boost::beast::string_view(reply.allow.data(), reply.allow.size()));
    if (reply.status == 401) response_.set(http::field::www_authenticate, "Bearer");
    if (reply.status == 503) response_.set(http::field::retry_after, "1");
    response_.keep_alive(!last_);
    response_.body() = std::move(reply.body);
    response_.prepare_payload();
    // To HEAD, the header says how long the body would be.
    if (parser_ && parser_->get().method() == http::verb::head) response_.body().clear();
    set_deadline(server_.options_.write);
    http::async_write(socket_, response_, [self = shared_from_this()](Failure failure, size_t) {
      if (failure) return self->close();
      if (self->last_) return self->finish();
      self->wait_for_question();
    });
  }

  // If a socket is closed while it has unread bytes, the client may lose the answer. So what the client still
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
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> response_;
  std::array<char, 4096> rest_;
  const asio::ip::address peer_;
  const std::string refusal_;
  bool idle_ = false;       // it waits for the first byte of a question
  bool timed_out_ = false;  // the deadline has passed
  bool last_ = false;       // the connection will be closed after this answer
};

HttpServer::Implementation::Implementation(Service& service, Statistics& statistics,
                                           const HttpOptions& options)
    : service_(service),
      statistics_(statistics),
      options_(with_share(options)),
      on_loopback_(is_loopback(options.listen)),
      context_(static_cast<int>(options.threads) + 1),
      acceptor_(asio::make_strand(context_)),
      signals_(context_, SIGTERM, SIGINT, SIGHUP),
      grace_(acceptor_.get_executor()),
      pause_(acceptor_.get_executor()) {
  listen_at(acceptor_, options.listen);
}

std::string HttpServer::Implementation::endpoint() const {
  const tcp::endpoint bound = acceptor_.local_endpoint();
  const std::string host = bound.address().to_string();
  return fmt::format("http://{}:{}", bound.address().is_v6() ? "[" + host + "]" : host, bound.port());
}

void HttpServer::Implementation::accept() {
  if (!acceptor_.is_open()) return end_connections();
  acceptor_.async_accept(asio::make_strand(context_), [this](Failure failure, tcp::socket socket) {
    if (!failure) welcome(std::move(socket));
    if (!failure || !acceptor_.is_open()) return accept();
    // There are no descriptors or no memory now. Other connections may give some back.
    constexpr auto kPause = std::chrono::milliseconds(100);
    pause_.expires_after(kPause);
    pause_.async_wait([this](Failure) { accept(); });
  });
}

void HttpServer::Implementation::welcome(tcp::socket socket) {
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
std::string HttpServer::Implementation::make_room(const asio::ip::address& peer,
                                                  std::shared_ptr<Connection>& leaving) {
  auto from = peers_.find(peer);
  const bool has_its_share = from != peers_.end() && from->second.open >= options_.connections_of_address;
  if (!has_its_share && served_ < options_.connections) return {};
  if (!has_its_share)
    from = std::ranges::max_element(
        peers_, {}, [](const auto& each) { return each.second.waiting.empty() ? 0 : each.second.open; });
  for (const auto& [turn, connection] : from->second.waiting)
    if ((leaving = connections_.at(connection).lock()) != nullptr) break;
  if (leaving != nullptr) {
    forget(leaving.get());
    return {};
  }
  return has_its_share
             ? fmt::format(
                   "{} has {} connections to this server already, and questions are being answered on all of "
                   "them: try again later, or raise --connections-per-address",
                   peer.to_string(), options_.connections_of_address)
             : fmt::format(
                   "this server has {} connections already, which is its limit, and questions are being "
                   "answered on them: try again later, or raise --connections",
                   options_.connections);
}

// From here on the connection does not count. Under the lock.
void HttpServer::Implementation::forget(Connection* connection) {
  if (!std::exchange(connection->counts, false)) return;
  --served_;
  const auto found = peers_.find(connection->peer());
  found->second.waiting.erase(connection->turn);
  if (--found->second.open == 0) peers_.erase(found);
}

void HttpServer::Implementation::begin_waiting(Connection* connection) {
  const std::lock_guard lock(mutex_);
  if (!connection->counts) return;
  connection->turn = ++turns_;
  peers_.at(connection->peer()).waiting.emplace(connection->turn, connection);
}

void HttpServer::Implementation::end_waiting(Connection* connection) {
  const std::lock_guard lock(mutex_);
  if (const auto found = peers_.find(connection->peer()); found != peers_.end())
    found->second.waiting.erase(connection->turn);
  connection->turn = 0;
}

void HttpServer::Implementation::enter(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  connections_.emplace(connection.get(), connection);
  statistics_.connected();
}

void HttpServer::Implementation::leave(Connection* connection) {
  const std::lock_guard lock(mutex_);
  if (connection->turned_away()) --turned_away_;
  forget(connection);
  connections_.erase(connection);
  statistics_.disconnected();
  if (ending_ && !over_ && connections_.empty())
    asio::post(acceptor_.get_executor(), [this] { grace_.cancel(); });
}

// False if as many threads predict as may. The connection is then told when its turn has come.
bool HttpServer::Implementation::may_predict(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  if (predicting_ == options_.threads) {
    waiting_.push_back(connection);
    return false;
  }
  ++predicting_;
  return true;
}

void HttpServer::Implementation::predicted() {
  std::shared_ptr<Connection> next;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) {
      --predicting_;
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  const auto executor = next->executor();
  asio::post(executor, [next = std::move(next)] { next->predict(); });
}

void HttpServer::Implementation::wait_for_signals(const std::function<void()>& hung_up) {
  signals_.async_wait([this, &hung_up](Failure failure, int signal) {
    if (failure) return;
    if (signal != SIGHUP) {
      signals_.clear();  // the next signal has its default effect and ends the process
      return asio::post(acceptor_.get_executor(), [this] { end(); });
    }
    hung_up();
    wait_for_signals(hung_up);
  });
}

// Accepts who has connected before, and no others. accept() then ends the connections. Runs on the acceptor's
// strand.
void HttpServer::Implementation::end() {
  service_.end();
  Failure failure;
  acceptor_.non_blocking(true, failure);
  while (!failure) {
    tcp::socket socket = acceptor_.accept(asio::make_strand(context_), failure);
    if (!failure) welcome(std::move(socket));
  }
  acceptor_.close(failure);
  pause_.cancel();
}

void HttpServer::Implementation::end_connections() {
  std::vector<std::shared_ptr<Connection>> open;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    for (const auto& [key, connection] : connections_)
      if (auto there = connection.lock()) open.push_back(std::move(there));
  }
  log_info("ending; {} questions are being answered", statistics_.in_flight());
  if (open.empty()) return;
  grace_.expires_after(ticks(options_.grace));
  grace_.async_wait([this](Failure cancelled) {
    if (!cancelled) context_.stop();
  });
  for (const auto& connection : open) connection->end();
}

bool HttpServer::Implementation::run(const std::function<void()>& hung_up) {
  wait_for_signals(hung_up);
  accept();
  std::vector<std::thread> threads;  // one more than may predict, so that one is always there for the rest
  for (unsigned i = 0; i < options_.threads; ++i) threads.emplace_back([this] { context_.run(); });
  context_.run();
  for (std::thread& thread : threads) thread.join();
  const auto all_are_answered = [this] {
    const std::lock_guard lock(mutex_);
    over_ = true;
    return connections_.empty();
  };
  const bool answered = all_are_answered();
  waiting_.clear();
  return answered;
}

void require_free(const std::string& listen) {
  asio::io_context context;
  tcp::acceptor acceptor(context);
  listen_at(acceptor, listen);
}

HttpServer::HttpServer(Service& service, Statistics& statistics, const HttpOptions& options)
    : implementation_(std::make_unique<Implementation>(service, statistics, options)) {}
HttpServer::~HttpServer() = default;
std::string HttpServer::endpoint() const { return implementation_->endpoint(); }
bool HttpServer::run(const std::function<void()>& hung_up) { return implementation_->run(hung_up); }

}  // namespace modelet::cli
