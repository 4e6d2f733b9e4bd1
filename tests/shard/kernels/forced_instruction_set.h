// For tests of code that depends on the kernels.
#pragma once

#include <string>
#include <string_view>

#include "shard/kernels/simd/instruction_set.h"

namespace modelet::shard::kernels {

// Kernels run on one instruction set as long as this object lives, and on the best one afterwards.
class ForcedInstructionSet {
 public:
  explicit ForcedInstructionSet(const std::string& name) { use_instruction_set(name); }
  ~ForcedInstructionSet() { use_instruction_set(available_instruction_sets().front()); }
  ForcedInstructionSet(const ForcedInstructionSet&) = delete;
  ForcedInstructionSet& operator=(const ForcedInstructionSet&) = delete;
};

// Whether this instruction set has no vectors. The name that Highway gives it depends on the compiler.
inline bool is_plain(std::string_view instruction_set) {
  return instruction_set == "SCALAR" || instruction_set == "EMU128";
}

}  // namespace modelet::shard::kernels
