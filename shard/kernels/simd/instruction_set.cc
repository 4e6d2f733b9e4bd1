#include "shard/kernels/simd/instruction_set.h"

#include <atomic>
#include <cstdlib>

#include "base/array/simd_targets.h"
#include "base/error.h"
#include "shard/kernels/simd/dot_pairs.h"
// Highway comes after simd_targets.h, which says what it compiles for.
#include <hwy/highway.h>

namespace modelet::shard::kernels {
namespace {

// Highway has no target for it: it is AVX3 (Highway's word for AVX-512) and one more instruction.
constexpr const char* kDotPairs = "AVX3_BF16";

struct InstructionSet {
  std::string name;
  int64_t target;
  bool dot_pairs;
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
    sets.push_back({hwy::TargetName(target), target, false});
    if (target != HWY_AVX3 || !machine_has_dot_pairs()) continue;
    sets.insert(dot_pairs_chosen() ? sets.end() - 1 : sets.end(), {kDotPairs, target, true});
  }
  hwy::SetSupportedTargetsForTest(in_use);
  return sets;
}

// Complements Highway's own choice, which is global too: kernels are plain functions.
std::atomic<bool>& dot_pairs() {
  static std::atomic<bool> in_use = dot_pairs_chosen();
  return in_use;
}

}  // namespace

bool dot_pairs_in_use() { return dot_pairs().load(std::memory_order_relaxed); }

std::vector<std::string> available_instruction_sets() {
  std::vector<std::string> names;
  for (const InstructionSet& set : instruction_sets()) names.push_back(set.name);
  return names;
}

std::string instruction_set() {
  return dot_pairs_in_use() ? kDotPairs : hwy::TargetName(hwy::SupportedAndGeneratedTargets().front());
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
      dot_pairs() = set.dot_pairs;
      hwy::SetSupportedTargetsForTest(set.target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      return;
    }
    known += (known.empty() ? "" : ", ") + set.name;
  }
  throw UsageError("instruction set '" + name + "' is not available on this machine; there are " + known);
}

}  // namespace modelet::shard::kernels
