// The part of Core that handles the messages of agents: which nodes there are, what they work for, and what
// they report of their runs.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "comm/control/snapshot_tables.h"
#include "comm/security/keys.h"
#include "comm/transport/endpoint.h"
#include "scheduler/core/core.h"
#include "scheduler/core/node_record.h"
#include "scheduler/core/values/text.h"
#include "scheduler/plan/bytes_text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;

// Upper limits that no real machine reaches; larger claims are reduced to them. The rates are for each core:
// 1 TFLOP/s in fp32, three times the fastest core; ten times as much in bf16; and for row updates more than a
// core gets from memory.
constexpr uint32_t kMostCores = 1024;
constexpr uint64_t kMostMemory = uint64_t{64} << 40;
constexpr double kMostGflops = 1e3, kMostBf16Gflops = 1e4, kMostGbps = 100;  // of a core

bool is_sane(const msg::RegisterT& info) {
  return info.cores > 0 && info.memory_bytes > 0 && is_measure(info.gflops) && is_measure(info.bf16_gflops) &&
         is_measure(info.memory_gbps) && info.gflops > 0 && info.memory_gbps > 0;
}

// Whether a connection came from another machine. `address` is as ZeroMQ gives it: without brackets, and with
// a prefix before IPv4 addresses if the socket takes both kinds.
bool is_elsewhere(std::string_view address) {
  constexpr std::string_view kMapped = "::ffff:";
  if (address.starts_with(kMapped)) address.remove_prefix(kMapped.size());
  const bool is_ipv6 = address.find(':') != std::string_view::npos;
  const std::string host = is_ipv6 ? fmt::format("[{}]", address) : std::string(address);
  return !host.empty() && !comm::is_loopback("tcp://" + host + ":*");
}

msg::RegisterT plausible(msg::RegisterT info) {
  info.version = kept_text(info.version);
  info.cores = std::min(info.cores, kMostCores);
  info.memory_bytes = std::min(info.memory_bytes, kMostMemory);
  info.gflops = std::min(info.gflops, kMostGflops * info.cores);
  info.bf16_gflops = std::min(info.bf16_gflops, kMostBf16Gflops * info.cores);
  info.memory_gbps = std::min(info.memory_gbps, kMostGbps * info.cores);
  return info;
}

}  // namespace

void Core::on(const std::string& peer, const msg::RegisterT& message) {
  if (sender_.role == comm::Role::kNobody) return let_wait(peer, message);
  require_key_of(comm::Role::kAgent);
  if (const std::string why = why_not_registered(peer, message); !why.empty()) return refuse(peer, why);
  auto node = pool_.node_named(message.name);
  if (node != pool_.nodes.end() && node->second.info.incarnation != message.incarnation)
    return challenge(peer, node->second);
  const bool is_new = node == pool_.nodes.end();
  if (!is_new) {  // the same process over a new connection: its run goes on
    node_of_peer_.erase(node->second.peer);
    node->second.peer = peer;
    node->second.challenged = node->second.missed = 0;
    node->second.last_heartbeat = 0;
    node->second.info = plausible(message);
  } else {
    if (pool_.nodes.size() >= pool_.options.max_nodes)
      return refuse(peer, fmt::format("the pool is full ({})", nodes_text(pool_.nodes.size())));
    const msg::RegisterT info = plausible(message);
    const double joined = info.run == 0 ? pool_.now : 0;
    node = pool_.add({.peer = peer, .key = sender_.name, .info = info, .joined = joined});
    node->second.draining = pool_.drained.contains(info.name);
    pool_.lost.erase(info.name);
    pool_.awaited.erase(info.name);
    pool_.log(fmt::format("node '{}' joined{}: {} cores, {}, {:.0f} GFLOP/s, {:.0f} GB/s, version {}",
                          info.name, with_key(sender_), info.cores, bytes_text(info.memory_bytes),
                          info.gflops, info.memory_gbps, info.version));
  }
  node->second.last_seen = pool_.now;
  node->second.address = kept_text(sender_address_);
  if (is_new) pool_.changes.nodes.push_back(node_record(status_of(node->second), 0));
  pool_.newcomers.erase(sender_.key);
  node_of_peer_[peer] = node->first;
  take_name(message.name);
  pool_.send(peer, msg::RegisteredT{{},
                                    node->first,
                                    pool_.options.heartbeat,
                                    pool_.options.dead_after,
                                    pool_.pool_id,
                                    pool_.options.data_port});
  if (is_new)
    take_over(node->first, message);
  else
    resend(node->second, node->first);
  queue_moves_ = true;
}

