#include "node_agent/step/exchange/codec_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "tests/comm/groups.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

constexpr Experiment::Exchange kAutomatic{.codec = CodecKind::kAuto};  // for gradients too

std::vector<float> normal_values(size_t count) {
  Rng rng(1);
  std::vector<float> values(count);
  for (float& value : values) value = rng.normal();
  return values;
}

// Runs a step that sends one block to rank 1, both as activations and as gradients.
void run_step(CodecChoice& choice, uint64_t step, ConstMatrix block) {
  choice.begin_step(step);
  choice.look_at_activations(block);
  choice.look_at_gradients(1, block);
  choice.end_step();
}

// A row of one large value and many small ones. The small ones vanish in 4 bits.
std::vector<float> uneven_values(size_t count) {
  std::vector<float> values(count, 1.0f);
  values[0] = 40;
  return values;
}

TEST(CodecChoice, NamedCodecsAreUsedAsTheyAre) {
  CodecChoice choice({.codec = CodecKind::kInt4, .gradient_codec = CodecKind::kBf16}, 3);
  EXPECT_FALSE(choice.automatic());
  const std::vector<float> values = normal_values(64);
  run_step(choice, 0, {values.data(), 2, 32, 32});
  EXPECT_EQ(choice.activations().kind(), CodecKind::kInt4);
  EXPECT_EQ(choice.gradients(2).kind(), CodecKind::kBf16);
  EXPECT_FALSE(choice.take_changed());
  EXPECT_EQ(CodecChoice({.codec = CodecKind::kInt8}, 2).gradients(1).kind(), CodecKind::kInt8);
}

// A snapshot contains the state of the choice.
TEST(CodecChoice, GoesOnAsItWas) {
  const std::vector<float> values = normal_values(320), uneven = uneven_values(320);
  const ConstMatrix block{values.data(), 10, 32, 32}, other{uneven.data(), 10, 32, 32};
  CodecChoice first(kAutomatic, 3), second(kAutomatic, 3);
  run_step(first, 0, block);
  const std::vector<double> state = first.state();
  EXPECT_TRUE(second.restore(state));
  EXPECT_EQ(second.state(), state);
  EXPECT_FALSE(second.take_changed());
  // A session that begins anew looks at its first step. A session that continues does not.
  run_step(second, 1, other);
  EXPECT_EQ(second.activations().name(), first.activations().name());
  for (CodecChoice* choice : {&first, &second}) run_step(*choice, CodecChoice::kLookEvery, other);
  EXPECT_EQ(second.state(), first.state());
  EXPECT_NE(first.state(), state) << "else the test says nothing";

  std::vector<double> wrong = state;
  wrong.back() = 1000;
  EXPECT_FALSE(second.restore(wrong)) << "a codec that there is not";
  EXPECT_FALSE(second.restore({}));
  EXPECT_FALSE(CodecChoice(kAutomatic, 4).restore(state)) << "another group";
  CodecChoice named({.codec = CodecKind::kInt8}, 3);
  EXPECT_TRUE(named.state().empty());
  EXPECT_FALSE(named.restore(state));
}

// At 1 Gbit/s, and without known costs, the shortest codec that is exact enough is chosen.
TEST(CodecChoice, IsExactUntilTheFirstStepOfASessionHasEndedAndLooksAgainNowAndThen) {
  const std::vector<float> values = normal_values(320), uneven = uneven_values(320);
  for (const uint64_t first : {uint64_t{0}, uint64_t{1000}}) {  // anew, and resumed
    CodecChoice choice(kAutomatic, 2);
    choice.begin_step(first);
    choice.look_at_activations({values.data(), 10, 32, 32});
    choice.look_at_gradients(1, {values.data(), 10, 32, 32});
    EXPECT_EQ(choice.activations().kind(), CodecKind::kNone);
    EXPECT_EQ(choice.gradients(1).kind(), CodecKind::kNone);
    EXPECT_FALSE(choice.take_changed());
    choice.end_step();
    EXPECT_EQ(choice.gradients(1).kind(), CodecKind::kInt4);
    EXPECT_TRUE(choice.take_changed());
    EXPECT_FALSE(choice.take_changed());
    run_step(choice, first + 1, {uneven.data(), 1, 320, 320});
    EXPECT_EQ(choice.gradients(1).kind(), CodecKind::kInt4) << "not this step's turn";
    run_step(choice, 4 * CodecChoice::kLookEvery, {uneven.data(), 1, 320, 320});
    EXPECT_EQ(choice.gradients(1).kind(), CodecKind::kInt8);
    EXPECT_TRUE(choice.take_changed());
  }
}

// A single block that a codec cannot represent is enough to rule it out, wherever the block comes in the
// step.
TEST(CodecChoice, DecidesOnceByTheWorstBlockOfAStep) {
  const std::vector<float> normal = normal_values(1024), uneven = uneven_values(1024);
  const ConstMatrix good{normal.data(), 32, 32, 32}, bad{uneven.data(), 1, 1024, 1024};
  for (const std::vector<ConstMatrix>& blocks :
       {std::vector{good, bad, good}, std::vector{bad, good}, std::vector{good, bad}}) {
    CodecChoice choice(kAutomatic, 3);
    choice.begin_step(0);
    for (const ConstMatrix block : blocks) {
      choice.look_at_activations(block);
      choice.look_at_gradients(1, block);
      choice.look_at_gradients(2, good);
    }
    choice.end_step();
    EXPECT_EQ(choice.activations().kind(), CodecKind::kInt8);
    EXPECT_EQ(choice.gradients(1).kind(), CodecKind::kInt8);
    EXPECT_EQ(choice.gradients(2).kind(), CodecKind::kInt4) << "another destination, other blocks";
  }
}

TEST(CodecChoice, AStepThatFailedIsNotLookedAtTwice) {
  const std::vector<float> normal = normal_values(1024), uneven = uneven_values(1024);
  CodecChoice choice(kAutomatic, 2);
  choice.begin_step(3);
  choice.look_at_gradients(1, {uneven.data(), 1, 1024, 1024});
  run_step(choice, 3, {normal.data(), 32, 32, 32});
  EXPECT_EQ(choice.gradients(1).kind(), CodecKind::kInt4);
}

TEST(CodecChoice, MeasuresLinksInGroupsOfEverySize) {
  for (const int size : {1, 2, 3, 4, 10}) {
    auto groups = comm::make_inproc_groups(size, {.run = 1, .lz4 = true});
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      CodecChoice choice(kAutomatic, size);
      choice.measure(group, {.step = 5});
      const nlohmann::json described = choice.describe();
      ASSERT_EQ(described["megabits_per_second"].size(), static_cast<size_t>(size));
      for (const auto& rate : described["megabits_per_second"]) EXPECT_GT(rate.get<double>(), 0);
      group.barrier({.step = 5, .round = kMeasureRounds});  // the first round that is not taken
      // The bytes that measure the wire really cross it: LZ4 saves none of them.
      constexpr uint64_t kProbe = 512 << 10;
      EXPECT_GE(group.meters().bytes_sent(), kProbe * static_cast<uint64_t>(std::min(size - 1, 8)));
    });
  }
}

}  // namespace
}  // namespace modelet::agent::testing
