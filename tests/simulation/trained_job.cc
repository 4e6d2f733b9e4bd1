#include "tests/simulation/trained_job.h"

#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "base/system/file.h"
#include "node_agent/agent/job/rank_of_run.h"

namespace modelet::simulation {
namespace {

constexpr double kLinger = 2, kShortest = 1e-6;  // seconds
constexpr double kBreaks = 0.01;                 // share of messages before which a connection breaks

// No Error: the trainer must not take it for the failure of a peer.
struct Killed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// While this lives, no file can grow.
class FullDisk {
 public:
  FullDisk() {
    MODELET_CHECK(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit none{0, before_.rlim_max};
    MODELET_CHECK(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

// Simulated time. `pace`: each look at it takes up to this many seconds.
class TrainedJob::PassingClock final : public Clock {
 public:
  PassingClock(TrainedJob& job, double pace) : job_(job), pace_(pace) {}
  double now() const override {
    if (pace_ > 0) job_.wait(job_.around_.world.between(0, pace_));
    return job_.around_.world.now();
  }
  void sleep(double seconds) const override { job_.wait(seconds); }

 private:
  TrainedJob& job_;
  const double pace_;
};

class TrainedJob::Wires final : public comm::Transport {
 public:
  explicit Wires(TrainedJob& job) : job_(job) { job_.wires_ = this; }
  Wires(const Wires&) = delete;
  Wires& operator=(const Wires&) = delete;
  ~Wires() override { job_.wires_ = nullptr; }

  int rank() const override { return static_cast<int>(job_.prepare_.rank); }
  int size() const override { return static_cast<int>(job_.prepare_.size); }
  ConnectionHandler when_connections_change(ConnectionHandler handler) override {
    return std::exchange(handler_, std::move(handler));
  }

  void send(std::span<const int> to, const comm::RecycledPtr<comm::Message>& message) override {
    for (const int rank : to) job_.send(rank, message);
  }

  bool receive(double timeout_seconds, comm::Frame& frame) override {
    frame.owner = {};
    const World& world = job_.around_.world;
    const double deadline = world.now() + timeout_seconds;
    for (;;) {
      while (!job_.broken_.empty()) {
        const int rank = job_.broken_.back();
        job_.broken_.pop_back();
        handler_(rank, Connection::kEnded);
        handler_(rank, Connection::kBack);
      }
      if (interrupted_) throw Interrupted(reason_);
      if (!job_.arrived_.empty()) {
        const RankMessage message = std::move(job_.arrived_.front());
        job_.arrived_.pop_front();
        frame = {static_cast<int>(message.rank), message.content, message.content->envelope,
                 message.content->payload};
        return true;
      }
      if (world.now() >= deadline) return false;
      job_.wait(deadline - world.now());
    }
  }

  void interrupt(const std::string& reason) override {
    if (!std::exchange(interrupted_, true)) reason_ = reason;
  }

 private:
  TrainedJob& job_;
  ConnectionHandler handler_;
  bool interrupted_ = false;
  std::string reason_;
};

TrainedJob::TrainedJob(JobSurroundings surroundings, const msg::PrepareT& prepare, TrainedWorkload& workload)
    : Job(std::move(surroundings), prepare),
      workload_(workload),
      connections_(prepare.size),
      fiber_([this] { work(); }) {}

// ---- the fiber

void TrainedJob::resume() {
  ++waits_;
  const auto stays = shared_from_this();
  std::optional<FullDisk> full;
  if (around_.disk.is_full()) full.emplace();
  fiber_.resume();
}

// The fiber goes on as soon as its process does. Until then it may have gone on for another reason.
void TrainedJob::wake() {
  if (over_) return;
  around_.host.post(0, [self = self(), waits = waits_] {
    if (!self->over_ && self->waits_ == waits) self->resume();
  });
}

void TrainedJob::wait(double seconds) {
  if (killed_) return wait_for_news();
  around_.host.post(std::max(seconds, kShortest), [self = self(), waits = waits_] {
    if (!self->over_ && self->waits_ == waits) self->resume();
  });
  wait_for_news();
}

void TrainedJob::wait_for_news() {
  if (!killed_) fiber_.pause();
  if (killed_) throw Killed("killed");  // again, if somebody has caught it
}

// ---- the rank

void TrainedJob::work() {
  if (killed_) return;
  msg::RunDoneT done;
  done.run = prepare_.run;
  done.epoch = prepare_.epoch;
  try {
    train();
    done.outcome = msg::Outcome::Ok;
  } catch (const Killed&) {
    trainer_.reset();
    return;
  } catch (...) {
    agent::set_failure(done, std::current_exception(), !abort_reason_.empty());
  }
  done.step = step();
  trainer_.reset();
  over_ = true;
  linger_until_ = around_.world.now() + kLinger;
  around_.report(std::move(done));
}

void TrainedJob::train() {
  agent::TrainJob job = agent::job_of(prepare_);
  job.threads = 1;
  job.out = workload_.folder_of(around_.node) /
            fmt::format("{}/{:016x}-{}", around_.disk.losses(), prepare_.pool, prepare_.run);
  if (prepare_.snapshot != nullptr) {
    const comm::Snapshot snapshot = msg::snapshot_of(*prepare_.snapshot);
    agent::bring_snapshot(snapshot, job,
                          [&](std::span<const std::string> names, const std::filesystem::path& folder) {
                            bring(snapshot, names, folder);
                          });
  }
  trainer_.emplace(std::move(job), std::make_unique<PassingClock>(*this, pace()));
  trainer_->prepare();
  check_wanted();
  report_prepared();
  wait_for_start();

  comm::Group group(std::make_unique<Wires>(*this), group_options());
  struct Entered {
    Entered(TrainedJob& job, comm::Group& group) : job_(job) { job_.group_ = &group; }
    Entered(const Entered&) = delete;
    Entered& operator=(const Entered&) = delete;
    ~Entered() { job_.group_ = nullptr; }
    TrainedJob& job_;
  } const entered(*this, group);
  if (stop_asked_) trainer_->request_stop();
  trainer_->run(
      group,
      [this](const nlohmann::json& event) {  // times and paths differ each time
        nlohmann::json told = {{"group", prepare_.epoch}};
        for (const char* field : {"event", "step", "epoch", "loss"})
          if (event.contains(field)) told[field] = event[field];
        if (event.contains("loss"))
          workload_.reported(prepare_.run, prepare_.epoch, event.at("event"), event.at("step"),
                             event.at("loss"));
        report_event(told);
      },
      [this](const agent::WrittenSnapshot& written) { wrote(written); });
}

comm::GroupOptions TrainedJob::group_options() {
  return {.run = prepare_.run,
          .epoch = prepare_.epoch,
          .clock = std::make_shared<PassingClock>(*this, 0),
          .on_missing =
              [this](int rank, const std::string& why) {
                report_missed(static_cast<uint32_t>(rank), false, why);
              },
          .on_found = [this](int rank) { report_missed(static_cast<uint32_t>(rank), true, "is back"); },
          .node_names = prepare_.node_names};
}

void TrainedJob::check_wanted() const {
  if (!abort_reason_.empty()) throw Interrupted(abort_reason_);
  if (stop_asked_) throw Error("stopped before the first step");
}

void TrainedJob::wait_for_start() {
  while (ranks_.empty()) {
    wait_for_news();
    if (!abort_reason_.empty() || ranks_.empty())
      check_wanted();  // once the group runs, a stop ends all ranks
  }
}

void TrainedJob::bring(const comm::Snapshot& snapshot, std::span<const std::string> names,
                       const std::filesystem::path& folder) {
  const auto brought = std::make_shared<std::optional<bool>>();
  around_.snapshots.bring(
      snapshot, {names.begin(), names.end()},
      [self = self()] { return !self->over_ && !self->killed_ && self->abort_reason_.empty(); },
      [self = self(), brought](bool good) {
        *brought = good;
        self->wake();
      });
  while (!*brought) {
    wait_for_news();
    check_wanted();
  }
  if (!**brought) throw Error("files of the snapshot cannot be had");
  workload_.write_files(snapshot, names, folder);
}

void TrainedJob::wrote(const agent::WrittenSnapshot& written) {
  std::vector<comm::SnapshotFile> files;
  for (const std::string& name : written.files) {
    std::string bytes = read_text_file(written.folder / name);
    const uint64_t size = bytes.size();
    files.push_back({name,
                     workload_.wrote(prepare_.run, prepare_.epoch, written.step, name, std::move(bytes)),
                     size,
                     {}});
    around_.disk.put(prepare_.run, files.back().content);
  }
  around_.world.note("{} run {} epoch {} rank {}: snapshot of step {}", around_.node, prepare_.run,
                     prepare_.epoch, prepare_.rank, written.step);
  around_.snapshots.take(written.step, written.keep, files);
}

// ---- messages of ranks

void TrainedJob::send(int to, const comm::RecycledPtr<comm::Message>& message) {
  wait(around_.world.between(0, pace()));
  const auto rank = static_cast<size_t>(to);
  Connections& own = connections_[rank];
  if (around_.world.chance(kBreaks)) return break_connection(to);
  if (ranks_[rank] == nullptr) return;
  RankMessage sent = this->message();
  sent.connection = own.sending;
  sent.number = own.sent++;
  sent.content = message;
  around_.network.carry(
      around_.host, ranks_[rank]->host(),
      [self = self(), rank, connection = own.sending] {
        const bool goes_on = !self->over_ || self->around_.world.now() < self->linger_until_;
        return goes_on && self->connections_[rank].sending == connection;
      },
      [host = ranks_[rank], sent] { return host->received(sent); },
      [self = self(), to, connection = own.sending] {
        if (self->over_ || self->connections_[static_cast<size_t>(to)].sending != connection) return;
        self->break_connection(to);
        self->wake();
      });
}

// What is under way is lost. The trainer learns of it when it next receives.
void TrainedJob::break_connection(int to) {
  around_.world.note("{}: its connection to rank {} breaks", around_.node, to);
  Connections& own = connections_[static_cast<size_t>(to)];
  ++own.sending;
  own.sent = 0;
  broken_.push_back(to);
}

bool TrainedJob::received(const RankMessage& message) {
  if (!is_of_group(message)) return is_dropped(message);
  if (over_) return true;
  if (wires_ == nullptr) return false;
  Connections& own = connections_[message.rank];
  if (message.connection > own.receiving) {
    own.receiving = message.connection;
    own.received = 0;
    own.early.clear();
  }
  if (message.connection < own.receiving || message.number < own.received) return true;
  own.early.insert({message.number, message});
  for (; !own.early.empty() && own.early.begin()->first == own.received; ++own.received) {
    arrived_.push_back(std::move(own.early.begin()->second));
    own.early.erase(own.early.begin());
  }
  wake();
  return true;
}

// ---- what the agent wants

void TrainedJob::prepare() {
  const uint64_t from = prepare_.snapshot == nullptr ? 0 : msg::snapshot_of(*prepare_.snapshot).step;
  around_.snapshots.begin(prepare_, from);
  around_.host.post(around_.world.between(0.05, 0.5), [self = self()] {
    if (!self->over_) self->resume();
  });
}

void TrainedJob::start(const msg::StartT& start) {
  ranks_ = find_ranks(start);
  wake();
}

void TrainedJob::stop() {
  stop_asked_ = true;
  if (group_ != nullptr) trainer_->request_stop();
  wake();
}

// Some agents take a while.
void TrainedJob::abort(const std::string& reason) {
  const double seconds =
      around_.world.chance(0.1) ? around_.world.between(1, 4) : around_.world.between(0, 0.1);
  around_.host.post(seconds, [self = self(), reason] {
    if (self->over_) return;
    self->abort_reason_ = reason;
    if (self->group_ != nullptr) self->group_->interrupt(reason);
    self->wake();
  });
}

// Whatever the trainer has on its stack is taken down; nothing of that has an effect outside.
void TrainedJob::vanish() {
  if (std::exchange(killed_, true) || fiber_.has_ended()) return;
  over_ = true;
  fiber_.resume();
}

}  // namespace modelet::simulation
