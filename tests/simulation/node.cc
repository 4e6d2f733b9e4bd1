#include "tests/simulation/node.h"

#include "tests/simulation/pool.h"

namespace modelet::simulation {
namespace {

constexpr double kRestart = 2, kRestartOfKilled = 8;  // seconds until the supervisor starts it again
constexpr double kPowerLoss = 1;                      // seconds of writes that are lost with the power

}  // namespace

Node::Node(Pool& pool, int machine, std::string name)
    : ControlEnd(pool.world, machine),
      pool_(pool),
      name_(std::move(name)),
      address_(fmt::format("tcp://10.0.0.{}", machine)),
      disk_(pool.world, pool.promises, name_) {}

Node::~Node() {
  if (job_) job_->vanish();
}

void Node::start() {
  is_released_ = false;
  if (is_alive() || has_left_) return;
  born();
  msg::RegisterT self;
  self.name = name_;
  self.incarnation = pool_.world.rng().next();
  self.version = "simulated";
  self.cores = 2;
  self.memory_bytes = uint64_t{4} << 30;
  self.gflops = 50;
  self.memory_gbps = 10;
  self.data_endpoint = address_ + ":*";
  self.holder_endpoint = address_ + ":7001";
  self.protocol = msg::kControlVersion;
  self.private_data = {"clinic"};
  core_ = std::make_unique<agent::AgentCore>(self);
  snapshots_ = std::make_unique<SnapshotNode>(
      SnapshotSurroundings{pool_.world, pool_.network, *this, disk_, name_,
                           [this](const std::string& node) { return pool_.holder(node); },
                           [this](uint64_t pool, msg::SnapshotHeldT message) {
                             post(0, [this, pool, message] { handle(agent::Held{pool, message}); });
                           },
                           pool_.mutant});
  is_lost_ = false;
  pool_.world.note("{} starts", name_);
  pool_.network.connect(*this);
  tick();
}

void Node::connected() { handle(agent::ConnectionLost{}); }
void Node::received(const msg::FromSchedulerMessage& message) {
  is_released_ = is_released_ || std::holds_alternative<msg::ReleasedT>(message);
  repeats_ = std::holds_alternative<msg::RegisteredT>(message);
  handle(agent::FromScheduler{message});
  repeats_ = false;
}
void Node::leave(double seconds, bool disk_stays) {
  if (!is_alive()) return;
  pool_.world.note("{} is asked to leave within {:.1f} s{}", name_, seconds,
                   disk_stays ? "" : ", with its disk");
  disk_stays_ = disk_stays;
  post(0, [this, seconds] { handle(agent::AskedToLeave{seconds, "its owner wants it"}); });
}

void Node::handle(const agent::AgentEvent& event) {
  if (!is_alive()) return;
  for (const agent::AgentAction& action : core_->handle(pool_.world.now() + 1, event)) {
    std::visit([this](const auto& what) { carry_out(what); }, action);
    if (!is_alive()) return;
  }
  if (std::exchange(is_lost_, false)) return handle(agent::ConnectionLost{});
  tick();
}

void Node::tick() {
  const double wait = std::max(0.01, core_->next_tick() - pool_.world.now() - 1);
  post(wait, [this, number = ++ticks_] {
    if (number == ticks_) handle(agent::Tick{job_ ? job_->step() : 0});
  });
}

// ---- actions of the core

void Node::carry_out(const agent::Send& action) {
  const bool is_report = !std::holds_alternative<msg::RegisterT>(action.message) &&
                         !std::holds_alternative<msg::HeartbeatT>(action.message);
  if (repeats_ && is_report && pool_.mutant == Mutant::kNothingSentAgain) return;
  if (!pool_.network.send(*this, action.message)) is_lost_ = is_lost_ || core_->is_registered();
}

void Node::carry_out(const agent::PrepareJob& action) {
  job_ = pool_.workload->make_job(
      JobSurroundings{pool_.world, pool_.network, pool_.promises, *this, disk_, *snapshots_, name_,
                      endpoint(), [this](const std::string& endpoint) { return pool_.rank_host(endpoint); },
                      [this](msg::ToSchedulerMessage message) {
                        post(0, [this, message] {
                          if (std::holds_alternative<msg::RunDoneT>(message)) job_.reset();
                          handle(agent::FromJob{message});
                        });
                      },
                      pool_.mutant},
      action.prepare);
  job_->prepare();
}

void Node::carry_out(const agent::AgentLog& action) { pool_.world.note("{}: {}", name_, action.text); }

void Node::carry_out(const agent::EndAgent& action) {
  pool_.world.note("{} ends: {}", name_, action.text);
  end_process(false);
  if (action.why == agent::EndAgent::Why::kLeft) {
    has_left_ = true;
    if (!disk_stays_) is_released_ ? disk_.give_away() : disk_.lose_all();
    if (pool_.is_calm) pool_.world.after(kRestart, [this] { come_back(); });
  } else {
    pool_.world.after(kRestart, [this] { start(); });
  }
}

bool Node::offered(uint64_t run, uint64_t step, const comm::ContentId& content) {
  return snapshots_->offered(run, step, content);
}

bool Node::received(const RankMessage& message) { return job_ && job_->received(message); }

// ---- what happens to it

void Node::end_process(bool silently) {
  pool_.network.client_died(*this, silently);
  died();
  if (job_) job_->vanish();
  job_.reset();
}

void Node::crash(double seconds, bool silently) {
  if (!is_alive()) return;
  pool_.world.note("{} is killed{}", name_, silently ? " with its machine" : "");
  end_process(silently);
  if (silently) disk_.lose_since(pool_.world.now() - kPowerLoss);
  pool_.world.after(seconds, [this] { start(); });
}

void Node::kill() { crash(kRestartOfKilled, false); }

void Node::come_back() {
  has_left_ = false;
  start();
}

}  // namespace modelet::simulation
