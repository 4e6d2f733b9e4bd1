#include "base/array/sample_range.h"

#include <gtest/gtest.h>

namespace modelet {
namespace {

std::vector<SampleRange> split(size_t samples, size_t count) {
  std::vector<SampleRange> ranges;
  split_batch(samples, count, ranges);
  return ranges;
}

TEST(SplitBatch, HalvesWhatIsLeft) {
  EXPECT_EQ(split(256, 1), (std::vector<SampleRange>{{0, 256}}));
  EXPECT_EQ(split(256, 2), (std::vector<SampleRange>{{0, 128}, {128, 256}}));
  EXPECT_EQ(split(256, 4), (std::vector<SampleRange>{{0, 128}, {128, 192}, {192, 224}, {224, 256}}));
}

TEST(SplitBatch, RangesCoverEveryBatchInOrderAndBeginAtMultiples) {
  for (size_t samples = 0; samples < 300; ++samples)
    for (size_t count = 1; count <= kMaxMicroBatches; ++count) {
      const std::vector<SampleRange> ranges = split(samples, count);
      ASSERT_LE(ranges.size(), count);
      size_t end = 0;
      for (const SampleRange& range : ranges) {
        ASSERT_EQ(range.begin, end);
        ASSERT_EQ(range.begin % kVectorFloats, 0u);
        ASSERT_GT(range.size(), 0u);
        end = range.end;
      }
      ASSERT_EQ(end, samples);
    }
}

}  // namespace
}  // namespace modelet
