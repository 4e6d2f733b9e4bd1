#include "base/text/value_name.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace modelet {
namespace {

TEST(ValueName, WholeNumbersHaveOneName) {
  for (const auto& [text, name] : {std::pair("1.0", "1"),
                                   {"-7.00", "-7"},
                                   {"0.0", "0"},
                                   {"-0.0", "0"},
                                   {"120.0", "120"},
                                   {"1e+16", "10000000000000000"},
                                   {"1.5E+3", "1500"},
                                   {"-1e+02", "-100"},
                                   {"1.2345678901234568e+18", "1234567890123456768"},
                                   {"-0e+5", "0"}}) {
    EXPECT_EQ(number_name(text), name) << text;
    EXPECT_TRUE(may_hold_number_names(text)) << text;
  }
  ASSERT_TRUE(number_name("1e+308"));
  EXPECT_EQ(number_name("1e+308")->size(), 309u);
  EXPECT_EQ(number_name("-1e+308")->size(), 310u);
}

TEST(ValueName, EveryOtherTextIsItsOwnName) {
  for (const char* text :
       {"",    "-",       "1",    "-1",    "007.0",    "00.0", "1.5", "0.1",      "1.10",  "1.",
        ".0",  "1.0.0",   "1.0 ", " 1.0",  "+1.0",     "1,0",  "1e3", "12345e67", "1e-05", "1.5e+0",
        "1e+", "1e+9999", "e+5",  "0x1.0", "68fd1e64", "nan",  "NA",  "1.0a",     "--1.0", "v1.0"})
    EXPECT_FALSE(number_name(text)) << text;
}

TEST(ValueName, TruthAndAbsence) {
  for (const char* text : {"true", "True", "TRUE", "false", "False", "FALSE"}) {
    EXPECT_EQ(category_name(text), std::strlen(text) == 4 ? "True" : "False") << text;
    EXPECT_TRUE(may_be_truth_value(text)) << text;
  }
  for (const char* text : {"tRUE", "t", "yes", ""}) EXPECT_FALSE(truth_value(text)) << text;
  EXPECT_EQ(category_name("2.0"), "2");
  for (const char* text : {"", "nan", "NaN", "NA", "N/A", "<NA>", "null", "NULL", "None"})
    EXPECT_TRUE(is_missing_number(text)) << text;
  for (const char* text : {" ", "-", "?", "inf", "nano", "na na"})
    EXPECT_FALSE(is_missing_number(text)) << text;
}

}  // namespace
}  // namespace modelet