// Sends the node again what may have been lost with its connection.
void Core::resend(const Node& node, uint64_t id) {
  const auto found = pool_.runs.find(node.run);
  if (found == pool_.runs.end()) return;
  Run& run = found->second;
  const Member* member = run.group().member(id);
  if (has_ended(run.state()) || member == nullptr || node.epoch != run.epoch())
    pool_.send(node.peer, msg::AbortT{{}, run.id(), "the run needs this node no more", node.epoch});
  else
    run.resend(pool_, *member);
}

std::string Core::why_not_registered(const std::string& peer, const msg::RegisterT& message) {
  if (!is_name(message.name)) return fmt::format("an agent's name is {}", kNameRule);
  if (!is_sane(message)) return "an agent must offer cores, memory and a measured speed";
  for (const std::string* text :
       {&message.data_endpoint, &message.holder_endpoint, &message.holder_key, &message.fetch_key})
    if (text->size() > kLongestAddress || kept_text(*text) != *text)
      return "an agent's addresses and keys must be short and printable";
  if (message.private_data.size() > kMostPrivateData ||
      !std::ranges::all_of(message.private_data, [](const std::string& name) { return is_private_name(name); }))
    return fmt::format("an agent has at most {} names of private data, of letters, digits, '-' and '_'",
                       kMostPrivateData);
  // Other agents of a group would be given a wrong address or key, too.
  if (!message.holder_endpoint.empty() && !is_address(message.holder_endpoint))
    return "nobody can connect to the address at which it keeps parts of snapshots";
  for (const std::string* key : {&message.holder_key, &message.fetch_key})
    if (!key->empty() && !comm::is_key(*key))
      return fmt::format("an agent's keys have {} hexadecimal digits", 2 * comm::kKeyBytes);
  // Only a socket in a folder that is closed to others needs no key.
  const bool has_folder = message.holder_endpoint.starts_with("ipc://");
  if (!sender_.name.empty() && !message.holder_endpoint.empty() && !has_folder &&
      (message.holder_key.empty() || message.fetch_key.empty()))
    return "an agent with a key needs keys for the parts of snapshots as well";
  const auto same_peer = node_of_peer_.find(peer);
  if (same_peer != node_of_peer_.end() && pool_.nodes.at(same_peer->second).info.name != message.name)
    return "this connection has registered another agent already";
  if (comm::is_loopback(message.data_endpoint) && is_elsewhere(sender_address_))
    return fmt::format(
        "it offers its data at {}, which no other machine can reach, and connects from {}: give it "
        "--data-address {}",
        kept_text(message.data_endpoint), kept_text(sender_address_), kept_text(sender_address_));
  return why_not_named(message.name);
}

std::string Core::why_not_named(const std::string& name) {
  if (sender_.name.empty()) return "";
  if (const auto known = pool_.names.find(name); known != pool_.names.end())
    return known->second.key == sender_.name
               ? ""
               : fmt::format("an agent with another key has the name '{}'; give each agent a name of its own",
                             name);
  const size_t count = names_of_sender();
  if (count < pool_.options.max_names || idle_name_of_sender() != pool_.names.end()) return "";
  return fmt::format(
      "{} agents with the key '{}' are in the pool, as many as may be: give others a key of their own", count,
      kept_text(sender_.name));
}

