#include "scheduler/server/server.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/log.h"
#include "base/text/printable.h"
#include "comm/transport/endpoint.h"
#include "scheduler/core/submission.h"

namespace modelet::scheduler {
namespace {

// Seconds. A client that watches a run gets its status at least once a second, even if agents send heartbeats
// less often.
constexpr double kLongestTick = 1;
constexpr double kStoreUpdateSeconds = 5;  // what is told in between follows from the ledger's changes
// Messages are handled together for at most so long before what follows from them is written down and sent.
constexpr double kTogetherSeconds = 0.05;
constexpr size_t kMostTogether = 64;
constexpr size_t kMostReadBytes = size_t{16} << 20;  // of messages that are read and wait for their turn
// The peer of messages that come from this process. ZeroMQ's names of connections are shorter.
constexpr size_t kLongestPeer = 255;
const std::string kInnerPeer(kLongestPeer + 1, 'i');

const std::string& checked_endpoint(const ServerOptions& options) {
  comm::check_endpoint(options.listen, true);
  comm::require_keys(options.listen, options.keys.has_value(), options.insecure, "the scheduler's address",
                     "--key FILE and --allow-list FILE");
  return options.listen;
}

std::unique_ptr<comm::DataServer> data_server(const ServerOptions& options, const std::string& endpoint,
                                              const StorePolicy& policy) {
  if (!options.data) return nullptr;
  comm::DataServerOptions data = *options.data;
  data.why_not = [&policy](const comm::Identity& sender, const comm::control::ToSchedulerMessage& message) {
    return policy.why_not(sender, message);
  };
  data.is_early = [&policy](const comm::Identity& sender, const comm::control::ToSchedulerMessage& message) {
    return policy.is_early(sender, message);
  };
  data.most_open = 4096;  // snapshots have many files
  data.most_open_of_key = 1024;
  // The ledger will say that the store has the file, and both must survive the same power cut.
  data.on_whole_snapshot = [](comm::StoredContent& file) { file.sync(); };
  const auto at = [&](uint16_t port) {
    return std::make_unique<comm::DataServer>(data, comm::data_endpoint(endpoint, port), options.keys);
  };
  if (options.data_port == 0 && options.former_data_port != 0) try {
      return at(options.former_data_port);
    } catch (const Error& error) {  // agents learn the new port when they register
      log_info("another port for data than before: {}", error.what());
    }
  return at(options.data_port);
}

// At the control port agents with unknown keys wait to be let in; the port for data admits only those who were.
std::optional<comm::control::ServerKeys> control_keys(const ServerOptions& options) {
  auto keys = options.keys;
  if (keys) keys->hears_strangers = true;
  return keys;
}

CoreOptions core_options(const ServerOptions& options, const comm::DataServer* data) {
  CoreOptions core = options.core;
  core.data_port = data == nullptr ? uint16_t{0} : data->port();
  core.has_ledger = options.read_log != nullptr;
  return core;
}

}  // namespace

Server::Server(const ServerOptions& options)
    : socket_(checked_endpoint(options), control_keys(options)),
      is_local_(comm::is_loopback(socket_.endpoint())),
      allow_list_(options.keys ? options.keys->allow_list : std::filesystem::path()),
      data_(data_server(options, socket_.endpoint(), policy_)),
      persist_(options.persist),
      read_log_(options.read_log),
      nodes_with_log_(options.nodes_with_log),
      core_(core_options(options, data_.get()), options.restored),
      tick_(std::min(options.core.heartbeat, kLongestTick)),
      errands_(wake_),
      observe_(options.observe),
      planner_(options.plan, wake_) {
  if (!options.invitations.empty()) invitations_.emplace(options.invitations);
  if (!options.keys && !comm::is_private(endpoint()))
    log_warning(
        "{} has no keys: connections are neither encrypted nor authenticated, whoever reaches it can run "
        "jobs and read their data",
        endpoint());
}

void Server::run() {
  const Errands::Open open(errands_);
  const SteadyClock clock;
  double next_tick = clock.now();
  while (!stop_) {
    read_messages(waiting_.empty() ? std::max(0.0, next_tick - clock.now()) : 0);
    if (wake_.is_set()) {
      wake_.clear();
      for (const Planned& plan : planner_.take()) core_.add(clock.now(), plan);
      errands_.carry_out();
      if (failure_) std::rethrow_exception(failure_);
    }
    const double until = clock.now() + kTogetherSeconds;
    for (size_t handled = 0; handled < kMostTogether && clock.now() < until; ++handled) {
      const auto next = waiting_.next();
      if (!next) break;
      if (const std::string why = why_not_submitted(*next); !why.empty())
        socket_.send(next->peer, comm::control::RefusedT{{}, why});
      else
        core_.add(clock.now(), *next);
    }
    carry_out(clock.now());
    // What has arrived is handled before time passes. Otherwise a busy scheduler could take an agent for dead while
    // its heartbeat waits.
    if (clock.now() < next_tick + (waiting_.empty() ? 0 : tick_)) continue;
    next_tick = clock.now() + tick_;
    core_.add(clock.now(), Tick{});
    carry_out(clock.now());
    if (observe_) observe_(core_);
    if (clock.now() >= last_update_ + kStoreUpdateSeconds) store_lags_ = true;
    if (store_lags_) update_store();
  }
}

// Why a submission is refused for the files that it names. Whoever knows an address may not have the file: a
// key may name only what it has sent itself. Empty for other messages, and in a pool without keys.
std::string Server::why_not_submitted(const Received& received) const {
  const auto* submit = std::get_if<comm::control::SubmitT>(&received.message);
  const comm::Role role = received.sender.role;
  if (submit == nullptr || !data_ || (role != comm::Role::kUser && role != comm::Role::kAdmin)) return "";
  try {
    const Submission submission = checked_submission(*submit, data_port());
    // Looking for files takes time, so there must be no more than the key may name.
    std::set<std::string> named;
    for (const comm::Snapshot& start : submission.resume) named.merge(comm::addresses_of(start));
    if (core_.is_key_full(received.sender.name, {.runs = 1, .addresses = named.size()})) return "";
    named.insert({submit->train_data, submit->test_data, submit->division});
    for (const std::string& address : named)
      if (!address.empty() && !data_->has_sent(received.sender.name, address))
        return fmt::format("the key '{}' has not sent data {}: submit the run again", received.sender.name,
                           printable(address));
  } catch (const Error&) {  // no valid submission: the core says why
  }
  return "";
}

// Reads what has arrived, as far as there is room for it, so that it waits for its turn here and not behind
// everything that others have sent.
void Server::read_messages(double wait) {
  while (waiting_.bytes() < kMostReadBytes) {
    auto received = socket_.receive(std::exchange(wait, 0), wake_.fd());
    if (!received) return;
    if (is_local_) received->address.clear();  // no peer is on another machine, and ipc has no addresses
    // Without keys each connection counts as a key. Strangers count as one.
    const bool is_stranger = received->sender.role == comm::Role::kNobody;
    const std::string key =
        received->sender.name.empty() && !is_stranger ? received->peer : received->sender.name;
    const size_t bytes = received->bytes + sizeof *received;
    waiting_.add(key,
                 Received{std::move(received->peer), std::move(received->message),
                          std::move(received->sender), std::move(received->address)},
                 bytes);
  }
}

// Carries out what follows from the events that were added, and whatever follows from that. The changes of all of
// them come first and are written down together, because one write takes as long as many.
void Server::carry_out(double now) {
  for (std::vector<Action> actions = core_.take(); !actions.empty(); actions = core_.take())
    for (Action& action : actions) act(now, action);
}

// This takes long if runs have very many files. Other work then comes first.
void Server::update_store() {
  constexpr double kAtOnce = 0.01, kShare = 0.02;  // seconds that it may always take; else of the time
  const SteadyClock clock;
  if (!data_ || clock.now() < next_update_) return policy_.set_lags(true);
  const double begin = clock.now();
  data_->keep(core_.data_in_use(), core_.known_data());
  policy_.set_results(core_.results());
  policy_.set_files_of_agents(core_.files_of_agents());
  policy_.set_lags(false);
  store_lags_ = false;
  last_update_ = clock.now();
  next_update_ =
      last_update_ - begin <= kAtOnce ? last_update_ : last_update_ + (last_update_ - begin) / kShare;
}

void Server::act(double now, Action& action) {
  if (const auto* line = std::get_if<Log>(&action)) {
    log_info("{}", line->text);
  } else if (auto* request = std::get_if<PlanRequest>(&action)) {
    planner_.ask(std::move(*request));
  } else if (const auto* change = std::get_if<Persist>(&action)) {
    if (persist_) persist_(change->records);
    // A client that is told of a result may fetch it at once.
    store_lags_ = store_lags_ || !change->records.runs.empty() || !change->records.forgotten_runs.empty();
    if (store_lags_) update_store();
  } else if (const auto* forgotten = std::get_if<ForgetPlan>(&action)) {
    planner_.forget(forgotten->number);
  } else if (const auto* asked = std::get_if<ReadLog>(&action)) {
    Action answer = Send{asked->peer, answer_about_log(*asked)};
    act(now, answer);
  } else if (auto* entry = std::get_if<LetIn>(&action)) {
    std::string why = why_not_let_in(*entry);
    core_.add(now, LetInDone{std::move(*entry), std::move(why)});
  } else if (auto* message = std::get_if<Send>(&action); message != nullptr && message->peer == kInnerPeer) {
    inner_answer_ = std::move(message->message);
  } else if (message != nullptr) {
    if (socket_.send(message->peer, std::move(message->message)) !=
        comm::control::ServerSocket::Sent::kQueued)
      core_.add(now, PeerGone{message->peer});
  }
}

comm::control::FromSchedulerMessage Server::ask(const comm::Identity& sender,
                                                comm::control::ToSchedulerMessage message) {
  // The errand outlives this call if nobody waits any more.
  const auto question = std::make_shared<comm::control::ToSchedulerMessage>(std::move(message));
  return errands_.run<comm::control::FromSchedulerMessage>(
      [this, sender, question] { return answer(sender, std::move(*question)); });
}

// Like any message, it is handled after what came before it, and answered after what follows from it is written down.
comm::control::FromSchedulerMessage Server::answer(const comm::Identity& sender,
                                                   comm::control::ToSchedulerMessage message) {
  const double now = SteadyClock().now();
  inner_answer_.reset();
  core_.add(now, Received{kInnerPeer, std::move(message), sender});
  try {
    carry_out(now);
  } catch (...) {  // what follows cannot be written down, which is more than whoever asks can be told
    failure_ = std::current_exception();
    throw;
  }
  if (!inner_answer_) throw Error("the scheduler has no answer to this");
  return std::move(*std::exchange(inner_answer_, std::nullopt));
}

// Adds the key to the allow-list, which says who may enter. A use of the invitation is taken first: if the list then
// cannot be written, one use is lost, and nobody gets in without one.
std::string Server::why_not_let_in(const LetIn& asked) {
  try {
    if (!asked.secret.empty() && !invitations_)
      return "this scheduler keeps no invitations: start modelet-scheduler with --state";
    if (!asked.secret.empty())
      if (std::string why = invitations_->take(asked.secret); !why.empty()) return why;
    comm::add_to_allow_list(allow_list_, "agent", asked.key, asked.name);
    return "";
  } catch (const UsageError& error) {
    log_warning("{}", error.what());
    return fmt::format("the allow-list has the name '{}' for another key: give this agent another --name",
                       asked.name);
  } catch (const std::exception& error) {
    log_error("{}", error.what());
    return "the scheduler cannot write its allow-list or its invitations; its own log says why";
  }
}

// A log that cannot be read, because of the disk for instance, is no reason to end the scheduler.
comm::control::FromSchedulerMessage Server::answer_about_log(const ReadLog& asked) const {
  try {
    return read_log(asked);
  } catch (const std::exception& error) {
    log_warning("the log of run {} cannot be read: {}", asked.run, error.what());
    return comm::control::RefusedT{
        // the error may contain a path of this machine
        {},
        fmt::format("the log of run {} cannot be read; the scheduler's own log says why", asked.run)};
  }
}

comm::control::FromSchedulerMessage Server::read_log(const ReadLog& asked) const {
  if (!asked.node.empty()) {
    const std::vector<std::string> nodes = nodes_with_log_(asked.run);
    if (std::ranges::find(nodes, asked.node) == nodes.end())
      return comm::control::RefusedT{
          {},
          fmt::format("node '{}' has logged nothing for run {}; nodes that have: {}", printable(asked.node),
                      asked.run, nodes.empty() ? "none" : fmt::format("{}", fmt::join(nodes, ", ")))};
  }
  const LogPage page = read_log_(asked.run, asked.node, asked.offset);
  comm::control::RunLogT log;
  log.run = asked.run;
  log.text = page.text;
  log.next = page.next;
  log.complete = asked.has_ended && (asked.node.empty() ? page.next >= asked.last_event : page.text.empty());
  return log;
}

void Server::request_stop() {
  stop_ = true;
  wake_.set();
}

}  // namespace modelet::scheduler
