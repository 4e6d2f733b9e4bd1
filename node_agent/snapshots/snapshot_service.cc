#include "node_agent/snapshots/snapshot_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/log.h"
#include "comm/content/store.h"
#include "comm/content/transfer/data_server.h"
#include "node_agent/snapshots/bring_files.h"
#include "node_agent/snapshots/holder_links.h"
#include "node_agent/snapshots/holder_policy.h"
#include "node_agent/snapshots/kept_files.h"
#include "node_agent/snapshots/own_snapshots.h"
#include "node_agent/snapshots/snapshot_sender.h"

namespace modelet::agent {
namespace {

namespace msg = comm::control;

constexpr double kTurn = 0.5;  // seconds between two looks at what can be tried again or removed
constexpr const char* kLimit = "--snapshot-mib of the agent";
constexpr uint64_t kSchedulersLimit = uint64_t{1} << 60;  // no limit: the scheduler limits its store

// Leaves half of the disk to runs and to whoever else writes there.
SnapshotServiceOptions fitting_its_disk(SnapshotServiceOptions options) {
  std::error_code unknown;
  std::filesystem::create_directories(options.folder, unknown);
  const auto space = std::filesystem::space(options.folder, unknown);
  if (!unknown) options.bytes = std::min<uint64_t>(options.bytes, space.capacity / 2);
  return options;
}

comm::DataServerOptions data_options(const SnapshotServiceOptions& options) {
  constexpr size_t kMostOpen = 2048, kMostOpenOfKey = 1024;  // files of snapshots
  constexpr double kCloseSeconds = 60;
  return {.store = options.folder,
          .store_bytes = options.bytes,
          .close_seconds = kCloseSeconds,
          .most_open = kMostOpen,
          .most_open_of_key = kMostOpenOfKey,
          .sending = options.sending,
          .names = {.store = "the store of node '" + options.node + "'",
                    .limit = kLimit,
                    .limit_of_key = std::string("half of ") + kLimit,
                    .remedy = "take it from another holder"}};
}

OwnSnapshots::Group as_own_group(const SnapshotService::Group& group) {
  OwnSnapshots::Group own{.pool = group.pool,
                          .run = group.run,
                          .epoch = group.epoch,
                          .rank = group.rank,
                          .members = group.members,
                          .has_store = group.store.has_value(),
                          .from_step = group.from_step};
  for (const msg::HolderT& holder : group.holders)
    if (!holder.node.empty() && !holder.endpoint.empty()) own.holders.insert(holder.node);
  return own;
}

// What the port for data keeps: address -> name of the node that sent it.
std::map<std::string, std::string> by_address(const std::map<comm::ContentId, std::string>& held) {
  std::map<std::string, std::string> addresses;
  for (const auto& [file, node] : held) addresses[to_text(file)] = node;
  return addresses;
}

}  // namespace

class SnapshotService::Impl {
 public:
  Impl(SnapshotServiceOptions options, Held held)
      : options_(fitting_its_disk(std::move(options))),
        pace_(0, options_.sending),
        policy_(options_.bytes / 2),
        store_(options_.folder, options_.bytes, kLimit),
        links_(options_.key, {.who = "",
                              .pace = &pace_,
                              .ask_again = options_.retry_seconds,
                              .give_up = options_.give_up_seconds,
                              .check = [this] { require_nothing_asked(); }}),
        local_store_(options_.local_store.empty() ? nullptr
                                                  : std::make_unique<comm::ContentStore>(
                                                        options_.local_store, kSchedulersLimit, "the disk")),
        own_({.node = options_.node,
              .store_is_here = local_store_ != nullptr,
              .retry_seconds = options_.retry_seconds,
              .report = std::move(held),
              .warn = [](const std::string& text) { log_warning("{}", text); }}),
        sender_(own_, {.store = store_,
                       .local_store = local_store_.get(),
                       .links = links_,
                       .check = [this] { require_nothing_asked(); },
                       .let_go = [this](const std::string& address) { server_->close({address}); }}) {
    std::optional<msg::ServerKeys> keys;
    if (options_.key) {
      const comm::KeyPair server = comm::make_key_pair();
      public_key_ = server.public_key;
      keys = {server, {}, [this](const std::string& key) { return policy_.find(key); }};
    }
    comm::DataServerOptions data = data_options(options_);
    data.why_not = [this](const comm::Identity& sender, const msg::ToSchedulerMessage& message) {
      return why_not(sender, message);
    };
    server_ = std::make_unique<comm::DataServer>(data, options_.listen, keys);
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() {
    post([this] { stop_ = true; });
    thread_.join();
  }

  const std::string& endpoint() const { return server_->endpoint(); }
  const std::string& public_key() const { return public_key_; }
  std::string fetch_key() const { return options_.key ? options_.key->public_key : ""; }

  void begin(Group group) {
    std::erase_if(group.holders, [this](const msg::HolderT& holder) { return holder.node == options_.node; });
    const auto held = policy_.held();
    policy_.name(group.pool, group.run, group.holders);
    // Asked under the same lock: note_held_steps() must not bring back steps of the former group.
    const std::lock_guard lock(mutex_);
    const bool is_other_run = group.pool != group_.pool || group.run != group_.run;
    group_ = group;
    held_steps_.clear();
    stable_step_ = group.from_step;
    post_locked([this, is_other_run, held, group = std::move(group)] {
      if (is_other_run) removals_.leave_to_others(own_.contents(), held);
      pace_.set(group.bytes_per_second);
      links_.name(group.holders, group.store);
      own_.begin(as_own_group(group));
    });
  }

  void store_at(const msg::SchedulerAddress& store) {
    Group group;
    {
      const std::lock_guard lock(mutex_);
      if (!group_.store || group_.store->endpoint == store.endpoint) return;
      group_.store = store;
      group = group_;
    }
    post([this, group = std::move(group)] { links_.name(group.holders, group.store); });
  }

  void admit(const std::vector<msg::HolderT>& holders) { policy_.admit(holders); }

  void bring(const comm::Snapshot& snapshot, std::span<const std::string> names,
             const std::filesystem::path& folder, const std::function<void()>& check) {
    Group group;
    {
      const std::lock_guard lock(mutex_);
      group = group_;
    }
    comm::Pace pace(options_.fetch_bytes_per_second);
    HolderLinks links(options_.key, {.who = "",
                                     .pace = &pace,
                                     .counter = options_.sending,
                                     .ask_again = options_.retry_seconds,
                                     .give_up = options_.give_up_seconds,
                                     .longest_wait = options_.give_up_seconds,
                                     .check = check});
    links.name(group.holders, group.store);
    auto files = bring_files(store_, links, snapshot, names, folder,
                             {.retry_seconds = options_.retry_seconds,
                              .patience = options_.give_up_seconds,
                              .check = check,
                              .let_go = [this](const std::string& address) { server_->close({address}); },
                              .local_store = local_store_.get()});
    post([this, run = group.run, step = snapshot.step, keep = snapshot.keep, folder,
          files = std::move(files)] {
      for (const HeldFile& file : files) removals_.take_back(file.content);
      own_.brought(run, step, keep, folder, files);
    });
  }

  void leave() {
    post([this] { own_.leave(); });
  }

  void hurry() {
    post([this] { pace_.set(0); });
  }

  void take(uint64_t step, bool keep, std::filesystem::path folder, std::vector<std::string> files) {
    const std::lock_guard lock(mutex_);
    is_sending_ = true;  // under the same lock as the task, or note_held_steps() might take it back
    post_locked([this, step, keep, folder = std::move(folder), files = std::move(files)] {
      own_.take(step, keep, folder, files);
    });
  }

  void stable(uint64_t run, uint64_t step) {
    {
      const std::lock_guard lock(mutex_);
      if (run == group_.run) stable_step_ = std::max(stable_step_, step);
    }
    post([this, run, step] {
      own_.stable(run, step);
      std::vector<std::string> forgotten;
      for (const comm::ContentId& file : policy_.forget_before(run, step)) {
        removals_.forget(file);
        forgotten.push_back(to_text(file));
      }
      server_->close(forgotten);
      keep_held();
    });
  }

  bool is_stable(uint64_t step) const {
    const std::lock_guard lock(mutex_);
    return stable_step_ >= step;
  }

  bool wait_until_held(uint64_t step, double seconds) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, Seconds(seconds), [&] { return held_steps_.contains(step); });
  }

