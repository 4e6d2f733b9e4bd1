// The partition covers every layer exactly once, whatever the shape.
#include "base/experiment/partition.h"

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"

namespace modelet {
namespace {

TEST(Partition, CoversEveryLayerExactly) {
  Rng rng(3);
  for (int round = 0; round < 500; ++round) {
    Experiment e;
    e.model.hidden.clear();
    for (uint32_t layers = 1 + rng.below(3); layers > 0; --layers)
      e.model.hidden.push_back(1 + rng.below(300));
    e.modelets.hidden_columns = 16 * (1 + rng.below(4));
    e.modelets.output_modelets = 1 + rng.below(20);
    const DataShape shape{.features = 1 + rng.below(1000), .labels = 1 + rng.below(1000)};
    const auto partition = partition_model(e, shape);

    std::vector<uint64_t> widths(e.model.hidden.begin(), e.model.hidden.end());
    widths.push_back(shape.labels);
    uint64_t next = 0, inputs = shape.features;
    uint32_t layer = 0;
    std::set<std::string> names;
    for (size_t i = 0; i < partition.size(); ++i) {
      const ModeletSpec& m = partition[i];
      EXPECT_EQ(m.id, i);
      if (m.layer != layer) {
        ASSERT_EQ(next, widths[layer]) << "layer " << layer << " ends too early";
        inputs = widths[layer];
        next = 0;
        ++layer;
      }
      ASSERT_EQ(m.layer, layer);
      EXPECT_EQ(m.begin, next);
      EXPECT_LT(m.begin, m.end);
      EXPECT_EQ(m.inputs, inputs);
      EXPECT_EQ(m.kind, layer == 0                   ? LayerKind::kInput
                        : layer + 1 == widths.size() ? LayerKind::kOutput
                                                     : LayerKind::kHidden);
      EXPECT_TRUE(names.insert(m.name()).second) << m.name();
      next = m.end;
    }
    EXPECT_EQ(layer + 1, widths.size());
    EXPECT_EQ(next, widths.back());
  }
}

TEST(Partition, NamesAreStable) {
  Experiment e;
  e.model.hidden = {32, 16};
  e.modelets.output_modelets = 2;
  const auto partition = partition_model(e, {.features = 10, .labels = 5});
  ASSERT_EQ(partition.size(), 4u);
  EXPECT_EQ(partition[0].name(), "input.00000000-00000032");
  EXPECT_EQ(partition[1].name(), "hidden1.00000000-00000016");
  EXPECT_EQ(partition[2].name(), "output.00000000-00000002");
  EXPECT_EQ(partition[3].name(), "output.00000002-00000005");
}

}  // namespace
}  // namespace modelet