// A key that has as many names as it may have gives one up: of those without a node, the one that has been
// unused for longest.
void Core::take_name(const std::string& name) {
  if (sender_.name.empty()) return;
  const bool is_new = !pool_.names.contains(name);
  if (is_new && names_of_sender() >= pool_.options.max_names) {
    const auto idle = idle_name_of_sender();  // there is one: why_not_named()
    pool_.changes.names.push_back({idle->first, ""});
    pool_.names.erase(idle);
  }
  if (is_new) pool_.changes.names.push_back({name, sender_.name});
  pool_.names[name] = {sender_.name, pool_.now};
}

size_t Core::names_of_sender() const {
  return static_cast<size_t>(std::ranges::count_if(
      pool_.names, [this](const auto& entry) { return entry.second.key == sender_.name; }));
}

// The sender's name that has been unused for longest, among those that no node has now; end() if each has a
// node.
Core::Names::iterator Core::idle_name_of_sender() {
  auto oldest = pool_.names.end();
  for (auto it = pool_.names.begin(); it != pool_.names.end(); ++it) {
    if (it->second.key != sender_.name || pool_.node_named(it->first) != pool_.nodes.end()) continue;
    if (oldest == pool_.names.end() || it->second.used < oldest->second.used) oldest = it;
  }
  return oldest;
}

// Another process has the name. Until that process gives a sign of life or is dead, the newcomer gets no
// answer and asks again.
void Core::challenge(const std::string& newcomer, Node& node) {
  // This challenge came from an earlier newcomer that has given up. A sign of life since then is no answer to
  // the new one.
  if (pool_.now - node.challenged > pool_.options.dead_after) node.challenged = 0;
  if (node.challenged > 0 && node.last_seen > node.challenged) {
    node.challenged = 0;
    return refuse(newcomer,
                  fmt::format("an agent named '{}' is at work already; give each agent a name of its own",
                              node.info.name));
  }
  if (node.challenged == 0) node.challenged = pool_.now;
  pool_.send(node.peer, msg::AliveT{});  // fails if its connection is gone (PeerGone)
}

Core::Nodes::iterator Core::node_of(const std::string& peer) {
  require_key_of(comm::Role::kAgent);
  const auto known = node_of_peer_.find(peer);
  if (known == node_of_peer_.end()) {
    if (strangers_.next())
      pool_.log(fmt::format("ignored a message of an agent that has to register again (number {})",
                            strangers_.count()));
    pool_.send(peer, msg::RegisterAgainT{});
    return pool_.nodes.end();
  }
  const auto node = pool_.nodes.find(known->second);
  node->second.last_seen = pool_.now;
  return node;
}

void Core::on(Nodes::iterator found, const msg::HeartbeatT& message) {
  Node& node = found->second;
  if (message.number != 0 && message.number <= node.last_heartbeat) return ignore(node, "a heartbeat");
  if (message.number != 0) node.last_heartbeat = message.number;
  node.disk_free_bytes = message.disk_free_bytes;
  node.suspended = kept_text(message.suspended);
  node.sent_bytes = message.sent_bytes;
  node.received_bytes = message.received_bytes;
  pool_.send(node.peer, msg::AliveT{{}, message.number});
  if (message.run != 0 && message.run != node.run) {
    if (node.run == 0) node.stray = message.run;
    return pool_.send(
        node.peer,
        msg::AbortT{{}, message.run, "the scheduler does not know this run on this node", message.epoch});
  }
  if (node.run == 0) {
    if (std::exchange(node.stray, 0) != 0) queue_moves_ = true;
    return;
  }
  Run& run = pool_.runs.at(node.run);
  if (message.run == node.run && (message.epoch == 0 || message.epoch == node.epoch)) {
    node.confirmed = true;
    node.step = message.step;
    if (!has_ended(run.state()) && node.epoch == run.epoch()) run.stepped(node.info.name, message.step);
    return;
  }
  // The node was given a run but works on nothing, or works for a group that has ended: Prepare or RunDone
  // was lost with a connection.
  if (!node.confirmed && pool_.now - node.bound_since <= pool_.options.dead_after) return;
  const Member* member = run.group().member(found->first);
  if (member != nullptr && member->done) return;
  node.release();
  node.stray = message.run;
  if (member != nullptr) run.lost_its_part(pool_, *member);
  queue_moves_ = true;
}

