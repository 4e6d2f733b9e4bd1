// The search for a placement compared with one that looks at every pair of modelets, and how much it looks
// at.
#include "scheduler/plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/rng.h"

namespace modelet::scheduler {
namespace {

// Modelets of two layers. The first layer has modelets of these widths, the second has `output` modelets of
// width 7.
struct Problem {
  Problem(const std::vector<uint64_t>& widths, uint32_t output, const std::vector<double>& speeds,
          uint64_t memory) {
    uint64_t begin = 0;
    const auto add = [&](uint32_t layer, LayerKind kind, uint64_t width) {
      partition.push_back({static_cast<uint32_t>(partition.size()), layer, kind, 100, begin, begin + width});
      begin += width;
      ModeletCost cost{.memory_bytes = 10 * width};
      cost.work.at(StepPhase::kForward).flops = 1e6 * static_cast<double>(width);
      costs.push_back(cost);
    };
    for (const uint64_t width : widths) add(0, LayerKind::kInput, width);
    begin = 0;
    for (uint64_t i = 0; i < output; ++i) add(1, LayerKind::kOutput, 7);
    batch_work.resize(2);
    batch_work[0].at(StepPhase::kForward).flops = 3e6;
    for (const double speed : speeds)
      nodes.push_back({.memory_bytes = memory, .gflops = speed, .memory_gbps = 1, .bf16_gflops = speed});
  }
  PlacementProblem problem() const {
    return {
        .partition = partition, .costs = costs, .batch_work = batch_work, .nodes = nodes, .fixed_bytes = 5};
  }
  double seconds(uint32_t modelet, uint32_t node) const {
    const PhaseSeconds phases = costs[modelet].work.seconds(nodes[node]);
    return std::accumulate(phases.begin(), phases.end(), 0.0);
  }
  double batch_seconds(uint32_t layer, uint32_t node) const {
    const PhaseSeconds phases = batch_work[layer].seconds(nodes[node]);
    return std::accumulate(phases.begin(), phases.end(), 0.0);
  }
  // Seconds of the slowest node in each layer.
  std::vector<double> slowest(const std::vector<uint32_t>& owner) const {
    std::vector<double> result;
    for (uint32_t layer = 0; layer < batch_work.size(); ++layer) {
      std::vector<double> load;
      for (uint32_t node = 0; node < nodes.size(); ++node) load.push_back(batch_seconds(layer, node));
      for (const ModeletSpec& modelet : partition)
        if (modelet.layer == layer) load[owner[modelet.id]] += seconds(modelet.id, owner[modelet.id]);
      result.push_back(*std::max_element(load.begin(), load.end()));
    }
    return result;
  }

  std::vector<ModeletSpec> partition;
  std::vector<ModeletCost> costs;
  std::vector<StepWork> batch_work;
  std::vector<NodeCapacity> nodes;
};

std::vector<uint64_t> memory_of(const Problem& problem, const std::vector<uint32_t>& owner) {
  std::vector<uint64_t> memory(problem.nodes.size(), 5);
  for (const ModeletSpec& modelet : problem.partition)
    memory[owner[modelet.id]] += problem.costs[modelet.id].memory_bytes;
  return memory;
}

// Checks that no move of a modelet, and no swap of two, makes the slowest node of a layer faster within the
// memory.
void expect_nothing_left(const Problem& problem, const std::vector<uint32_t>& owner) {
  const std::vector<double> found = problem.slowest(owner);
  const std::vector<uint64_t> memory = memory_of(problem, owner);
  const auto fits = [&](const std::vector<uint32_t>& other) {
    const std::vector<uint64_t> used = memory_of(problem, other);
    for (size_t node = 0; node < used.size(); ++node)
      if (used[node] > problem.nodes[node].memory_bytes) return false;
    return true;
  };
  for (size_t node = 0; node < memory.size(); ++node)
    EXPECT_LE(memory[node], problem.nodes[node].memory_bytes);
  const auto better = [&](const std::vector<uint32_t>& other, uint32_t layer) {
    return problem.slowest(other)[layer] < found[layer] * (1 - 1e-6) && fits(other);
  };
  auto other = owner;
  for (const ModeletSpec& a : problem.partition) {
    for (uint32_t node = 0; node < problem.nodes.size(); ++node) {
      other[a.id] = node;
      EXPECT_FALSE(better(other, a.layer)) << "modelet " << a.id << " to node " << node;
    }
    other[a.id] = owner[a.id];
    for (const ModeletSpec& b : problem.partition) {
      if (b.layer != a.layer) continue;
      std::swap(other[a.id], other[b.id]);
      EXPECT_FALSE(better(other, a.layer)) << "modelets " << a.id << " and " << b.id;
      std::swap(other[a.id], other[b.id]);
    }
  }
}

TEST(Search, LeavesNoMoveOrSwapThatHelps) {
  Rng rng(7);
  for (int i = 0; i < 60; ++i) {
    std::vector<double> speeds(2 + rng.below(4));
    for (double& speed : speeds) speed = 1 + rng.below(40) / 10.0;
    std::vector<uint64_t> widths(3 + rng.below(10));
    for (uint64_t& width : widths) width = 4 + 5 * rng.below(4);
    const uint64_t memory = i % 2 == 0 ? 100'000 : 1600 + 100 * rng.below(6);
    const Problem problem(widths, 3 + rng.below(12), speeds, memory);
    expect_nothing_left(problem, find_placement(problem.problem()).owner);
  }
}

// A submission may have tens of thousands of modelets. Looking at every pair of them would take minutes.
TEST(Search, LooksAtSizesNotAtPairsOfModelets) {
  constexpr uint32_t kHidden = 4096, kOutput = 12288;
  const Problem problem(std::vector<uint64_t>(kHidden, 16), kOutput, {1, 1.7, 2.3, 3.1, 1, 1.3, 4, 2},
                        uint64_t{1} << 40);
  const Placement placement = find_placement(problem.problem());
  EXPECT_LT(placement.tried, 100'000u) << "of " << uint64_t{kOutput} * kOutput << " pairs";
  const std::vector<double> slowest = problem.slowest(placement.owner);
  for (uint32_t layer = 0; layer < 2; ++layer) {  // the ideal, if modelets could be divided at will
    double work = 0, speed = 0;
    for (const ModeletSpec& modelet : problem.partition)
      if (modelet.layer == layer) work += problem.seconds(modelet.id, 0);
    for (uint32_t node = 0; node < problem.nodes.size(); ++node) {
      work += problem.batch_seconds(layer, 0);
      speed += problem.nodes[node].gflops / problem.nodes[0].gflops;
    }
    EXPECT_LT(slowest[layer], 1.01 * work / speed);
  }
}

}  // namespace
}  // namespace modelet::scheduler
