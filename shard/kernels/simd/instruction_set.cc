#include "shard/kernels/simd/instruction_set.h"

#include <atomic>
#include <cstdlib>

#include "base/array/simd_targets.h"
#include "base/error.h"
#include "shard/kernels/simd/dot_pairs.h"
#include "shard/kernels/simd/tiles.h"
// Highway comes after simd_targets.h, which says what it compiles for.
#include <hwy/highway.h>

namespace modelet::shard::kernels {
namespace {

// What Highway has no targets for: AVX3 (its word for AVX-512) with one more instruction, or with tiles.
enum class Pairs { kSplit, kDot, kTiles };
constexpr const char *kDotPairs = "AVX3_BF16", *kTiles = "AMX";

struct InstructionSet {
  std::string name;
  int64_t target;
  Pairs pairs;
};

// Measured once.
bool dot_pairs_chosen() {
  static const bool chosen = machine_has_dot_pairs() && dot_pairs_pay();
  return chosen;
}

// Fastest first, whatever use_instruction_set() forced.
std::vector<InstructionSet> instruction_sets() {
  const int64_t in_use = hwy::SupportedTargets();
  hwy::SetSupportedTargetsForTest(0);
  std::vector<InstructionSet> sets;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target == HWY_AVX3 && machine_has_tiles()) sets.push_back({kTiles, target, Pairs::kTiles});
    sets.push_back({hwy::TargetName(target), target, Pairs::kSplit});
    if (target != HWY_AVX3 || !machine_has_dot_pairs()) continue;
    sets.insert(dot_pairs_chosen() ? sets.end() - 1 : sets.end(), {kDotPairs, target, Pairs::kDot});
  }
  hwy::SetSupportedTargetsForTest(in_use);
  return sets;
}

// Complements Highway's own choice, which is global too: kernels are plain functions.
std::atomic<Pairs>& pairs() {
  static std::atomic<Pairs> in_use = machine_has_tiles()  ? Pairs::kTiles
                                     : dot_pairs_chosen() ? Pairs::kDot
                                                          : Pairs::kSplit;
  return in_use;
}

}  // namespace

bool dot_pairs_in_use() { return pairs().load(std::memory_order_relaxed) == Pairs::kDot; }
bool tiles_in_use() { return pairs().load(std::memory_order_relaxed) == Pairs::kTiles; }

std::vector<std::string> available_instruction_sets() {
  std::vector<std::string> names;
  for (const InstructionSet& set : instruction_sets()) names.push_back(set.name);
  return names;
}

std::string instruction_set() {
  return tiles_in_use()       ? kTiles
         : dot_pairs_in_use() ? kDotPairs
                              : hwy::TargetName(hwy::SupportedAndGeneratedTargets().front());
}

void use_instruction_set_from_environment() {
  const char* const name = std::getenv("MODELET_SIMD");
  if (name == nullptr) return;
  try {
    use_instruction_set(name);
  } catch (const UsageError& error) {
    throw UsageError(std::string("MODELET_SIMD: ") + error.what());
  }
}

void use_instruction_set(const std::string& name) {
  std::string known;
  for (const InstructionSet& set : instruction_sets()) {
    if (name == set.name) {
      pairs() = set.pairs;
      hwy::SetSupportedTargetsForTest(set.target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      return;
    }
    known += (known.empty() ? "" : ", ") + set.name;
  }
  throw UsageError("instruction set '" + name + "' is not available on this machine; there are " + known);
}

}  // namespace modelet::shard::kernels
