#include "scheduler/server/turns.h"

#include <gtest/gtest.h>

#include <string>

namespace modelet::scheduler {
namespace {

std::string all_of(Turns<std::string>& turns) {
  std::string text;
  while (const auto next = turns.next()) text += *next + " ";
  return text;
}

TEST(Turns, KeysTakeTurns) {
  Turns<std::string> turns;
  for (int i = 0; i < 4; ++i) turns.add("alice", "a" + std::to_string(i), 10);
  turns.add("bob", "b0", 1);
  turns.add("carol", "c0", 1);
  turns.add("bob", "b1", 1);
  EXPECT_EQ(turns.bytes(), 43u);
  EXPECT_EQ(all_of(turns), "a0 b0 c0 a1 b1 a2 a3 ");
  EXPECT_TRUE(turns.empty());
  EXPECT_EQ(turns.bytes(), 0u);
}

// However much somebody has sent, the next one waits for one thing of it.
TEST(Turns, WhoComesLaterWaitsForOneOfEachKey) {
  Turns<std::string> turns;
  for (int i = 0; i < 1000; ++i) turns.add("alice", "a");
  for (int i = 0; i < 10; ++i) turns.next();
  turns.add("bob", "b");
  EXPECT_EQ(turns.next(), "a");
  EXPECT_EQ(turns.next(), "b");
}

TEST(Turns, WhatIsNotWantedAnyMoreTakesNoTurn) {
  Turns<std::string> turns;
  for (const char* each : {"a0", "a1"}) turns.add("alice", each, 5);
  turns.add("bob", "b0", 5);
  turns.erase_if([](const std::string& each) { return each == "a0" || each == "b0"; });
  EXPECT_EQ(turns.bytes(), 5u);
  EXPECT_EQ(all_of(turns), "a1 ");
}

}  // namespace
}  // namespace modelet::scheduler
