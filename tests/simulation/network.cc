#include "tests/simulation/network.h"

#include <algorithm>
#include <variant>

#include "comm/control/snapshot_tables.h"

namespace modelet::simulation {
namespace {

constexpr double kTryAgain = 0.25;   // seconds until an undelivered message is sent again
constexpr double kTimeOut = 3;       // seconds until a question counts as lost
constexpr double kLongestBlock = 6;  // seconds of a blocked wire that a connection survives
constexpr double kLongDelay = 3;     // seconds by which an intervention delays a message
constexpr double kLateAnswer = 1.5;  // the same for a question or its answer: it comes before the time is over

// Whether the message is one of the many regular ones, which are not worth an intervention each.
bool is_routine(const msg::ToSchedulerMessage& message) {
  return std::holds_alternative<msg::HeartbeatT>(message);
}
bool is_routine(const msg::FromSchedulerMessage& message) {
  return std::holds_alternative<msg::AliveT>(message) || std::holds_alternative<msg::RunStatusT>(message) ||
         std::holds_alternative<msg::RunEventT>(message);
}

bool is_of_client(const msg::ToSchedulerMessage& message) {
  return std::holds_alternative<msg::SubmitT>(message) || std::holds_alternative<msg::WatchT>(message);
}

template <class Table>
std::string details(const Table& table) {
  std::string text;
  if constexpr (requires { table.run; }) text += fmt::format(" run {}", table.run);
  if constexpr (requires { table.epoch; }) text += fmt::format(" epoch {}", table.epoch);
  if constexpr (requires { table.step; }) text += fmt::format(" step {}", table.step);
  if constexpr (requires { table.rank; }) text += fmt::format(" rank {}", table.rank);
  if constexpr (requires { table.number; }) text += fmt::format(" number {}", table.number);
  if constexpr (requires { msg::snapshot_of(table); }) text += " " + format_snapshot(msg::snapshot_of(table));
  if constexpr (requires { table.snapshot; })
    if (table.snapshot != nullptr) text += " from " + format_snapshot(msg::snapshot_of(*table.snapshot));
  if constexpr (requires { table.json; }) text += fmt::format(" {}", table.json);
  if constexpr (requires { table.reason; }) text += fmt::format(" '{}'", table.reason);
  if constexpr (requires { table.detail; })
    text += fmt::format(" {} '{}'", EnumNameRunState(table.state), table.detail);
  if constexpr (requires { table.outcome; })
    text += fmt::format(" {} '{}'{}", EnumNameOutcome(table.outcome), table.message, table.retry ? " retry" : "");
  return text;
}

}  // namespace

std::string describe(const msg::ToSchedulerMessage& message) {
  return EnumNameToSchedulerBody(static_cast<msg::ToSchedulerBody>(message.index() + 1)) +
         std::visit([](const auto& table) { return details(table); }, message);
}

std::string describe(const msg::FromSchedulerMessage& message) {
  return EnumNameFromSchedulerBody(static_cast<msg::FromSchedulerBody>(message.index() + 1)) +
         std::visit([](const auto& table) { return details(table); }, message);
}

// ---- wires

double Network::delay(int from, int to) {
  double seconds = world_.between(one_way_.first, one_way_.second);
  for (const int machine : {from, to})
    if (const auto found = slow_.find(machine); found != slow_.end() && found->second.first > world_.now())
      seconds += found->second.second * world_.rng().uniform_double();
  return seconds;
}

double Network::blocked_until(int from, int to) const {
  const auto found = blocked_.find({from, to});
  return found == blocked_.end() ? 0 : found->second;
}

// The heartbeats of ZeroMQ end a connection whose wire stays blocked.
void Network::block(int from, int to, double seconds) {
  double& until = blocked_[{from, to}];
  until = std::max(until, world_.now() + seconds);
  const int client = from == 0 ? to : from;
  if ((from != 0 && to != 0) || seconds <= kLongestBlock || !links_.contains(client)) return;
  world_.after(kLongestBlock + world_.between(0, 2), [this, from, to, link = links_[client]] {
    if (blocked_until(from, to) <= world_.now()) return;
    if (world_.chance(0.5)) link->server_open = false;
    client_notices(link);
  });
}

void Network::heal() {
  blocked_.clear();
  slow_.clear();
  doubling_ = {0, 0};
}

Deed Network::next_deed(bool counts) {
  return counts && ++messages_ == intervention_.message ? intervention_.deed : Deed::kNone;
}

bool Network::is_doubled() {
  return doubling_.first > world_.now() && world_.chance(doubling_.second);
}

// ---- control connections

void Network::connect(ControlEnd& client) {
  client.post(world_.between(0.01, 0.2), [this, &client] { try_to_connect(client); });
}

void Network::try_to_connect(ControlEnd& client) {
  const double now = world_.now();
  if (!server_->is_alive() || blocked_until(client.machine(), 0) > now || blocked_until(0, client.machine()) > now)
    return client.post(world_.between(0.1, 0.4), [this, &client] { try_to_connect(client); });
  const auto link = std::make_shared<Connection>();
  link->peer = fmt::format("m{}#{}", client.machine(), ++connections_);
  link->client = &client;
  links_[client.machine()] = peers_[link->peer] = link;
  world_.note("{} connects", link->peer);
  client.connected();
}

template <class Message>
void Network::queue(const Link& link, Connection::Queue<Message>& queue, Message message) {
  constexpr bool is_up = std::is_same_v<Message, msg::ToSchedulerMessage>;
  const int client = link->client->machine();
  queue.last = std::max(queue.last, world_.now() + (is_up ? delay(client, 0) : delay(0, client)));
  queue.items.emplace_back(queue.last, std::make_shared<const Message>(std::move(message)));
  pump(link, queue);
}

template <class Message>
void Network::pump(const Link& link, Connection::Queue<Message>& queue) {
  constexpr bool is_up = std::is_same_v<Message, msg::ToSchedulerMessage>;
  const int client = link->client->machine();
  while (!queue.items.empty() && !queue.pumping) {
    const bool is_open = !link->dead && (is_up ? link->server_open : link->client_open);
    if (!is_open) return queue.items.clear();
    const double ready =
        std::max(queue.items.front().first, is_up ? blocked_until(client, 0) : blocked_until(0, client));
    if (ready > world_.now()) {
      queue.pumping = true;
      return world_.after(ready - world_.now(), [this, link, &queue] {
        queue.pumping = false;
        pump(link, queue);
      });
    }
    const auto message = queue.items.front().second;
    queue.items.pop_front();
    const Deed deed = next_deed(!is_routine(*message));
    if (deed == Deed::kDrop) {
      world_.note("INTERVENTION: {} is lost with its connection", describe(*message));
      link->server_open = false;
      client_notices(link);
      return;
    }
    if (deed == Deed::kDelay) {
      world_.note("INTERVENTION: {} is late", describe(*message));
      queue.items.emplace_front(world_.now() + kLongDelay, message);
      queue.last = std::max(queue.last, world_.now() + kLongDelay);
      --messages_;  // sends the same message once more
      intervention_ = {};
      continue;
    }
    deliver(link, message, deed);
  }
}

bool Network::send(ControlEnd& client, msg::ToSchedulerMessage message) {
  const auto found = links_.find(client.machine());
  if (found == links_.end() || !found->second->client_open) return false;
  const Link link = found->second;
  queue(link, link->up, std::move(message));
  return true;
}

bool Network::send(const std::string& peer, msg::FromSchedulerMessage message) {
  const auto found = peers_.find(peer);
  if (found == peers_.end() || !found->second->server_open) return false;
  const Link link = found->second;
  queue(link, link->down, std::move(message));
  return true;
}

void Network::deliver(const Link& link, const std::shared_ptr<const msg::ToSchedulerMessage>& message, Deed deed) {
  if (deed != Deed::kNone) world_.note("INTERVENTION: {} {}", static_cast<int>(deed), describe(*message));
  if (deed == Deed::kKillSender) link->client->kill();
  if (deed == Deed::kKillReceiver) return server_->kill();
  const bool twice = !is_of_client(*message) && (is_doubled() || deed == Deed::kDouble);
  for (int i = 0; i < (twice ? 2 : 1); ++i)
    server_->post(0, [this, link, message] {
      if (!is_routine(*message)) world_.note("{} -> scheduler: {}", link->peer, describe(*message));
      server_->received(link->peer, *message);
    });
}

void Network::deliver(const Link& link, const std::shared_ptr<const msg::FromSchedulerMessage>& message,
                      Deed deed) {
  if (deed != Deed::kNone) world_.note("INTERVENTION: {} {}", static_cast<int>(deed), describe(*message));
  if (deed == Deed::kKillSender) server_->kill();
  if (deed == Deed::kKillReceiver) return link->client->kill();
  for (int i = 0; i < (is_doubled() || deed == Deed::kDouble ? 2 : 1); ++i)
    link->client->post(0, [this, link, message] {
      if (!link->client_open) return;
      if (!is_routine(*message)) world_.note("scheduler -> {}: {}", link->peer, describe(*message));
      link->client->received(*message);
    });
}

void Network::client_notices(const Link& link) {
  if (!link->client_open) return;
  link->client_open = false;
  if (link->client->is_alive()) connect(*link->client);
}

void Network::reset(ControlEnd& client) {
  const auto found = links_.find(client.machine());
  if (found == links_.end()) return;
  found->second->server_open = false;
  client_notices(found->second);
}

void Network::half_open(ControlEnd& client, double client_after, double server_after) {
  const auto found = links_.find(client.machine());
  if (found == links_.end()) return;
  const Link link = found->second;
  link->dead = true;
  world_.after(client_after, [this, link] { client_notices(link); });
  world_.after(server_after, [link] { link->server_open = false; });
}

// What the client has sent still arrives. If its whole machine is gone, the scheduler notices nothing for a
// while.
void Network::client_died(ControlEnd& client, bool silently) {
  const auto found = links_.find(client.machine());
  if (found == links_.end()) return;
  const Link link = found->second;
  links_.erase(found);
  link->client_open = false;
  link->dead = silently;
  world_.after(silently ? 8 : 0.05, [link] { link->server_open = false; });
}

void Network::server_died() {
  for (const auto& [machine, link] : links_) {
    if (!link->server_open) continue;
    link->server_open = false;
    world_.after(world_.between(0, 0.3), [this, link = link] { client_notices(link); });
  }
  peers_.clear();
}

// ---- other messages

void Network::carry(Host& from, Host& to, std::function<bool()> wanted, std::function<bool()> arrive,
                    std::function<void()> broken) {
  const auto try_once = [this, &from, &to, wanted, arrive, broken] {
    if (!wanted()) return;
    const auto again = [this, &from, &to, wanted, arrive, broken] {
      world_.after(kTryAgain, [this, &from, &to, wanted, arrive, broken] { carry(from, to, wanted, arrive, broken); });
    };
    if (!to.is_alive() || blocked_until(from.machine(), to.machine()) > world_.now()) return again();
    const Deed deed = next_deed(true);
    if (deed != Deed::kNone) world_.note("INTERVENTION: {} a message of a rank", static_cast<int>(deed));
    if (deed == Deed::kKillSender) from.kill();
    if (deed == Deed::kKillReceiver) return to.kill();
    if (deed == Deed::kDrop) return broken ? from.post(0, broken) : again();
    const double late = deed == Deed::kDelay ? kLongDelay : 0;
    const bool twice = is_doubled() || deed == Deed::kDouble;
    to.post(late, [this, &to, arrive, again, twice] {
      if (!arrive()) return again();
      if (twice) to.post(world_.between(0, 0.5), [arrive] { arrive(); });
    });
  };
  world_.after(delay(from.machine(), to.machine()), try_once);
}

void Network::call(Host& from, Host& to, std::function<bool()> answer, std::function<void(bool)> done) {
  const auto once = std::make_shared<bool>(false);
  const auto finish = [&from, life = from.life(), once, done](double seconds, bool good) {
    if (from.life() != life) return;
    from.post(seconds, [once, done, good] {
      if (!std::exchange(*once, true)) done(good);
    });
  };
  finish(kTimeOut, false);
  world_.after(delay(from.machine(), to.machine()), [this, &from, &to, answer, finish] {
    if (blocked_until(from.machine(), to.machine()) > world_.now()) return;
    if (!to.is_alive()) return finish(0.01, false);
    const Deed deed = next_deed(true);
    if (deed != Deed::kNone) world_.note("INTERVENTION: {} a question", static_cast<int>(deed));
    if (deed == Deed::kDrop) return;
    if (deed == Deed::kKillSender) from.kill();
    if (deed == Deed::kKillReceiver) return to.kill();
    const bool twice = is_doubled() || deed == Deed::kDouble;
    to.post(deed == Deed::kDelay ? kLateAnswer : 0, [this, &from, &to, answer, finish, twice] {
      const bool good = answer();
      if (twice) answer();
      give_back(from, to, good, finish);
    });
  });
}

void Network::give_back(Host& from, Host& to, bool good, const std::function<void(double, bool)>& finish) {
  if (blocked_until(to.machine(), from.machine()) > world_.now()) return;
  const Deed deed = next_deed(true);  // an answer that comes twice is ignored
  if (deed != Deed::kNone) world_.note("INTERVENTION: {} an answer", static_cast<int>(deed));
  if (deed == Deed::kDrop) return;
  if (deed == Deed::kKillSender) to.kill();
  if (deed == Deed::kKillReceiver) return from.kill();
  finish(delay(to.machine(), from.machine()) + (deed == Deed::kDelay ? kLateAnswer : 0), good);
}

}  // namespace modelet::simulation