  bool is_sending() const {
    const std::lock_guard lock(mutex_);
    return is_sending_;
  }

 private:
  // Neither files that arrive nor this node's own may take the room of what it holds. Any thread.
  void keep_held() {
    std::map<std::string, std::string> held = by_address(policy_.held());
    std::set<std::string> addresses;
    for (const auto& [address, node] : held) addresses.insert(address);
    store_.protect(std::move(addresses), {});
    server_->keep(std::move(held));
  }

  // Called on the port's thread. keep() takes effect there before the next message.
  std::string why_not(const comm::Identity& sender, const msg::ToSchedulerMessage& message) {
    std::string reason = policy_.why_not(sender, message);
    if (reason.empty() && std::holds_alternative<msg::OfferT>(message)) keep_held();
    return reason;
  }

  // Lets the service's thread do something. Work under way is cut short, and continues afterwards.
  void post(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    post_locked(std::move(task));
  }
  void post_locked(std::function<void()> task) {
    tasks_.push_back(std::move(task));
    is_asked_ = true;
    changed_.notify_all();
  }
  void require_nothing_asked() const {
    if (is_asked_) throw Interrupted("there is something else to do");
  }

  void run() {
    while (!stop_) {
      for (const auto& task : wait_for_work()) task();
      const auto task = stop_ ? std::nullopt : sender_.next();  // may report, and forget
      note_held_steps();
      remove_unneeded();
      if (!task) continue;
      try {
        sender_.work(*task);
      } catch (const Interrupted&) {
      }
    }
  }

