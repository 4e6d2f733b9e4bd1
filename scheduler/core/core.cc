#include "scheduler/core/core.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "scheduler/access/permission.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;

constexpr double kPatienceIfCutOff = 6;  // times dead_after
constexpr double kTimeWritten = 60;      // seconds between two records of Pool::node_seconds

}  // namespace

std::vector<Action> Core::handle(double now, const Event& event) {
  add(now, event);
  return take();
}

void Core::add(double now, const Event& event) {
  pool_.now = now;
  if (!has_begun_) begin();
  const auto* received = std::get_if<Received>(&event);
  // A client that asked is told of a failure. An agent either did not ask or will ask again, and it would end
  // if it were refused.
  const bool is_asked = received != nullptr && !node_of_peer_.contains(received->peer) &&
                        !std::holds_alternative<msg::RegisterT>(received->message);
  guarded([&] { std::visit([this](const auto& what) { on(what); }, event); }, is_asked ? received->peer : "");
}

// Persist comes first: what must survive is written down before anything that follows from it is sent.
std::vector<Action> Core::take() {
  guarded(
      [&] {
        settle();
        release_leavers();
      },
      "");
  const std::string broken = invariants_.broken_by(pool_);
  MODELET_CHECK(broken.empty(), "invariant " + broken);
  Records records = std::exchange(pool_.changes, {});
  for (const uint64_t id : std::exchange(pool_.changed_runs, {}))
    if (const auto run = pool_.runs.find(id); run != pool_.runs.end())
      records.runs.push_back(record_of(run->second));
  std::vector<Action> actions = std::exchange(pool_.actions, {});
  if (!records.empty()) actions.insert(actions.begin(), Persist{std::move(records)});
  return actions;
}

// What a task has come to is needed until its parent has ended.
RunRecord Core::record_of(Run& run) {
  RunRecord record = run.record(pool_.now);
  record.ended = has_ended(pool_.runs.at(run.whole()).state());
  return record;
}

// `asks`: the peer that is told of a failure; empty: none.
void Core::guarded(const std::function<void()>& work, const std::string& asks) {
  try {
    work();
  } catch (const std::exception& error) {
    const std::string why = kept_text(error.what());
    if (failures_.next())
      pool_.log(fmt::format("an event could not be handled: {} (number {})", why, failures_.count()));
    if (!asks.empty())
      pool_.send(asks, msg::RefusedT{{}, "the scheduler could not handle this message: " + why});
  }
}

void Core::on(const Received& received) {
  sender_ = received.sender;
  sender_address_ = received.address;
  if (const std::string reason = why_not(sender_, received.message); !reason.empty()) {
    if (sender_.role == comm::Role::kNobody) ++refused_keys_;
    return refuse(received.peer, reason);
  }
  std::visit([&](const auto& message) { on(received.peer, message); }, received.message);
}

// why_not() has refused the message of anybody else.
void Core::require_key_of(comm::Role role) const {
  using comm::Role;
  const bool is_admin = role == Role::kUser && sender_.role == Role::kAdmin;
  MODELET_CHECK(sender_.role == role || is_admin || sender_.role == Role::kAnybody,
                fmt::format("invariant 5: the key '{}' has no right to what it does", sender_.name));
}

void Core::refuse(const std::string& peer, const std::string& reason) {
  pool_.send(peer, msg::RefusedT{{}, reason});
  if (refusals_.next())
    pool_.log(fmt::format("refused a message: {} (number {})", reason, refusals_.count()));
}

void Core::on(const PeerGone& gone) {
  for (auto& [id, run] : pool_.runs) run.remove_watcher(pool_, gone.peer);
  const auto known = node_of_peer_.find(gone.peer);
  if (known == node_of_peer_.end()) return;
  // The connection may come back. So the node counts as lost only if another process asked for its name, or a
  // member of its group missed it, and it has been silent since.
  const auto node = pool_.nodes.find(known->second);
  const auto is_unanswered = [&](double asked) { return asked > 0 && node->second.last_seen <= asked; };
  if (is_unanswered(node->second.challenged))
    lose_node(node, "was replaced by a new agent of its name");
  else if (is_unanswered(node->second.missed))
    lose_node(node, "is gone");
  else
    return;
  queue_moves_ = true;
}

void Core::on(const Planned& answer) {
  if (const auto run = pool_.runs.find(answer.run); run != pool_.runs.end())
    run->second.planned(pool_, answer);
  queue_moves_ = true;
}

