// The exchanges of a step one by one: what a rank makes of the messages of its peers, and the seeds of random
// rounding. Other tests check that a whole step is right.
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <vector>

#include "base/array/sample_range.h"
#include "node_agent/step/exchange/activation_exchange.h"
#include "node_agent/step/exchange/gradient_encoder.h"
#include "tests/comm/groups.h"

namespace modelet::agent::testing {
namespace {

// Four columns of one hidden layer, two on each of two ranks.
Sharding two_by_two(int rank) {
  Experiment experiment;
  experiment.model.hidden = {32};
  experiment.modelets = {.hidden_columns = 16, .output_modelets = 2};
  return {partition_model(experiment, {.features = 10, .labels = 10}), {0, 1, 0, 1}, rank, 2};
}

// What rank 1 receives when rank 0 sends these bytes. `stop`: whether rank 1 itself wishes to stop.
StepRequests heard(bool stop, std::array<uint8_t, 2> sent) {
  auto groups = comm::make_inproc_groups(2, {.run = 1});
  StepRequests notice{.stop = stop, .next_micro_batches = 3};
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    const Sharding sharding = two_by_two(group.rank());
    std::vector<float> rows(2 * 32, static_cast<float>(group.rank()));
    const Matrix matrix{rows.data(), 2, 32, 32};
    if (group.rank() == 0) {  // a peer that sends any bytes
      const comm::OutBlock out[] = {{&comm::codec_of(CodecKind::kNone), matrix.columns(0, 16)},
                                    {.bytes = std::as_bytes(std::span(sent))}};
      group.send_all({1}, out);
      return;
    }
    ActivationExchange exchange(sharding, group, comm::codec_of(CodecKind::kNone));
    exchange.send({1}, 0, matrix, &notice);
    exchange.collect({1}, 0, matrix, &notice);
    for (size_t row = 0; row < 2; ++row) {
      EXPECT_EQ(matrix.row(row)[15], 0) << "rank 0's columns";
      EXPECT_EQ(matrix.row(row)[16], 1) << "the own ones";
    }
  });
  return notice;
}

TEST(ActivationExchange, OneWishToStopIsEnoughAndRankZeroNamesTheMicroBatches) {
  EXPECT_FALSE(heard(false, {0, 5}).stop);
  EXPECT_TRUE(heard(true, {0, 5}).stop);
  EXPECT_TRUE(heard(false, {1, 5}).stop);
  EXPECT_TRUE(heard(false, {255, 5}).stop);
  EXPECT_FALSE(heard(false, {2, 5}).stop);
  EXPECT_TRUE(heard(false, {2, 5}).snapshot);
  EXPECT_TRUE(heard(false, {4, 5}).trace);
  EXPECT_FALSE(heard(true, {3, 5}).trace);
  EXPECT_FALSE(heard(true, {1, 5}).snapshot);
  EXPECT_EQ(heard(false, {0, 5}).next_micro_batches, 5u);
}

TEST(ActivationExchange, ANumberOfMicroBatchesThatCannotBeIsOne) {
  EXPECT_EQ(heard(false, {0, kMaxMicroBatches}).next_micro_batches, kMaxMicroBatches);
  for (const uint8_t wrong : {0, static_cast<int>(kMaxMicroBatches) + 1, 255})
    EXPECT_EQ(heard(false, {0, wrong}).next_micro_batches, 1u);
}

// Runs with lossy codecs can be repeated with a newer version only as long as these numbers stay the same.
TEST(GradientEncoder, SeedsAreThoseOfEarlierVersions) {
  const float value = 1;
  const auto seed = [&](StepPlace place, GradientKind kind, size_t column) {
    const GradientEncoder encoder(7, 1, comm::codec_of(CodecKind::kInt8));
    const comm::OutBlock block = encoder.block({&value, 1, 1, 1}, place, kind, 16, column);
    EXPECT_EQ(block.codec->kind(), CodecKind::kInt8);
    EXPECT_EQ(block.rounding.first_row, 16u);
    return block.rounding.seed;
  };
  EXPECT_EQ(seed({5, 0}, kOutputPositive, 32), 8885330840531708226u);
  EXPECT_EQ(seed({5, 0}, kOutputNegative, 32), 441169501250860360u);
  EXPECT_EQ(seed({5, 0}, hidden_gradient(0), 32), 9599270974833052460u);
  EXPECT_EQ(seed({5, 0}, hidden_gradient(1), 0), 9457270761789391372u);
  EXPECT_EQ(seed({5, 24}, kOutputPositive, 32), 13365158353721318926u);
}

}  // namespace
}  // namespace modelet::agent::testing
