// The part of Core that handles the messages of clients: submitting, watching, listing and stopping runs,
// draining nodes, finding files and logs.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text/printable.h"
#include "comm/control/snapshot_tables.h"
#include "scheduler/access/permission.h"
#include "scheduler/core/core.h"
#include "scheduler/core/submission.h"
#include "scheduler/core/values/text.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;

constexpr size_t kMostLogBytes = 256 << 10;  // of one answer
constexpr size_t kMostDrained = 4096;        // names
constexpr size_t kMostSnapshotBytes = comm::control::kMaxControlBytes / 4 * 3;

}  // namespace

void Core::on(const std::string& peer, const msg::SubmitT& message) {
  require_key_of(comm::Role::kUser);
  // The client did not get the answer, so it asks again over a new connection.
  if (const Run* known = submitted_with(message.token); known != nullptr)
    return pool_.send(peer, msg::AcceptedT{{}, known->id(), message.token});
  Run run(pool_.next_run, sender_.name, message, pool_.utc());
  try {
    run.accept(checked_submission(message, pool_.options.data_port));
    check_submission(message, run);
  } catch (const Error& error) {
    return pool_.send(peer, msg::RefusedT{{}, kept_text(error.what())});
  }
  if (std::string why; !make_room_for_run(run.holding(), why)) return refuse(peer, why);
  const uint64_t id = pool_.next_run++;
  pool_.changes.pool = pool_.record();
  pool_.changed_runs.insert(id);
  pool_.log(fmt::format("run {} '{}' submitted{}", id, message.name, with_key(sender_)));
  pool_.send(peer, msg::AcceptedT{{}, id, message.token});
  Run& accepted = pool_.runs.emplace(id, std::move(run)).first->second;
  const std::vector<comm::Snapshot> begin_with = accepted.take_starts_of_tasks();
  accepted.begin(pool_.now);
  accepted.count(pool_);
  for (uint32_t task = 0; task < accepted.results().size(); ++task)
    add_task(id, task, begin_with.empty() || begin_with[task].files.empty() ? std::nullopt : std::optional(begin_with[task]));
  queue_moves_ = true;
}

// The sender's run that was submitted with this token; null if there is none.
const Run* Core::submitted_with(uint64_t token) const {
  if (token == 0) return nullptr;
  const auto found = std::ranges::find_if(pool_.runs, [&](const auto& entry) {
    return entry.second.submit().token == token && entry.second.submitter() == sender_.name;
  });
  return found == pool_.runs.end() ? nullptr : &found->second;
}

// Throws UsageError for what cannot work in the pool as it is now.
void Core::check_submission(const msg::SubmitT& message, const Run& run) const {
  if (message.nodes > pool_.options.max_nodes)
    throw UsageError(fmt::format("a pool has at most {} nodes", pool_.options.max_nodes));
  if (message.priority > 0 && sender_.role == comm::Role::kUser)
    throw UsageError(fmt::format(
        "--priority {}: only an administrator's key may put a run before those of others; a user's key may "
        "give it a priority of 0, or less",
        message.priority));
  const size_t wanted = message.nodes == 0 ? run.least_nodes() : message.nodes;
  if (!message.wait && wanted > pool_.nodes.size())
    throw UsageError(
        fmt::format("the run wants {}, the pool has {}: start more agents, ask for fewer with --nodes, or "
                    "give --wait to let it wait until there are so many",
                    nodes_text(wanted), pool_.nodes.size()));
  if (const std::string why = run.lacks_owners(pool_, false); !message.wait && !why.empty())
    throw UsageError(fmt::format("the run {}; give --wait to let it wait for them", why));
}

void Core::on(const std::string& peer, const msg::FindDataPortT&) {
  pool_.send(peer, msg::DataPortT{{}, pool_.options.data_port});
}