  std::deque<std::function<void()>> wait_for_work() {
    std::unique_lock lock(mutex_);
    if (!sender_.has_work()) changed_.wait_for(lock, Seconds(kTurn), [this] { return !tasks_.empty(); });
    is_asked_ = false;
    return std::exchange(tasks_, {});
  }

  void note_held_steps() {
    const std::lock_guard lock(mutex_);
    is_sending_ = own_.is_sending() || !tasks_.empty();
    if (!tasks_.empty() || held_steps_ == own_.held_steps()) return;  // a task may be that of a new group
    held_steps_ = own_.held_steps();
    changed_.notify_all();
  }

  // An error of the disk leaves files behind, which is no reason to end the agent.
  void warns_of_disk(const std::function<void()>& remove) {
    try {
      remove();
    } catch (const std::exception& error) {
      if (disk_errors_.next())
        log_warning("files of a snapshot cannot be removed: {} (number {})", error.what(),
                    disk_errors_.count());
    }
  }

  void remove_unneeded() {
    for (const OwnSnapshots::Forgotten& snapshot : own_.take_forgotten()) {
      for (const comm::ContentId& file : snapshot.contents) removals_.forget(file);
      warns_of_disk([&] { sender_.remove(snapshot); });
    }
    removals_.carry_out(own_.contents(), policy_.held(), [this](const comm::ContentId& file) {
      bool gone = false;
      warns_of_disk([&] { gone = store_.remove(file) || !store_.manifest(file); });
      return gone;
    });
  }

  const SnapshotServiceOptions options_;
  comm::Pace pace_;  // used by the service's thread
  HolderPolicy policy_;
  comm::ContentStore store_;
  std::string public_key_;

  // Used by the service's thread only.
  LogLimit disk_errors_;
  HolderLinks links_;
  const std::unique_ptr<comm::ContentStore> local_store_;
  OwnSnapshots own_;
  SnapshotSender sender_;
  Removals removals_{store_.contents()};
  bool stop_ = false;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // what the service's thread is to do
  std::atomic<bool> is_asked_{false};
  Group group_;
  std::set<uint64_t> held_steps_;
  uint64_t stable_step_ = 0;  // of the group's run
  bool is_sending_ = false;
  std::unique_ptr<comm::DataServer> server_;  // its thread calls policy_
  std::thread thread_;
};

SnapshotService::SnapshotService(SnapshotServiceOptions options, Held held)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(held))) {}
SnapshotService::~SnapshotService() = default;

const std::string& SnapshotService::endpoint() const { return impl_->endpoint(); }
const std::string& SnapshotService::public_key() const { return impl_->public_key(); }
std::string SnapshotService::fetch_key() const { return impl_->fetch_key(); }
void SnapshotService::begin(const Group& group) { impl_->begin(group); }
void SnapshotService::store_at(const msg::SchedulerAddress& store) { impl_->store_at(store); }
void SnapshotService::admit(const std::vector<msg::HolderT>& holders) { impl_->admit(holders); }
void SnapshotService::bring(const comm::Snapshot& snapshot, std::span<const std::string> names,
                            const std::filesystem::path& folder, const std::function<void()>& check) {
  impl_->bring(snapshot, names, folder, check);
}
void SnapshotService::take(uint64_t step, bool keep, const std::filesystem::path& folder,
                           std::vector<std::string> files) {
  impl_->take(step, keep, folder, std::move(files));
}
void SnapshotService::stable(uint64_t run, uint64_t step) { impl_->stable(run, step); }
bool SnapshotService::is_stable(uint64_t step) const { return impl_->is_stable(step); }
void SnapshotService::hurry() { impl_->hurry(); }
void SnapshotService::leave() { impl_->leave(); }
bool SnapshotService::is_sending() const { return impl_->is_sending(); }
bool SnapshotService::wait_until_held(uint64_t step, double seconds) const {
  return impl_->wait_until_held(step, seconds);
}

}  // namespace modelet::agent