// Has no effect and is counted: a message that was sent again after a reconnect although it had arrived, one of
// a group that is over, or one that makes no sense.
void Core::ignore(const Node& node, const char* message) {
  if (ignored_.next())
    pool_.log(fmt::format("node '{}': ignored {}: nothing new, or not of the present group (number {})",
                          node.info.name, message, ignored_.count()));
}

void Core::on(Nodes::iterator node, const msg::PreparedT& message) {
  const auto run = pool_.runs.find(message.run);
  const bool is_meant = run != pool_.runs.end() && node->second.run == message.run &&
                        run->second.state() == msg::RunState::Forming && run->second.epoch() == message.epoch;
  const Member* member = is_meant ? run->second.group().member(node->first) : nullptr;
  if (member == nullptr) return ignore(node->second, "a report of readiness");
  run->second.prepared(pool_, *member, message);
  queue_moves_ = true;
}

void Core::on(Nodes::iterator node, const msg::RunEventT& message) {
  const auto found = pool_.runs.find(message.run);
  if (found == pool_.runs.end()) return ignore(node->second, "an event");
  Run& run = found->second;
  const uint64_t agent = node->second.info.incarnation;
  const bool is_log = message.kind == msg::EventKind::Log;
  const auto text = is_log ? kept_lines(message.log) : kept_event(message.json);
  // The event was sent again, or a former scheduler wrote it down and died before it could confirm it.
  if (!text || (message.number != 0 && message.number <= node->second.last_event) ||
      run.journal().has(agent, message.number))
    return ignore(node->second, "an event");
  if (!is_log && (has_ended(run.state()) || run.group().member(node->first) == nullptr ||
                  (message.epoch != 0 && message.epoch != run.epoch())))
    return ignore(node->second, "an event");
  node->second.last_event = std::max(node->second.last_event, message.number);
  if (is_log) return keep_log(node->second, run, *text);
  run.reported(pool_, node->first, message, *text);
}

// Lines that a node has logged go to the ledger only; they are not sent to watchers. The last ones arrive
// after the run has ended.
void Core::keep_log(Node& node, const Run& run, const std::string& lines) {
  const std::string& name = node.info.name;
  const bool has_worked_for_it =
      run.group().has_been_ready(name) ||
      std::ranges::find(run.group().members(), name, &Member::name) != run.group().members().end();
  if (pool_.options.has_ledger && has_worked_for_it && !lines.empty() &&
      node.may_log(lines.size(), pool_.now))
    pool_.changes.logs.push_back({run.id(), name, lines});
}

void Core::on(Nodes::iterator found, const msg::RunDoneT& message) {
  Node& node = found->second;
  // It was told to abort what it still worked for, and has done so.
  if (node.run == 0 && node.stray != 0 && node.stray == message.run) {
    node.stray = 0;
    queue_moves_ = true;
    return;
  }
  // With an outcome that there is not, the record of the run could not be read again.
  if (message.run == 0 || node.run != message.run || node.epoch != message.epoch ||
      message.outcome > msg::Outcome::Failed)
    return ignore(node, "a report of an end");
  Run& run = pool_.runs.at(message.run);
  const Member* member = run.group().member(found->first);
  if (member != nullptr && member->done) return ignore(node, "a report of an end");
  if (member != nullptr && run.epoch() == message.epoch)
    run.member_done(pool_, *member, message);
  else
    node.release();  // the run has another group by now
  queue_moves_ = true;
}

// ---- nodes that wish to leave

void Core::on(Nodes::iterator node, const msg::LeaveRequestT& message) {
  if (!node->second.leaving)
    pool_.log(fmt::format("node '{}' wishes to leave within {:.0f} s: {}", node->second.info.name,
                          is_measure(message.seconds) ? message.seconds : 0, kept_text(message.reason)));
  node->second.leaving = true;
  node->second.leaves_why = kept_text(message.reason);
  node->second.released = false;
  end_work_of(node->second, node->first, fmt::format("node '{}' wishes to leave", node->second.info.name));
  queue_moves_ = true;
}