// Forgets runs that have ended, the oldest first, until there is room: the sender's own if its key has too many bytes,
// else those of the key that has most, so that nobody can make the pool forget those of others.
bool Core::make_room_for_run(const Holding& wanted, std::string& why) {
  const Holding unending{.runs = wanted.runs, .addresses = wanted.addresses}, bytes{.bytes = wanted.bytes};
  if (pool_.is_key_full(sender_.name, unending, &why)) return false;
  std::set<uint64_t> have_nodes;
  for (const auto& [id, node] : pool_.nodes)
    if (const auto run = pool_.runs.find(node.run); run != pool_.runs.end())
      have_nodes.insert(run->second.whole());
  size_t runs = 0;                                             // tasks belong to their run
  std::map<std::string, uint64_t> runs_of{{sender_.name, 1}};  // with the new one
  for (const auto& [id, run] : pool_.runs)
    if (run.parent() == 0) {
      ++runs;
      ++runs_of[run.submitter()];
    }
  for (;;) {
    const bool has_bytes = pool_.has_room(sender_.name, bytes, why);
    if (has_bytes && runs < pool_.options.max_runs) return true;
    const bool is_own_fault = pool_.is_key_full(sender_.name, bytes);
    const auto share = [&](const std::string& key) {
      return has_bytes ? runs_of[key] : pool_.accounts.of(key).bytes;
    };
    auto oldest = pool_.runs.end();
    for (auto each = pool_.runs.begin(); each != pool_.runs.end(); ++each) {
      const auto& [id, run] = *each;
      if (!has_ended(run.state()) || have_nodes.contains(id) || run.parent() != 0) continue;
      if (is_own_fault && run.submitter() != sender_.name) continue;
      if (oldest == pool_.runs.end() || share(run.submitter()) > share(oldest->second.submitter()))
        oldest = each;
    }
    if (oldest == pool_.runs.end()) {
      if (has_bytes) why = fmt::format("{} runs are waiting or running, no more are accepted", runs);
      return false;
    }
    --runs;
    --runs_of[oldest->second.submitter()];
    forget_run(oldest->first);
  }
}

// With its tasks.
void Core::forget_run(uint64_t id) {
  std::erase_if(pool_.runs, [&](const auto& entry) {
    const Run& run = entry.second;
    if (run.whole() != id) return false;
    pool_.changes.forgotten_runs.push_back(run.id());
    pool_.accounts.change(run.submitter(), run.counted(), {});
    return true;
  });
}

// Runs of other users are listed, because a user's run may have to wait for them. Their details are not
// shown. Of old runs, texts are left out that would make the list longer than a message may be.
void Core::on(const std::string& peer, const msg::ListRunsT&) {
  constexpr size_t kMostTexts = msg::kMaxControlBytes / 2, kAroundText = 12, kShort = 64;  // bytes
  msg::RunListT list;
  size_t room = kMostTexts;
  const auto has_room = [&](size_t bytes) {
    if (bytes > room) return false;
    room -= bytes;
    return true;
  };
  for (auto each = pool_.runs.rbegin(); each != pool_.runs.rend(); ++each) {
    const Run& run = each->second;
    if (run.parent() != 0 && !run.has_nodes()) continue;  // its parent says how many there are
    auto status = std::make_unique<msg::RunStatusT>(run.status(pool_.now));
    if (!may_lead(sender_, run.submitter())) status->detail.clear();
    if (!has_room(status->detail.size())) status->detail = printable(status->detail, kShort);
    size_t of_names = 0;
    for (const std::string& name : status->node_names) of_names += name.size() + kAroundText;
    if (!has_room(of_names)) status->node_names.clear();
    list.runs.push_back(std::move(status));
  }
  std::ranges::reverse(list.runs);
  list.forgets = !pool_.options.has_ledger;
  pool_.send(peer, std::move(list));
}

void Core::on(const std::string& peer, const msg::ListNodesT& message) {
  msg::NodeListT list;
  for (msg::NodeStatusT& node : nodes(message.all))
    list.nodes.push_back(std::make_unique<msg::NodeStatusT>(std::move(node)));
  pool_.send(peer, std::move(list));
}

// Returns null if there is no such run or if it belongs to another key; the client is then told why.
Run* Core::run_of_user(const std::string& peer, uint64_t id, const char* verb) {
  require_key_of(comm::Role::kUser);
  const auto found = pool_.runs.find(id);
  if (found == pool_.runs.end()) {
    pool_.send(peer, msg::RefusedT{{}, fmt::format("there is no run {}", id)});
    return nullptr;
  }
  Run& run = found->second;
  if (may_lead(sender_, run.submitter())) return &run;
  refuse(peer, fmt::format(
                   "run {} belongs to the key '{}', and this is '{}': only that key, or an administrator's, "
                   "may {} it",
                   id, kept_text(run.submitter()), kept_text(sender_.name), verb));
  return nullptr;
}

void Core::on(const std::string& peer, const msg::WatchT& message) {
  Run* run = run_of_user(peer, message.run, "watch");
  if (run == nullptr) return;
  const bool is_new = !has_ended(run->state()) && !run->journal().is_watched_by(peer);
  if (std::string why; is_new && !pool_.has_room(sender_.name, {.watches = 1}, why)) return refuse(peer, why);
  for (const RunEventRecord& event : run->journal().events()) pool_.send(peer, message_of(event));
  if (is_new) run->add_watcher(pool_, peer, sender_.name);
  pool_.send(peer, run->status(pool_.now));
}

