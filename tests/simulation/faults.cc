#include "tests/simulation/faults.h"

#include "base/rng.h"
#include "tests/simulation/history.h"
#include "tests/simulation/pool.h"

namespace modelet::simulation {
namespace {

constexpr uint32_t kMostFaults = 10, kMostKinds = 4;
constexpr size_t kMostNodes = 8, kMostRuns = 4;

struct Draw {
  Rng rng;
  double between(double least, double most) { return least + (most - least) * rng.uniform_double(); }
  uint32_t below(size_t bound) { return rng.below(static_cast<uint32_t>(bound)); }
  bool chance(double share) { return rng.uniform_double() < share; }
};

void cut(Pool& pool, Draw& draw, Node& node) {
  const Node& other = *pool.nodes[draw.below(pool.nodes.size())];
  const double seconds = draw.between(0.5, 12);
  pool.network.block(node.machine(), other.machine(), seconds);
  if (draw.chance(0.5)) pool.network.block(other.machine(), node.machine(), seconds);
}

void isolate(Pool& pool, Draw& draw, const Node& node) {
  const double seconds = draw.between(1, 15);
  for (size_t other = 0; other <= pool.nodes.size(); ++other) {
    const int machine = other == 0 ? 0 : pool.nodes[other - 1]->machine();
    pool.network.block(node.machine(), machine, seconds);
    pool.network.block(machine, node.machine(), seconds);
  }
}

// Sometimes this lasts longer than the time that the scheduler gives to nodes that no other node misses.
void cut_scheduler(Pool& pool, Draw& draw) {
  const double seconds = draw.between(1, 40);
  for (const auto& node : pool.nodes) {
    pool.network.block(node->machine(), 0, seconds);
    pool.network.block(0, node->machine(), seconds);
  }
}

void one_way(Pool& pool, Draw& draw, const Node& node) {
  const double seconds = draw.between(0.5, 12);
  if (draw.chance(0.5))
    pool.network.block(node.machine(), 0, seconds);
  else
    pool.network.block(0, node.machine(), seconds);
}

// The node has time to work until others can do without it, or too little time for that. Its disk may leave
// with it.
void leave(Pool& pool, Draw& draw, Node& node) {
  const double seconds = draw.chance(0.7) ? 60 : draw.between(0, 3);
  if (draw.chance(0.5))
    pool.world.after(draw.between(5, 20), [&node] {
      if (node.has_left()) node.come_back();
    });
  node.leave(seconds, draw.chance(0.5));
}

void preempt(Pool& pool, Draw& draw) {
  for (const auto& node : pool.nodes) {
    pool.world.after(draw.between(40, 80), [&left = *node] {
      if (left.has_left()) left.come_back();
    });
    node->leave(60, draw.chance(0.3));
  }
}

void drain(Pool& pool, Draw& draw, const Node& node) {
  pool.clients.front()->drain(node.name(), true);
  pool.world.after(draw.between(1, 20),
                   [&pool, name = node.name()] { pool.clients.front()->drain(name, false); });
}

}  // namespace

std::vector<PlannedFault> plan_faults(uint64_t seed, double first, double last) {
  Draw draw{Rng(seed, {2})};
  std::vector<Fault> kinds;
  for (uint32_t i = 0; i <= draw.below(kMostKinds); ++i)
    kinds.push_back(kFaults[draw.below(kFaults.size())].fault);
  std::vector<PlannedFault> faults;
  for (uint32_t i = 0, count = draw.below(kMostFaults + 1); i < count; ++i) {
    const Fault fault =
        draw.chance(0.7) ? kinds[draw.below(kinds.size())] : kFaults[draw.below(kFaults.size())].fault;
    // Some faults happen close together.
    const double time =
        i > 0 && draw.chance(0.3) ? faults.back().time + draw.between(0, 1) : draw.between(first, last);
    faults.push_back({time, fault, draw.rng.next()});
  }
  if (faults.empty() && draw.chance(0.5))
    faults.push_back({draw.between(first, last), Fault::kStop, draw.rng.next()});
  return faults;
}

void happen(Pool& pool, const PlannedFault& planned) {
  Draw draw{Rng(planned.seed)};
  Node& node = *pool.nodes[draw.below(pool.nodes.size())];
  Client& client = *pool.clients[draw.below(pool.clients.size())];
  const double now = pool.world.now();
  pool.world.note("FAULT {}: {}", kFaults[static_cast<size_t>(planned.fault)].name, node.name());
  switch (planned.fault) {
    case Fault::kReset:
      if (draw.chance(0.2)) return pool.network.reset(client);
      return pool.network.reset(node);
    case Fault::kHalfOpen:
      return pool.network.half_open(node, draw.between(0, 12), draw.between(0, 12));
    case Fault::kOneWay:
      return one_way(pool, draw, node);
    case Fault::kIsolate:
      return isolate(pool, draw, node);
    case Fault::kSchedulerCut:
      return cut_scheduler(pool, draw);
    case Fault::kCut:
      return cut(pool, draw, node);
    case Fault::kSlow:
      return pool.network.slow(node.machine(), draw.between(0.1, 3), draw.between(1, 15));
    case Fault::kDouble:
      return pool.network.double_messages(draw.between(0.05, 0.5), draw.between(1, 15));
    case Fault::kKill:
      return node.crash(draw.between(0.2, 12), false);
    case Fault::kPower:
      return node.crash(draw.between(2, 12), true);
    case Fault::kWipe:
      node.crash(draw.between(1, 12), true);
      return node.disk().lose_all();
    case Fault::kStall:
      return node.stall(draw.between(0.3, 20));
    case Fault::kLeave:
      return leave(pool, draw, node);
    case Fault::kJoin:
      if (pool.nodes.size() < kMostNodes) pool.add_node();
      return;
    case Fault::kDrain:
      return drain(pool, draw, node);
    case Fault::kRot:
      return node.disk().rot(draw.below(1000));
    case Fault::kFull:
      return node.disk().fill(draw.between(1, 15));
    case Fault::kDiskFails:
      return node.disk().fail(draw.between(1, 15));
    case Fault::kSchedulerKill:
      return pool.scheduler.crash(draw.between(0.1, 12));
    case Fault::kSchedulerPoint:
      return pool.scheduler.crash_at(1 + draw.below(8), draw.between(0.1, 12));
    case Fault::kSchedulerStall:
      return pool.scheduler.stall(draw.between(0.3, 12));
    case Fault::kSubmit:
      if (pool.clients.size() <= kMostRuns)
        submit_run(pool, mix64(planned.seed ^ static_cast<uint64_t>(now)));
      return;
    case Fault::kStop:
      return client.stop();
    case Fault::kPreempt:
      return preempt(pool, draw);
  }
}

void cease(Pool& pool) {
  pool.world.note("FAULTS CEASE");
  pool.is_calm = true;
  pool.network.heal();
  for (const auto& node : pool.nodes) {
    if (node->has_left()) node->come_back();
    pool.clients.front()->drain(node->name(), false);
  }
}

}  // namespace modelet::simulation
