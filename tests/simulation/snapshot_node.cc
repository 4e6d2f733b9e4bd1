#include "tests/simulation/snapshot_node.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

namespace modelet::simulation {
namespace {

using agent::OwnSnapshots;

constexpr double kRetrySeconds = 2, kPatience = 20;
constexpr uint64_t kFileBytes = 8;
constexpr double kTurn = 0.5;  // seconds between two looks at what can be tried again

std::filesystem::path folder_of(uint64_t run, uint64_t step) {
  return fmt::format("run-{}/step-{}", run, step);
}

}  // namespace

// Files that are fetched one after the other, each from its holders in turn.
struct SnapshotNode::Bringing {
  uint64_t run = 0;
  comm::Snapshot snapshot;
  std::vector<std::string> names;
  std::function<bool()> wanted = [] { return true; };
  Brought done;
  double patience = 0;                      // seconds
  std::vector<agent::HeldFile> files = {};  // that this disk has now
  size_t holder = 0;                        // index of the next to ask; one past the last is the store
  double since = 0;
};

SnapshotNode::SnapshotNode(SnapshotSurroundings surroundings)
    : around_(std::move(surroundings)),
      own_({.node = around_.node,
            .retry_seconds = kRetrySeconds,
            .report = [this](msg::SnapshotHeldT message) { around_.held(group_.pool, std::move(message)); },
            .warn = [this](const std::string& text) { around_.world.note("{}: {}", around_.node, text); }}),
      removals_(around_.disk.contents()) {}

void SnapshotNode::begin(const msg::PrepareT& prepare, uint64_t from_step) {
  if (prepare.pool != group_.pool || prepare.run != group_.run)
    removals_.leave_to_others(own_.contents(), held_.nodes());
  held_.begin(prepare.pool, prepare.run);
  group_ = {.pool = prepare.pool,
            .run = prepare.run,
            .epoch = prepare.epoch,
            .rank = prepare.rank,
            .members = prepare.node_names,
            .has_store = prepare.data_port != 0,
            .from_step = from_step};
  for (const auto& holder : prepare.holders)
    if (holder->node != around_.node) group_.holders.insert(holder->node);
  admitted_.clear();
  own_.begin(group_);
  work();
}

void SnapshotNode::take(uint64_t step, bool keep, const std::vector<comm::SnapshotFile>& files) {
  const std::filesystem::path folder = folder_of(group_.run, step);
  std::vector<std::string> names;
  for (const comm::SnapshotFile& file : files) {
    names.push_back(file.name);
    written_[folder / file.name] = file;
  }
  if (around_.mutant == Mutant::kPruneBeforeStable) stable(group_.run, step);
  own_.take(step, keep, folder, std::move(names));
  work();
}

void SnapshotNode::stable(uint64_t run, uint64_t step) {
  if (run != group_.run) return;
  own_.stable(run, step);
  for (const comm::ContentId& file : held_.forget_before(run, step)) removals_.forget(file);
  forget();
}

void SnapshotNode::leave() {
  own_.leave();
  work();
}

void SnapshotNode::admit(const msg::AdmitT& message) {
  for (const auto& holder : message.holders) admitted_.insert(holder->node);
}

bool SnapshotNode::offered(uint64_t run, uint64_t step, const comm::ContentId& content) {
  return held_.offer(run, step, content, kFileBytes, "").empty() && around_.disk.write(run, content);
}

// ---- own snapshots

void SnapshotNode::work() {
  if (is_busy_) return;
  const auto task = own_.next(around_.world.now());
  forget();
  if (!task) return rest();
  is_busy_ = true;
  std::visit([this](const auto& any) { carry_out(any); }, *task);
}

void SnapshotNode::forget() {
  for (const OwnSnapshots::Forgotten& forgotten : own_.take_forgotten()) {
    for (const comm::ContentId& file : forgotten.contents) removals_.forget(file);
    std::erase_if(written_, [&](const auto& file) {
      const bool goes = file.first.parent_path() == forgotten.folder;
      if (goes) removals_.forget(file.second.content);  // the product has such a file twice; here it is one
      return goes;
    });
  }
  std::set<comm::ContentId> own = own_.contents();
  for (const auto& [path, file] : written_) own.insert(file.content);
  removals_.carry_out(own, held_.nodes(), [this](const comm::ContentId& file) {
    around_.disk.remove(file);
    return true;
  });
}

// Looks again later, if a snapshot waits for another attempt.
void SnapshotNode::rest() {
  if (!own_.has_work(std::numeric_limits<double>::infinity()) || std::exchange(rests_, true)) return;
  around_.host.post(kTurn, [this] {
    rests_ = false;
    work();
  });
}

void SnapshotNode::carry_out(const OwnSnapshots::Adopt& task) {
  around_.host.post(0, [this, task] {
    const auto file = written_.find(task.folder / task.name);
    const bool good = file != written_.end() && around_.disk.read(file->second.content);
    if (good) own_.adopted(task, {task.name, file->second.content, file->second.bytes});
    ended(task, good);
  });
}

void SnapshotNode::carry_out(const OwnSnapshots::Send& task) {
  if (around_.mutant == Mutant::kHeldBeforeSent) own_.sent(task);
  const auto done = [this, task](bool good) {
    if (good) own_.sent(task);
    ended(task, good);
  };
  Holder* holder = around_.find(task.to);
  if (!around_.disk.read(task.file.content))
    return around_.host.post(0.1, [this, task] {
      is_busy_ = false;
      own_.could_not_read(around_.world.now(), task, "it cannot be read");
      work();
    });
  if (holder == nullptr) return around_.host.post(0.1, [done] { done(false); });
  around_.network.call(
      around_.host, holder->host(),
      [holder, run = task.run, step = task.step, content = task.file.content] {
        return holder->offered(run, step, content);
      },
      done);
}

void SnapshotNode::ended(const OwnSnapshots::Task& task, bool good) {
  is_busy_ = false;
  if (!good) own_.failed(around_.world.now(), task, "it failed");
  work();
}

void SnapshotNode::carry_out(const OwnSnapshots::Repair& task) {
  if (around_.mutant == Mutant::kNoRepair) return around_.host.post(0, [this, task] { ended(task, true); });
  const comm::SnapshotFile file{task.file.name, task.file.content, task.file.bytes, task.file.holders};
  bring_next(std::make_shared<Bringing>(
      Bringing{.run = task.run,
               .snapshot = {.step = task.step, .files = {file}},
               .names = {file.name},
               .done = [this, task](const auto& files) { ended(task, !files.empty()); },
               .since = around_.world.now()}));
}

// ---- files of others

void SnapshotNode::bring(const comm::Snapshot& snapshot, std::vector<std::string> names,
                         std::function<bool()> wanted, std::function<void(bool)> done) {
  const auto brought = [this, step = snapshot.step, keep = snapshot.keep, count = names.size(),
                        done](auto files) {
    const bool good = files.size() == count;
    for (const agent::HeldFile& file : files) removals_.take_back(file.content);
    if (good) own_.brought(group_.run, step, keep, folder_of(group_.run, step), std::move(files));
    done(good);
    work();
  };
  bring_next(std::make_shared<Bringing>(Bringing{.run = group_.run,
                                                 .snapshot = snapshot,
                                                 .names = std::move(names),
                                                 .wanted = std::move(wanted),
                                                 .done = brought,
                                                 .patience = kPatience,
                                                 .since = around_.world.now()}));
}

void SnapshotNode::bring_next(const std::shared_ptr<Bringing>& bringing) {
  if (!bringing->wanted()) return;
  if (bringing->files.size() == bringing->names.size()) return bringing->done(bringing->files);
  const auto file = std::ranges::find(bringing->snapshot.files, bringing->names[bringing->files.size()],
                                      &comm::SnapshotFile::name);
  if (file == bringing->snapshot.files.end()) return bringing->done(bringing->files);
  const auto again = [this, bringing](double seconds) {
    around_.host.post(seconds, [this, bringing] { bring_next(bringing); });
  };
  if (around_.disk.read(file->content)) {
    around_.disk.refer(bringing->run, file->content);
    bringing->files.push_back({file->name, file->content, file->bytes, file->holders});
    bringing->holder = 0;
    bringing->since = around_.world.now();
    return again(0.002);
  }
  if (bringing->holder > file->holders.size()) {  // all have been asked once
    if (around_.world.now() - bringing->since > bringing->patience) return bringing->done(bringing->files);
    bringing->holder = 0;
    return again(kRetrySeconds);
  }
  const std::string node = bringing->holder < file->holders.size() ? file->holders[bringing->holder] : "";
  ++bringing->holder;
  Holder* holder =
      group_.holders.contains(node) || (node.empty() && group_.has_store) ? around_.find(node) : nullptr;
  if (holder == nullptr) return again(0.01);
  const comm::ContentId content = file->content;
  around_.network.call(
      around_.host, holder->host(),
      [holder, content, me = around_.node] { return holder->gives(content, me); },
      [this, bringing, content, again](bool good) {
        if (good) around_.disk.write(bringing->run, content);
        again(0.01);
      });
}

}  // namespace modelet::simulation
