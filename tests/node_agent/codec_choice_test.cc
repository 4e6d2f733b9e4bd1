#include "node_agent/codec_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "tests/comm/groups.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

Experiment::Exchange exchange(const std::string& activations, const std::string& gradients) {
  Experiment::Exchange result;
  result.codec = activations;
  result.gradient_codec = gradients;
  return result;
}

std::vector<float> normal_values(size_t count) {
  Rng rng(1);
  std::vector<float> values(count);
  for (float& value : values) value = rng.normal();
  return values;
}

TEST(CodecChoice, NamedCodecsAreUsedAsTheyAre) {
  CodecChoice choice(exchange("int4", "bf16"), 3);
  EXPECT_FALSE(choice.automatic());
  const std::vector<float> values = normal_values(64);
  choice.look(CodecChoice::kActivations, 0, {values.data(), 2, 32, 32});
  EXPECT_EQ(choice.activations().name(), "int4");
  EXPECT_EQ(choice.gradients(2).name(), "bf16");
  EXPECT_FALSE(choice.take_changed());
  EXPECT_EQ(CodecChoice(exchange("int8", "same"), 2).gradients(1).name(), "int8");
  EXPECT_THROW(CodecChoice(exchange("int9", "same"), 2), UsageError);
}

TEST(CodecChoice, IsExactUntilItHasSeenATensorAndLooksNowAndThen) {
  CodecChoice choice(exchange("auto", "same"), 2);
  EXPECT_EQ(choice.gradients(1).name(), "none");
  const std::vector<float> values = normal_values(320);
  const ConstMatrix matrix{values.data(), 10, 32, 32};
  choice.look(CodecChoice::kGradients, 1, matrix);
  EXPECT_EQ(choice.gradients(1).name(), "none") << "not this step's turn";
  choice.look(CodecChoice::kGradients, CodecChoice::kLookEvery, matrix);
  EXPECT_EQ(choice.gradients(1).name(), "int4") << "the shortest, at 1 Gbit/s and no known cost";
  EXPECT_TRUE(choice.take_changed());
  EXPECT_FALSE(choice.take_changed());
}

// A row of one large value and many small ones: these vanish in 4 bits.
TEST(CodecChoice, DoesNotTakeACodecThatLosesTheTensor) {
  CodecChoice choice(exchange("auto", "same"), 2);
  std::vector<float> values(1024, 1.0f);
  values[0] = 40;
  choice.look(CodecChoice::kActivations, 0, {values.data(), 1, 1024, 1024});
  EXPECT_EQ(choice.activations().name(), "int8");
}

TEST(CodecChoice, MeasuresLinksInGroupsOfEverySize) {
  for (const int size : {1, 2, 3, 4, 10}) {
    auto groups = make_groups(size);
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      CodecChoice choice(exchange("auto", "same"), size);
      choice.measure(group, {.step = 5});
      const nlohmann::json described = choice.describe();
      ASSERT_EQ(described["megabits_per_second"].size(), static_cast<size_t>(size));
      for (const auto& rate : described["megabits_per_second"]) EXPECT_GT(rate.get<double>(), 0);
      group.barrier({.step = 5, .round = CodecChoice::kRounds});  // the first round that is free
    });
  }
}

}  // namespace
}  // namespace modelet::agent::testing
