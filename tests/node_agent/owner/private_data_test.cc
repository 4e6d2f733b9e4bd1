// Who may learn from the data that stays on a machine.
#include "node_agent/owner/private_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "base/system/file.h"
#include "node_agent/owner/learning_ledger.h"
#include "tests/error_of.h"

namespace modelet::agent {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class PrivateDataTest : public ::testing::Test {
 protected:
  PrivateDataTest() {
    std::ofstream(file_) << "1 1 1\n";
    experiment_.data.train = "private:clinic";
    experiment_.cluster.replicas = 3;
  }
  static PrivateData::Rounds rounds(uint64_t count) {
    return [count](uint64_t most) { return std::min(count, most + 1); };
  }
  PrivateData data(const Learning& rules = {}) const { return {{"clinic=" + file_.string()}, rules}; }
  std::string refusal(const Learning& rules, const std::string& learner = "alice") const {
    return error_of([&] { data(rules).file_for(experiment_, learner, rounds(5)); });
  }

  const TemporaryFolder folder_{"private"};
  const std::filesystem::path file_ = folder_.path() / "notes.txt";
  Experiment experiment_;
};

TEST_F(PrivateDataTest, TheOwnerDecidesWhoLearns) {
  EXPECT_EQ(data().file_for(experiment_, "alice", rounds(5)), file_);
  EXPECT_EQ(data().file_for(experiment_, "", rounds(5)), file_);
  const Learning some{.submitters = {"bob", "alice"}};
  EXPECT_EQ(data(some).file_for(experiment_, "alice", rounds(5)), file_);
  EXPECT_THAT(refusal(some, "eve"), HasSubstr("it is not for the user 'eve'"));
  EXPECT_THAT(refusal(some, ""), HasSubstr("this pool has no keys"));
  EXPECT_THAT(refusal({.least_owners = 4}), HasSubstr("a sum must be of at least 4 owners, and cluster.replicas is 3"));
  experiment_.cluster.least_owners = 2;
  EXPECT_THAT(refusal({}), HasSubstr("a sum must be of at least 3 owners, and cluster.least_owners is 2"));
  EXPECT_EQ(data({.least_owners = 2}).file_for(experiment_, "alice", rounds(5)), file_);
  experiment_.cluster.replicas = 2;  // of a group that has lost an owner
  EXPECT_EQ(data({.least_owners = 2}).file_for(experiment_, "alice", rounds(5)), file_);
  experiment_.cluster.least_owners = 0;
  experiment_.cluster.replicas = 3;
  experiment_.cluster.privacy = Privacy::kRows;
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("cluster.privacy must be sums"), Not(HasSubstr("notes"))));
  EXPECT_EQ(data({.rows = true}).file_for(experiment_, "alice", rounds(5)), file_);
  experiment_.data.train = "private:other";
  EXPECT_THAT(refusal({}), HasSubstr("this node has no private data 'other'"));
}

// Who they are they prove with their masks.
TEST_F(PrivateDataTest, KnownOwnersNeedMaskedSums) {
  const Learning known{.owners = {std::string(64, 'a')}, .rows = true};
  EXPECT_EQ(data(known).file_for(experiment_, "alice", rounds(5)), file_);
  EXPECT_THAT(data(known).known_owners(), ElementsAre(std::string(64, 'a')));
  experiment_.cluster.privacy = Privacy::kRows;
  EXPECT_THAT(refusal(known), HasSubstr("only with cluster.privacy = sums"));
}

TEST_F(PrivateDataTest, OfAShareOfTheOwners) {
  experiment_.cluster.replicas = 5;
  experiment_.cluster.owners_per_round = 3;
  EXPECT_EQ(data().file_for(experiment_, "alice", rounds(5)), file_);
  experiment_.cluster.owners_per_round = 2;
  EXPECT_THAT(refusal({}), HasSubstr("a sum must be of at least 3 owners, and cluster.owners_per_round is 2"));
}

TEST_F(PrivateDataTest, TheRoundsAreCounted) {
  EXPECT_EQ(data({.most_rounds = 5}).file_for(experiment_, "alice", rounds(5)), file_);
  EXPECT_THAT(refusal({.most_rounds = 4}), HasSubstr("it would learn in more rounds than are left: 4 of 4"));
  PrivateData counted = data({.most_rounds = 6});
  LearningLedger ledger(folder_.path() / "learned", {});
  counted.count_in(ledger);
  for (int i = 0; i < 100; ++i) ledger.charge("other", 0);
  EXPECT_EQ(counted.file_for(experiment_, "alice", rounds(5)), file_);
  for (int i = 0; i < 3; ++i) counted.charge(experiment_);
  EXPECT_THAT(error_of([&] { counted.file_for(experiment_, "alice", rounds(5)); }), HasSubstr("left: 3 of 6"));
  EXPECT_EQ(counted.file_for(experiment_, "alice", rounds(3)), file_) << "the rest of a run";
  for (int i = 0; i < 97; ++i) counted.charge(experiment_);
  EXPECT_THAT(error_of([&] { counted.file_for(experiment_, "alice", rounds(1)); }), HasSubstr("left: 0 of 6"));
}

// Noise 2 in each round: 15 rounds have epsilon 9.608 at delta 1e-5, 16 rounds 9.997 (mpmath).
TEST_F(PrivateDataTest, ThePrivacyBudget) {
  const Learning rules{.budget = 9.8, .delta = 1e-5};
  EXPECT_THAT(refusal(rules), HasSubstr("epsilon 9.8, so cluster.noise must be above 0"));
  experiment_.cluster.noise = 2;
  PrivateData counted = data(rules);
  LearningLedger ledger(folder_.path() / "learned", {});
  counted.count_in(ledger);
  const auto refused = [&](uint64_t more) { return error_of([&] { counted.file_for(experiment_, "alice", rounds(more)); }); };
  EXPECT_EQ(refused(14), "no error") << "and one for a stop";
  EXPECT_THAT(refused(15), HasSubstr("0 is spent, and what is left is enough for 15 rounds"));
  for (int i = 0; i < 10; ++i) counted.charge(experiment_);
  EXPECT_EQ(refused(4), "no error");
  EXPECT_THAT(refused(5), HasSubstr("7.51 is spent, and what is left is enough for 5 rounds"));
  experiment_.cluster.noise = 0;
  counted.charge(experiment_);
  experiment_.cluster.noise = 2;
  EXPECT_THAT(refused(1), HasSubstr("inf is spent, and what is left is enough for 0 rounds"));
}

TEST_F(PrivateDataTest, WhatIsGiven) {
  const std::string path = file_.string();
  EXPECT_THAT(PrivateData({"b=" + path, "a=" + path}, {}).names(), ElementsAre("a", "b"));
  for (const char* const wrong : {"clinic", "=x", "a/b=x", ""})
    EXPECT_THAT(error_of([&] { PrivateData({wrong}, {}); }), HasSubstr("write NAME=PATH"));
  EXPECT_THAT(error_of([&] { PrivateData({"a=" + path, "a=" + path}, {}); }), HasSubstr("stands for two files"));
  EXPECT_THAT(error_of([&] { PrivateData({"a=" + folder_.path().string()}, {}); }), HasSubstr("no such file"));
}

}  // namespace
}  // namespace modelet::agent
