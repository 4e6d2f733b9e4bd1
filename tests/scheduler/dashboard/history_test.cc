#include "scheduler/dashboard/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace modelet::scheduler {
namespace {

using testing::ElementsAre;

constexpr double kBegin = 1e9;

comm::control::NodeStatusT reporting(const std::string& name, double compute, uint64_t run = 1) {
  comm::control::NodeStatusT node;
  node.name = name;
  node.run = run;
  node.compute_seconds = compute;
  return node;
}

TEST(HistoryTest, MeansOfIntervals) {
  History history;
  EXPECT_TRUE(history.get().names.empty());
  history.add(kBegin, {reporting("b", 1), reporting("a", 2)});
  history.add(kBegin + 9, {reporting("b", 3)});
  history.add(kBegin + 10, {reporting("b", 5, 0)});
  const NodeHistory seen = history.get();
  EXPECT_THAT(seen.names, ElementsAre("a", "b"));
  EXPECT_EQ(seen.began, kBegin);
  ASSERT_EQ(seen.nodes[1].size(), 2u);
  EXPECT_EQ(seen.nodes[1][0].compute, 2);
  EXPECT_TRUE(seen.nodes[1][1].there);
  EXPECT_EQ(seen.nodes[1][1].compute, 0) << "it works for nobody: what it reported is of the past";
  EXPECT_EQ(seen.nodes[0][0].compute, 2);
  EXPECT_FALSE(seen.nodes[0][1].there);
}

TEST(HistoryTest, GapsAndTheCalendar) {
  History history;
  history.add(kBegin, {reporting("a", 1)});
  history.add(kBegin + 35, {reporting("a", 2)});
  history.add(kBegin + 5, {reporting("a", 4)});  // somebody has set the clock back
  const NodeHistory seen = history.get();
  ASSERT_EQ(seen.nodes[0].size(), 4u);
  EXPECT_FALSE(seen.nodes[0][1].there);
  EXPECT_EQ(seen.nodes[0][3].compute, 3);
}

TEST(HistoryTest, IsBounded) {
  History history;
  for (size_t i = 0; i < 2 * History::kIntervals; ++i)
    history.add(kBegin + 10.0 * static_cast<double>(i), {reporting("node" + std::to_string(i % 7), 1)});
  NodeHistory seen = history.get();
  EXPECT_EQ(seen.first, History::kIntervals);
  EXPECT_EQ(seen.nodes[0].size(), History::kIntervals);
  std::vector<comm::control::NodeStatusT> many;
  for (size_t i = 0; i < 2 * History::kMostNodes; ++i) many.push_back(reporting(std::to_string(i), 1));
  history.add(kBegin + 1e5, many);
  EXPECT_EQ(history.get().names.size(), History::kMostNodes);
}

}  // namespace
}  // namespace modelet::scheduler
