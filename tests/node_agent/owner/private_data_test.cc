// Who may learn from the data that stays on a machine.
#include "node_agent/owner/private_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/system/file.h"
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
  PrivateData data(const Learning& rules = {}) const { return {{"clinic=" + file_.string()}, rules}; }
  std::string refusal(const Learning& rules, const std::string& learner = "alice") const {
    return error_of([&] { data(rules).file_for(experiment_, learner); });
  }

  const TemporaryFolder folder_{"private"};
  const std::filesystem::path file_ = folder_.path() / "notes.txt";
  Experiment experiment_;
};

TEST_F(PrivateDataTest, TheOwnerDecidesWhoLearns) {
  EXPECT_EQ(data().file_for(experiment_, "alice"), file_);
  EXPECT_EQ(data().file_for(experiment_, ""), file_);
  const Learning some{.submitters = {"bob", "alice"}};
  EXPECT_EQ(data(some).file_for(experiment_, "alice"), file_);
  EXPECT_THAT(refusal(some, "eve"), HasSubstr("it is not for the user 'eve'"));
  EXPECT_THAT(refusal(some, ""), HasSubstr("this pool has no keys"));
  EXPECT_THAT(refusal({.least_owners = 4}), HasSubstr("a sum must be of at least 4 owners, and cluster.replicas is 3"));
  experiment_.cluster.least_owners = 2;
  EXPECT_THAT(refusal({}), HasSubstr("a sum must be of at least 3 owners, and cluster.least_owners is 2"));
  EXPECT_EQ(data({.least_owners = 2}).file_for(experiment_, "alice"), file_);
  experiment_.cluster.replicas = 2;  // of a group that has lost an owner
  EXPECT_EQ(data({.least_owners = 2}).file_for(experiment_, "alice"), file_);
  experiment_.cluster.least_owners = 0;
  experiment_.cluster.replicas = 3;
  experiment_.cluster.privacy = Privacy::kRows;
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("cluster.privacy must be sums"), Not(HasSubstr("notes"))));
  EXPECT_EQ(data({.rows = true}).file_for(experiment_, "alice"), file_);
  experiment_.data.train = "private:other";
  EXPECT_THAT(refusal({}), HasSubstr("this node has no private data 'other'"));
}

TEST_F(PrivateDataTest, TheRoundsAreCounted) {
  experiment_.train.epochs = 2;
  experiment_.cluster.epoch_steps = 40;
  experiment_.exchange.local_steps = 16;  // 5 rounds
  EXPECT_EQ(data({.most_rounds = 5}).file_for(experiment_, "alice"), file_);
  EXPECT_THAT(refusal({.most_rounds = 4}), HasSubstr("it would learn in 5 rounds, and of 4 in all 4 are left"));
  PrivateData counted = data({.most_rounds = 6});
  uint64_t learned = 0;
  counted.count_rounds_with([&](const std::string& name) { return name == "clinic" ? learned : 100; });
  EXPECT_EQ(counted.file_for(experiment_, "alice"), file_);
  learned = 3;
  EXPECT_THAT(error_of([&] { counted.file_for(experiment_, "alice"); }), HasSubstr("of 6 in all 3 are left"));
  EXPECT_EQ(counted.file_for(experiment_, "alice", 32), file_) << "the rest of a run";
  learned = 100;
  EXPECT_THAT(error_of([&] { counted.file_for(experiment_, "alice", 79); }), HasSubstr("of 6 in all 0 are left"));
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
