#include "shard/data/encode/features/string_table.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "shard/data/read/line_reader.h"
#include "tests/growth.h"

namespace modelet::shard {
namespace {

// Random strings of 0 to 40 bytes, which may be zeros. There are so few different strings that they repeat.
// Near the length that fits into a key, many strings differ in one byte only.
std::string any_string(Rng& rng) {
  const uint32_t length = rng.below(4) == 0 ? rng.below(41) : 13 + rng.below(5);
  std::string text(length, 'a');
  if (length > 0 && rng.below(8) != 0) text[rng.below(length)] = static_cast<char>(rng.below(256));
  if (length > 0 && rng.below(4) == 0) text.back() = '\0';
  return text;
}

// The strings in one block of memory, as a LineReader has them, with any bytes between them.
struct Block {
  std::string bytes;
  std::vector<std::string_view> strings;

  explicit Block(const std::vector<std::string>& all) {
    for (const std::string& text : all) bytes += text + "\xff";
    bytes.resize(bytes.size() + kReadableBehind, '\xfe');
    size_t at = 0;
    for (const std::string& text : all) {
      strings.emplace_back(&bytes[at], text.size());
      at += text.size() + 1;
    }
  }
};

// XXH3 of these strings is equal, unless it has a seed: the first eight bytes are those of its secret, which
// makes the product with the next eight zero, whatever they are.
TEST(StringTable, StringsMadeToCollideDoNot) {
  const auto colliding = [](size_t n) {
    std::vector<std::string> strings;
    for (size_t i = 0; i < n; ++i) {
      strings.emplace_back("\xb8\xfe\x6c\x39\x23\xa4\x4b\xbe", 8);
      strings.back() += "........................";
      const std::string number = std::to_string(i);
      strings.back().replace(16 - number.size(), number.size(), number);
    }
    return strings;
  };
  const auto insert = [](const std::vector<std::string>& strings) {
    StringTable table;
    for (const std::string& string : strings) table.insert(string);
    ASSERT_EQ(table.size(), strings.size());
  };
  const auto strings = colliding(2);
  ASSERT_EQ(XXH3_64bits(strings[0].data(), 32), XXH3_64bits(strings[1].data(), 32));
  EXPECT_TRUE(test::grows_linearly(1000, colliding, insert));
}

// Adds strings one by one and many at once, and compares with std::map: numbers follow the order of
// insertion, whatever the size of the table.
TEST(StringTable, NumbersStringsAsAMapDoes) {
  Rng rng(1);
  StringTable table, one_by_one;
  std::map<std::string, uint32_t> expected;
  for (size_t round = 0; round < 60; ++round) {
    std::vector<std::string> strings(rng.below(1000));
    for (std::string& text : strings) text = any_string(rng);
    const Block block(strings);
    std::vector<uint32_t> ids(strings.size());
    table.find(block.strings, ids);
    for (size_t i = 0; i < strings.size(); ++i) {
      const auto found = expected.find(strings[i]);
      ASSERT_EQ(ids[i], found == expected.end() ? StringTable::kNone : found->second);
      ASSERT_EQ(table.find(strings[i]), ids[i]);
    }
    table.insert(block.strings, ids);
    for (size_t i = 0; i < strings.size(); ++i) {
      const uint32_t id = expected.emplace(strings[i], static_cast<uint32_t>(expected.size())).first->second;
      ASSERT_EQ(ids[i], id);
      ASSERT_EQ(one_by_one.insert(strings[i]), id);
      ASSERT_EQ(table.at(id), strings[i]);
    }
  }
  EXPECT_GT(expected.size(), 5000u);
  EXPECT_EQ(table.size(), expected.size());
  EXPECT_EQ(one_by_one.strings(), table.strings());
  const StringTable restored(table.offsets(), table.strings(), "table");
  for (const auto& [text, id] : expected) ASSERT_EQ(restored.find(text), id);
}

}  // namespace
}  // namespace modelet::shard