void Core::on(const std::string& peer, const msg::StopRunT& message) {
  Run* run = run_of_user(peer, message.run, "stop");
  if (run == nullptr) return;
  if (run->parent() != 0)
    return refuse(
        peer,
        fmt::format("run {} is task {} of run {}, and only the whole run can be stopped: modelet stop {}",
                    run->id(), run->task(), run->parent(), run->parent()));
  run->asked_to_stop(pool_);
  pool_.send(peer, run->status(pool_.now));
  queue_moves_ = true;
}

void Core::on(const std::string& peer, const msg::TraceRunT& message) {
  Run* run = run_of_user(peer, message.run, "trace");
  if (run == nullptr) return;
  if (const std::string why = run->trace(pool_, message.steps); !why.empty())
    return refuse(peer, fmt::format("run {} cannot be traced: {}", run->id(), why));
  pool_.send(peer, run->status(pool_.now));
}

// A drained node gives up its work in the same way as a node that asks to leave.
void Core::on(const std::string& peer, const msg::DrainNodeT& message) {
  if (sender_.role != comm::Role::kAdmin && sender_.role != comm::Role::kAnybody)
    return refuse(peer, "only an administrator's key may drain a node");
  const auto node = pool_.node_named(message.name);
  const bool is_known = pool_.drained.contains(message.name);
  if (node == pool_.nodes.end() && (message.drain || !is_known))
    return refuse(peer, fmt::format("there is no node '{}'", kept_text(message.name)));
  if (message.drain && !is_known && pool_.drained.size() >= kMostDrained)
    return refuse(peer, fmt::format("{} nodes are drained, no more can be", kMostDrained));
  if (is_known != message.drain) {
    pool_.changes.drains.push_back({message.name, message.drain});
    message.drain ? (void)pool_.drained.insert(message.name) : (void)pool_.drained.erase(message.name);
  }
  if (node != pool_.nodes.end() && node->second.draining != message.drain) {
    node->second.draining = message.drain;
    pool_.log(fmt::format("node '{}' {}", message.name, message.drain ? "is drained" : "may work again"));
    if (message.drain)
      end_work_of(node->second, node->first, fmt::format("node '{}' is drained", message.name));
    queue_moves_ = true;
  }
  on(peer, msg::ListNodesT{{}, true});
}

void Core::on(const std::string& peer, const msg::FindRunFilesT& message) {
  const Run* run = run_of_user(peer, message.run, "fetch the files of");
  if (run == nullptr) return;
  msg::RunFilesT answer;
  answer.run = run->id();
  answer.experiment = run->submit().experiment;
  answer.tasks = run->results();
  answer.division = run->submit().division;
  std::set<std::string> holders;
  size_t bytes = 0;
  const std::vector<comm::Snapshot>& stable = run->snapshots().stable();
  for (auto each = stable.rbegin(); each != stable.rend(); ++each) {
    bytes += msg::bytes_in_message(*each);
    if (bytes > kMostSnapshotBytes && each != stable.rbegin()) break;  // the oldest may not fit
    answer.snapshots.push_back(msg::to_table(*each));
    for (const comm::SnapshotFile& file : each->files)
      holders.insert(file.holders.begin(), file.holders.end());
  }
  answer.holders = pool_.holders(holders);
  pool_.send(peer, std::move(answer));
}

// The log of a run is its events, one a line. Older events that are no longer in memory, and what the nodes
// have logged, come from the ledger.
void Core::on(const std::string& peer, const msg::FindRunLogT& message) {
  const Run* run = run_of_user(peer, message.run, "read the log of");
  if (run == nullptr) return;
  const Journal& journal = run->journal();
  const bool is_at_hand = message.node.empty() &&
                          (journal.events().empty() || journal.events().front().number <= message.offset + 1);
  if (pool_.options.has_ledger && !is_at_hand)
    return pool_.actions.push_back(
        ReadLog{peer, run->id(), message.node, message.offset, has_ended(run->state()), journal.last()});
  if (!message.node.empty())
    return refuse(peer, "this scheduler keeps no logs of nodes: start modelet-scheduler with --state");
  msg::RunLogT log;
  log.run = run->id();
  log.next = message.offset;
  for (const RunEventRecord& event : journal.events()) {
    if (event.number <= message.offset) continue;
    if (log.text.size() + event.text.size() > kMostLogBytes) break;
    log.text += event.text + '\n';
    log.next = event.number;
  }
  log.complete = has_ended(run->state()) && log.next == journal.last();
  pool_.send(peer, std::move(log));
}

}  // namespace modelet::scheduler