void Core::on(const Tick&) {
  // If the scheduler itself was asleep (suspended, or starved of CPU), it has read no heartbeats, and their
  // absence says nothing about the nodes.
  if (const double gap = pool_.now - last_tick_; gap > 2 * pool_.options.heartbeat)
    for (auto& [id, node] : pool_.nodes) node.last_seen = std::min(pool_.now, node.last_seen + gap);
  if (last_tick_ > 0)
    pool_.node_seconds += (pool_.now - last_tick_) * static_cast<double>(pool_.nodes.size());
  last_tick_ = pool_.now;
  if (pool_.now - time_written_ > kTimeWritten && !pool_.nodes.empty()) {
    time_written_ = pool_.now;
    pool_.changes.pool = pool_.record();
  }

  const bool was_cut_off = std::exchange(is_cut_off_, seems_cut_off());
  if (was_cut_off && !is_cut_off_)  // some nodes are back, so the others may follow
    for (auto& [id, node] : pool_.nodes)
      if (!node.is_missed()) node.last_seen = pool_.now;
  for (auto it = pool_.nodes.begin(); it != pool_.nodes.end();) {
    const auto node = it++;
    const double silent = pool_.now - node->second.last_seen;
    const bool may_be_well = is_cut_off_ && !node->second.is_missed();
    if (silent > pool_.options.dead_after * (may_be_well ? kPatienceIfCutOff : 1))
      lose_node(node, fmt::format("stopped answering (silent for {:.1f} s)", silent));
  }
  forget_absent();
  const bool all_are_back = pool_.awaited.empty() && !pool_.awaits_members;
  if (judge_at_ != 0 && (all_are_back || pool_.now >= judge_at_)) judge();
  for (auto& [id, run] : pool_.runs) run.time_passed(pool_);
  queue_moves_ = true;
  settle();  // first, so that watchers are told of it
  for (const auto& [id, run] : pool_.runs) run.notify_watchers(pool_);
}

// If many nodes fall silent at once, it is likelier that this machine is cut off than that they are all dead,
// and their groups go on working. While it seems so, all nodes get more time, except those that a member of
// their group, or another agent with their name, misses as well.
bool Core::seems_cut_off() {
  const auto silent = static_cast<size_t>(std::ranges::count_if(pool_.nodes, [this](const auto& entry) {
    return pool_.now - entry.second.last_seen > pool_.options.dead_after;
  }));
  const bool is_now = silent >= pool_.options.least_cut_off && 2 * silent > pool_.nodes.size();
  if (is_now && !is_cut_off_)
    pool_.log(fmt::format("{} of {} are silent: this machine may be cut off, they have {:.0f} s", silent,
                          nodes_text(pool_.nodes.size()), pool_.options.dead_after * kPatienceIfCutOff));
  return is_now;
}

// ---- out

std::vector<msg::RunStatusT> Core::runs() const {
  std::vector<msg::RunStatusT> list;
  for (const auto& [id, run] : pool_.runs) list.push_back(run.status(pool_.now));
  return list;
}

std::vector<Run::Share> Core::placement(uint64_t run) const {
  const auto found = pool_.runs.find(run);
  return found == pool_.runs.end() ? std::vector<Run::Share>() : found->second.placement();
}

// What an ended run leaves behind would soon fill the store. It stays there until its room is needed.
std::map<std::string, std::string> Core::data_in_use() const {
  std::map<std::string, std::string> addresses;
  for (const auto& [id, run] : pool_.runs)
    if (!has_ended(pool_.runs.at(run.whole()).state()))
      for (const std::string& address : run.stored_data()) addresses.insert({address, run.submitter()});
  return addresses;
}

std::set<std::string> Core::known_data() const {
  std::set<std::string> addresses;
  for (const auto& [id, run] : pool_.runs) addresses.merge(run.known_data());
  return addresses;
}

std::multimap<std::string, std::string> Core::files_of_agents() const {
  std::map<uint64_t, std::set<std::string>> keys_of_runs;
  for (const auto& [id, node] : pool_.nodes)
    if (!node.key.empty() && node.run != 0) keys_of_runs[node.run].insert(node.key);
  std::multimap<std::string, std::string> files;
  for (const auto& [id, keys] : keys_of_runs)
    if (const auto run = pool_.runs.find(id); run != pool_.runs.end())
      for (const std::string& address : run->second.known_data())
        for (const std::string& key : keys) files.insert({address, key});
  return files;
}

std::multimap<std::string, std::string> Core::results() const {
  std::multimap<std::string, std::string> addresses;
  for (const auto& [id, run] : pool_.runs) {
    if (run.parent() == 0 && !run.submit().division.empty())
      addresses.insert({run.submit().division, run.submitter()});
    for (const comm::Snapshot& snapshot : run.snapshots().stable())
      if (snapshot.keep)
        for (const std::string& address : comm::addresses_of(snapshot))
          addresses.insert({address, run.submitter()});
  }
  return addresses;
}

}  // namespace modelet::scheduler
