// A million damaged texts: the reader accepts a text or throws FormatError, and an accepted text keeps the
// promises of the reader.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/rng.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

// Reads from memory that it does not own, so that a million readers copy nothing.
class MemoryBuffer : public std::streambuf {
 public:
  explicit MemoryBuffer(std::string& text) { setg(text.data(), text.data(), text.data() + text.size()); }
};

void mutate(std::string& text, Rng& rng) {
  static constexpr std::string_view kAlphabet("0123456789:, \t\n\r.-+einfax\0\xff", 28);
  const uint32_t changes = 1 + rng.below(4);
  for (uint32_t i = 0; i < changes && !text.empty(); ++i) {
    const size_t at = rng.below(static_cast<uint32_t>(text.size()));
    const char c = kAlphabet[rng.below(kAlphabet.size())];
    switch (rng.below(4)) {
      case 0:
        text[at] = c;
        break;
      case 1:
        text.insert(at, 1, c);
        break;
      case 2:
        text.erase(at, 1 + rng.below(3));
        break;
      default:
        text.insert(at, text.substr(rng.below(static_cast<uint32_t>(text.size())), 1 + rng.below(12)));
    }
  }
}

template <class Ids>
bool strictly_ascending_below(const Ids& ids, uint64_t count) {
  for (size_t i = 1; i < ids.size(); ++i)
    if (ids[i - 1] >= ids[i]) return false;
  return ids.empty() || ids.back() < count;
}

// Returns true if the text was accepted.
bool read_checked(std::string& text) {
  try {
    XmcReader reader(std::make_unique<MemoryBuffer>(text), "data.txt");
    const XmcHeader header = reader.header();
    uint64_t rows = 0;
    for (Sample sample; reader.next(sample); ++rows) {
      EXPECT_TRUE(strictly_ascending_below(sample.features, header.features)) << text;
      EXPECT_TRUE(strictly_ascending_below(sample.labels, header.labels)) << text;
      EXPECT_EQ(sample.values.size(), sample.features.size()) << text;
      for (const float value : sample.values) EXPECT_TRUE(std::isfinite(value) && value != 0) << text;
    }
    EXPECT_EQ(rows, header.rows) << text;
    return true;
  } catch (const FormatError&) {
    return false;
  }
}

TEST(MutatedText, MillionInputsAreReadOrRefused) {
  constexpr uint64_t kInputs = 1'000'000;
  const std::string good = "3 40 30\n0,29 1:0.5 39:2e-1\n 3:1.25\n7,8 0:1 5:-3.5e2 17:nan\n";
  uint64_t accepted = 0;
  std::string text;
  for (uint64_t i = 0; i < kInputs && !::testing::Test::HasFailure(); ++i) {
    Rng rng(1, {i});
    text = good;
    if (i % 2 == 0) text.replace(text.find("nan"), 3, "4");
    mutate(text, rng);
    accepted += read_checked(text);
  }
  // Mutations must hit both outcomes often, or the test shows nothing.
  EXPECT_GT(accepted, kInputs / 50);
  EXPECT_LT(accepted, kInputs / 2);
}

}  // namespace
}  // namespace modelet::shard
