// What runs have learned from private data is known, also after a crash.
#include "node_agent/owner/learning_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/system/file.h"
#include "tests/error_of.h"

namespace modelet::agent {
namespace {

using ::testing::HasSubstr;
using nlohmann::json;

class LearningLedgerTest : public ::testing::Test {
 protected:
  // As a machine finds it that has crashed now.
  json after_a_crash(const Learning& rules = {}) const {
    const std::filesystem::path copy = folder_.path() / "copy";
    std::filesystem::remove(copy);
    if (std::filesystem::exists(file_)) std::filesystem::copy_file(file_, copy);
    return LearningLedger(copy, {"clinic"}).status(rules)[0];
  }

  const TemporaryFolder folder_{"ledger"};
  const std::filesystem::path file_ = folder_.path() / "learned";
};

TEST_F(LearningLedgerTest, CountsByName) {
  LearningLedger ledger(file_, {"clinic", "ward"});
  EXPECT_EQ(ledger.status({})[0], json::parse(R"({"name":"clinic","runs":0,"rounds":0,"samples":0})"));
  ledger.charge("clinic", 0);
  ledger.count({.run = 5, .learns_from = "clinic", .samples = 800});
  ledger.count({.run = 5, .learns_from = "clinic", .samples = 400});
  ledger.count({.run = 6});
  ledger.charge("clinic", 0);
  ledger.count({.run = 7, .learns_from = "clinic", .samples = 400});
  EXPECT_EQ(ledger.status({})[0], json::parse(R"({"name":"clinic","runs":2,"rounds":2,"samples":1600})"));
  EXPECT_EQ(ledger.status({})[1]["runs"], 0);
}

TEST_F(LearningLedgerTest, ARoundIsOnTheDiskBeforeItTakesPlace) {
  LearningLedger ledger(file_, {"clinic"});
  const Learning rules{.most_rounds = 10};
  ledger.count({.run = 5, .learns_from = "clinic", .samples = 800, .new_group = true});
  for (uint64_t round = 1; round <= 3; ++round) {
    ledger.charge("clinic", 0);
    EXPECT_EQ(after_a_crash(rules)["rounds"], round);
    EXPECT_EQ(after_a_crash(rules)["rounds_left"], 10 - round);
  }
  EXPECT_EQ(after_a_crash()["samples"], 800);
  EXPECT_TRUE(ledger.store());
}

TEST_F(LearningLedgerTest, WhatCannotBeWrittenDownDoesNotTakePlace) {
  LearningLedger ledger(folder_.path() / "no/learned", {"clinic"});
  EXPECT_THAT(test::error_of([&] { ledger.charge("clinic", 0); }),
              AllOf(HasSubstr("nothing of the round was sent"), ::testing::Not(HasSubstr("no/learned"))));
  std::filesystem::create_directory(folder_.path() / "no");
  EXPECT_EQ(test::error_of([&] { ledger.charge("clinic", 0); }), "no error");
  EXPECT_EQ(ledger.use_of("clinic").rounds, 2u) << "nobody knows what became of the first";
}

TEST_F(LearningLedgerTest, KnowsAfterItsEndWhatWasLearned) {
  {
    LearningLedger ledger(file_, {"clinic"});
    ledger.count({.run = 5, .learns_from = "clinic", .samples = 800});
  }
  LearningLedger ledger(file_, {"clinic"});
  ledger.count({.run = 6, .learns_from = "clinic", .samples = 400});
  EXPECT_EQ(ledger.use_of("clinic").samples, 1200u);
  EXPECT_EQ(ledger.use_of("ward").rounds, 0u);
  for (const char* const wrong : {"clinic 2 many\n", "clinic 1 2 3 x\n", "clinic 1 2 3 4\n", "clinic 1 2 3 4 5 6\n", "clinic 1 2 3 4 -1\n"}) {
    const std::filesystem::path file = folder_.path() / "wrong";
    std::ofstream(file) << wrong;
    EXPECT_THAT(test::error_of([&] { LearningLedger{file, {}}; }), HasSubstr(file.string())) << wrong;
  }
}

TEST_F(LearningLedgerTest, KnowsHowMuchOfTheBudgetIsSpent) {
  const Learning rules{.budget = 8};
  {
    LearningLedger ledger(file_, {"clinic"});
    EXPECT_EQ(ledger.status(rules)[0]["epsilon"], 0);
    EXPECT_EQ(ledger.status(rules)[0]["epsilon_left"], 8);
    for (int round = 0; round < 4; ++round) ledger.charge("clinic", 2);
  }
  EXPECT_NEAR(after_a_crash(rules)["epsilon"].get<double>(), 4.37717810, 1e-7) << "four rounds with noise 2 are one with noise 1";
  EXPECT_NEAR(after_a_crash(rules)["epsilon_left"].get<double>(), 8 - 4.37717810, 1e-7);
  LearningLedger(file_, {"clinic"}).charge("clinic", 0);  // without noise
  EXPECT_TRUE(after_a_crash(rules)["epsilon"].is_null());
  EXPECT_EQ(after_a_crash(rules)["epsilon_left"], 0);
  // As an earlier release wrote it, which knew no noise.
  std::ofstream(file_) << "clinic 1 2 3\n";
  EXPECT_TRUE(after_a_crash(rules)["epsilon"].is_null());
}

}  // namespace
}  // namespace modelet::agent
