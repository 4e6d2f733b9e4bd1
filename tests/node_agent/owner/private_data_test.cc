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
  experiment_.cluster.privacy = Privacy::kRows;
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("cluster.privacy must be sums"), Not(HasSubstr("notes"))));
  EXPECT_EQ(data({.rows = true}).file_for(experiment_, "alice"), file_);
  experiment_.data.train = "private:other";
  EXPECT_THAT(refusal({}), HasSubstr("this node has no private data 'other'"));
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
