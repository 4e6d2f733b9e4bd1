// What a plan says about the memory of a modelet. prediction_test shows that this is what is really
// allocated.
#include "base/experiment/memory.h"

#include <gtest/gtest.h>

namespace modelet {
namespace {

TEST(Memory, CountsWeightsStateAndTables) {
  Experiment e;
  ModeletSpec output{.kind = LayerKind::kOutput, .inputs = 128, .begin = 0, .end = 1000};
  const uint64_t adam = modelet_bytes(output, e);
  EXPECT_EQ(adam, 1000 * 129 * 3 * sizeof(float) + 1000 * sizeof(uint32_t));
  e.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_EQ(adam - modelet_bytes(output, e), 1000 * 128 * sizeof(float));  // a bias always has room for both
  e.optimizer.kind = OptimizerKind::kAdam;
  e.model.precision = Precision::kBf16;
  EXPECT_LE(modelet_bytes(output, e), 8 * output.parameters());
  e.optimizer.kind = OptimizerKind::kSgd;
  const uint64_t without_tables = modelet_bytes(output, e);
  e.sampling.mode = SamplingMode::kLsh;
  EXPECT_GT(modelet_bytes(output, e), without_tables);
}

}  // namespace
}  // namespace modelet
