#include "tests/simulation/keeper.h"

#include <algorithm>
#include <memory>

#include "node_agent/snapshots/holder_order.h"

namespace modelet::simulation {
namespace {

constexpr double kRetrySeconds = 2, kPatience = 20;
constexpr uint32_t kLongestRest = 8;  // in units of kRetrySeconds

bool is_held_by(const comm::SnapshotFile& file, const std::string& node) {
  return std::ranges::find(file.holders, node) != file.holders.end();
}

}  // namespace

void Keeper::begin(const msg::PrepareT& prepare, uint64_t from_step) {
  const bool same_pool = prepare.pool == pool_;
  std::erase_if(own_, [&](const Own& own) {
    if (same_pool && own.run == prepare.run) return own.step > from_step || !(own.told || own.keep);
    return !same_pool || !wants_store(own);
  });
  pool_ = prepare.pool;
  run_ = prepare.run;
  epoch_ = prepare.epoch;
  rank_ = prepare.rank;
  members_ = prepare.node_names;
  holders_.clear();
  admitted_.clear();
  for (const auto& holder : prepare.holders) holders_.insert(holder->node);
  has_store_ = prepare.data_port != 0;
  for (Own& own : own_) {
    own.retry_at = 0;
    if (own.run != run_) continue;
    own.epoch = epoch_;
    own.rank = rank_;
  }
}

void Keeper::take(uint64_t step, bool keep, std::vector<comm::SnapshotFile> files) {
  own_.push_back({.number = ++numbers_, .run = run_, .step = step, .epoch = epoch_, .rank = rank_, .keep = keep,
                  .files = std::move(files)});
  if (around_.mutant == Mutant::kPruneBeforeStable) around_.disk.remove_before(run_, step, {});
  drop_superseded();
  work();
}

void Keeper::stable(uint64_t run, uint64_t step) {
  if (run != run_) return;
  std::set<comm::ContentId> needed;
  std::erase_if(own_, [&](const Own& own) {
    const bool stays = own.run != run || own.step >= step || wants_store(own);
    if (stays)
      for (const comm::SnapshotFile& file : own.files) needed.insert(file.content);
    return !stays;
  });
  around_.disk.remove_before(run, step, needed);
}

void Keeper::admit(const msg::AdmitT& message) {
  for (const auto& holder : message.holders) admitted_.insert(holder->node);
}

bool Keeper::offered(uint64_t run, uint64_t step, const comm::ContentId& content) {
  return run == run_ && around_.disk.write(run, step, content);
}

// ---- own snapshots

bool Keeper::is_due(const Own& own) const {
  return (!own.told || wants_store(own)) && around_.world.now() >= own.retry_at;
}

// Copies that the run needs come before copies for the user.
void Keeper::work() {
  if (busy_) return;
  for (const bool told : {false, true})
    for (Own& own : own_)
      if (is_due(own) && own.told == told) return advance(own);
}

void Keeper::advance(Own& own) {
  if (!own.told && own.keep && !std::exchange(own.said, true)) {
    say(own);
    return around_.host.post(0, [this] { work(); });
  }
  if (!own.told) {
    const bool is_alone = members_.size() <= 1 && !has_store_;
    for (size_t i = 0; i < own.files.size() && !is_alone; ++i)
      if (own.files[i].holders.empty()) return send(own, i, candidates());
    return tell(own);
  }
  for (size_t i = 0; i < own.files.size(); ++i)
    if (!is_held_by(own.files[i], "")) return send(own, i, {""});
  tell(own);
}

std::vector<std::string> Keeper::candidates() const {
  std::vector<std::string> nodes;
  for (const uint32_t rank : agent::holder_order(rank_, static_cast<uint32_t>(members_.size())))
    if (const std::string& node = members_[rank]; holders_.contains(node)) nodes.push_back(node);
  if (has_store_) nodes.emplace_back();
  return nodes;
}

void Keeper::send(Own& own, size_t file, std::vector<std::string> candidates) {
  if (around_.mutant == Mutant::kHeldBeforeSent && !candidates.empty()) {
    own.files[file].holders.push_back(candidates.front());
    around_.host.post(0, [this] { work(); });
  }
  Holder* holder = candidates.empty() ? nullptr : around_.find(candidates.front());
  if (candidates.empty()) return failed(own);
  const std::string node = candidates.front();
  candidates.erase(candidates.begin());
  busy_ = true;
  const auto done = [this, number = own.number, file, node, candidates](bool good) {
    busy_ = false;
    if (Own* same = own_of(number)) {
      if (good && !is_held_by(same->files[file], node)) same->files[file].holders.push_back(node);
      if (!good) return send(*same, file, candidates);
    }
    work();
  };
  if (holder == nullptr) return around_.host.post(0.1, [done] { done(false); });
  const comm::ContentId content = own.files[file].content;
  around_.network.call(around_.host, holder->host(),
                       [holder, run = own.run, step = own.step, content] { return holder->offered(run, step, content); },
                       done);
}

// No holder takes the file now; tries again later.
void Keeper::failed(Own& own) {
  own.failures = std::min(own.failures + 1, kLongestRest);
  const double rest = own.failures * kRetrySeconds;
  own.retry_at = around_.world.now() + rest;
  around_.host.post(rest, [this] { work(); });
  drop_superseded();
  around_.host.post(0, [this] { work(); });
}

void Keeper::drop_superseded() {
  uint64_t newest = 0;
  for (const Own& own : own_)
    if (own.run == run_) newest = std::max(newest, own.step);
  std::erase_if(own_, [&](const Own& own) {
    return !own.told && !own.keep && own.run == run_ && own.step < newest && own.failures > 0;
  });
}

void Keeper::tell(Own& own) {
  own.told = true;
  own.told_stored = own.told_stored || std::ranges::all_of(own.files, [](const auto& file) { return is_held_by(file, ""); });
  say(own);
  around_.host.post(0, [this] { work(); });
}

void Keeper::say(const Own& own) {
  comm::Snapshot text{.epoch = own.epoch, .step = own.step, .keep = own.keep, .files = own.files};
  for (comm::SnapshotFile& file : text.files) {
    std::erase(file.holders, around_.node);
    file.holders.insert(file.holders.begin(), around_.node);
  }
  msg::SnapshotHeldT message;
  message.run = own.run;
  message.epoch = own.epoch;
  message.step = own.step;
  message.rank = own.rank;
  message.keep = own.keep;
  message.files = format_snapshot(text);
  around_.held(pool_, std::move(message));
}

Keeper::Own* Keeper::own_of(uint64_t number) {
  const auto found = std::ranges::find(own_, number, &Own::number);
  return found == own_.end() ? nullptr : &*found;
}

// ---- files of others

struct Keeper::Bringing {
  comm::Snapshot snapshot;
  std::vector<std::string> names;
  std::function<bool()> wanted;
  std::function<void(bool)> done;
  std::vector<comm::SnapshotFile> files;  // that this disk has now
  size_t holder = 0;                      // index of the next to ask; one past the last is the store
  double since = 0;
};

void Keeper::bring(const comm::Snapshot& snapshot, std::vector<std::string> names, std::function<bool()> wanted,
                   std::function<void(bool)> done) {
  bring_next(std::make_shared<Bringing>(
      Bringing{snapshot, std::move(names), std::move(wanted), std::move(done), {}, 0, around_.world.now()}));
}

void Keeper::bring_next(const std::shared_ptr<Bringing>& bringing) {
  if (!bringing->wanted()) return;
  if (bringing->files.size() == bringing->names.size()) {
    Own own{.number = ++numbers_, .run = run_, .step = bringing->snapshot.step, .epoch = epoch_, .rank = rank_,
            .keep = bringing->snapshot.keep, .told_stored = true, .files = bringing->files};
    own_.push_front(std::move(own));
    tell(own_.front());
    return bringing->done(true);
  }
  const auto file = std::ranges::find(bringing->snapshot.files, bringing->names[bringing->files.size()],
                                      &comm::SnapshotFile::name);
  if (file == bringing->snapshot.files.end()) return bringing->done(false);
  const auto again = [this, bringing](double seconds) {
    around_.host.post(seconds, [this, bringing] { bring_next(bringing); });
  };
  if (around_.disk.has(file->content)) {
    around_.disk.refer(run_, bringing->snapshot.step, file->content);
    bringing->files.push_back({file->name, file->content, file->bytes, {}});
    bringing->holder = 0;
    bringing->since = around_.world.now();
    return again(0.002);
  }
  if (bringing->holder > file->holders.size()) {  // all have been asked once
    if (around_.world.now() - bringing->since > kPatience) return bringing->done(false);
    bringing->holder = 0;
    return again(kRetrySeconds);
  }
  const std::string node = bringing->holder < file->holders.size() ? file->holders[bringing->holder] : "";
  ++bringing->holder;
  Holder* holder = holders_.contains(node) || (node.empty() && has_store_) ? around_.find(node) : nullptr;
  if (holder == nullptr || node == around_.node) return again(0.01);
  const comm::ContentId content = file->content;
  around_.network.call(around_.host, holder->host(), [holder, content, me = around_.node] { return holder->gives(content, me); },
                       [this, bringing, content, again](bool good) {
                         if (good) around_.disk.write(run_, bringing->snapshot.step, content);
                         again(0.01);
                       });
}

}  // namespace modelet::simulation