void Core::end_work_of(Node& node, uint64_t id, const std::string& why) {
  for (const uint64_t run : {node.run, node.planned_for})
    if (const auto found = pool_.runs.find(run); found != pool_.runs.end())
      found->second.node_unwilling(pool_, id, why);
}

// Releases the nodes that wish to leave once no run needs their work or the files that they hold.
void Core::release_leavers() {
  for (auto& [id, node] : pool_.nodes) {
    if (!node.leaving || node.released || node.run != 0) continue;
    const std::string& name = node.info.name;
    if (std::ranges::any_of(pool_.runs,
                            [&](const auto& entry) { return entry.second.needs_files_of(pool_, name); }))
      continue;
    node.released = true;
    pool_.send(node.peer, msg::ReleasedT{});
  }
}

// ---- groups

void Core::on(Nodes::iterator node, const msg::PeerMissedT& message) {
  const auto run = pool_.runs.find(message.run);
  if (run == pool_.runs.end() || node->second.run != message.run || node->second.epoch != message.epoch ||
      run->second.epoch() != message.epoch || message.rank >= run->second.group().members().size())
    return ignore(node->second, "a report of a missed rank");
  if (!message.over && message.step < node->second.step)  // it has got on since
    return ignore(node->second, "a report of a missed rank");
  const Member& member = run->second.group().members()[message.rank];
  if (message.over)
    run->second.member_found(pool_, node->second.info.name, member);
  else
    run->second.member_missed(pool_, node->second.info.name, message.step, member, message.why);
}

void Core::on(Nodes::iterator node, const msg::SnapshotHeldT& message) {
  const auto found = pool_.runs.find(message.run);
  if (found == pool_.runs.end()) return ignore(node->second, "a report of files");
  Run& run = found->second;
  try {
    comm::Snapshot files = msg::snapshot_of(message);
    // A member reports the files of its own rank. A node that is no longer a member may still have brought
    // files to the store.
    const std::vector<Member>& members = run.group().members();
    const bool own = message.rank < members.size() && members[message.rank].node == node->first;
    const std::string& name = node->second.info.name;
    // An empty name is the scheduler's store.
    for (comm::SnapshotFile& file : files.files)
      std::erase_if(file.holders,
                    [&](const auto& each) { return !each.empty() && (own ? !is_name(each) : each != name); });
    if (!run.snapshot_held(pool_, own ? message.rank : UINT32_MAX, files))
      ignore(node->second, "a report of files");
  } catch (const FormatError& error) {
    if (failures_.next())
      pool_.log(fmt::format("node '{}' holds what makes no sense: {} (number {})", node->second.info.name,
                            kept_text(error.what()), failures_.count()));
  }
  queue_moves_ = true;
}

void Core::on(Nodes::iterator node, const msg::LeaveT&) {
  pool_.changes.nodes.push_back({.name = node->second.info.name});
  remove_node(node, "left the pool");  // its disk keeps its files, which count again when it is back
  queue_moves_ = true;
}

void Core::lose_node(Nodes::iterator node, const std::string& why) {
  ++pool_.losses;
  pool_.changes.pool = pool_.record();
  show_as_lost(status_of(node->second), why);
  remove_node(node, why);
}

void Core::remove_node(Nodes::iterator node, const std::string& why) {
  const auto [id, gone] = *node;
  pool_.log(fmt::format("node '{}' {}", gone.info.name, why));
  node_of_peer_.erase(gone.peer);
  if (const auto name = pool_.names.find(gone.info.name); name != pool_.names.end())
    name->second.used = pool_.now;
  pool_.remove(id);
  for (auto& [run_id, run] : pool_.runs) run.holder_gone(pool_, gone.info.name);
  for (const uint64_t run_id : {gone.run, gone.planned_for})
    if (const auto run = pool_.runs.find(run_id); run != pool_.runs.end())
      run->second.node_gone(pool_, id, gone.info.name, why);
}

}  // namespace modelet::scheduler
