#include "shard/data/encode/words_encoder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <sstream>

#include "base/array/aligned.h"
#include "base/error.h"
#include "base/rng.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OwnedSample;

// Options with these keys of [words]. By default, every occurrence of every word counts.
Encoding words_options(const std::vector<std::string>& keys = {}) {
  std::vector<std::string> settings = {"words.subsample=0", "words.min_count=1"};
  for (const std::string& key : keys) settings.push_back("words." + key);
  return parse_encoding("[data]\nformat = \"words\"\n", "test", settings);
}

WordReader words_of(const std::string& text) {
  return WordReader(std::make_unique<std::stringbuf>(text, std::ios::in), "text");
}

std::vector<std::string> tokens(WordReader reader) {
  std::vector<std::string> result;
  std::vector<size_t> line_ends;
  for (std::vector<std::string_view> words; reader.next(words, line_ends);) {
    size_t line = 0;
    for (size_t i = 0; i <= words.size(); ++i) {
      for (; line < line_ends.size() && line_ends[line] == i; ++line) result.emplace_back("\n");
      if (i < words.size()) result.emplace_back(words[i]);
    }
    EXPECT_EQ(line, line_ends.size());
  }
  return result;
}

std::vector<std::string> tokens(const std::string& text) { return tokens(words_of(text)); }

// A stream that gives its text in portions of a few bytes, as a pipe may.
class Trickle : public std::streambuf {
 public:
  Trickle(std::string text, size_t portion) : text_(std::move(text)), portion_(portion) {}

 protected:
  std::streamsize xsgetn(char* to, std::streamsize most) override {
    const size_t n = text_.copy(to, std::min(portion_, static_cast<size_t>(most)), at_);
    at_ += n;
    return static_cast<std::streamsize>(n);
  }

 private:
  std::string text_;
  size_t portion_, at_ = 0;
};

// Finds the tokens one byte after the other.
std::vector<std::string> expected_tokens(const std::string& text) {
  std::vector<std::string> result;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty() && word.size() <= WordReader::kMaxWordBytes) result.push_back(word);
    word.clear();
  };
  for (const char c : text) {
    if (static_cast<unsigned char>(c) > ' ') {
      word += c;
      continue;
    }
    end_word();
    if (c == '\n') result.emplace_back("\n");
  }
  end_word();
  return result;
}

std::vector<OwnedSample> samples_of(const WordsEncoder& encoder, const std::string& text) {
  std::vector<OwnedSample> samples;
  const auto reader = encoder.open(words_of(text));
  for (Sample sample; reader->next(sample);) samples.emplace_back(sample);
  return samples;
}

std::vector<OwnedSample> samples_of(const Encoding& options, const std::string& text) {
  return samples_of(*WordsEncoder::fit(options, words_of(text), {}), text);
}

TEST(WordReader, WordsAndLineEnds) {
  EXPECT_THAT(tokens("a  b\tc\r\n\nd"), ElementsAre("a", "b", "c", "\n", "\n", "d"));
  EXPECT_THAT(tokens(""), ElementsAre());
  EXPECT_THAT(tokens(" \t "), ElementsAre());
}

// Any bytes, in portions of any size, compared with reading one byte after the other: every place of a word
// in a mask and in a buffer, and words of all lengths around the longest allowed.
TEST(WordReader, AnyBytesInAnyPortions) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    std::string text;
    const std::array<char, 8> separators = {' ', ' ', ' ', '\n', '\t', '\r', '\0', '\x1f'};
    while (text.size() < 40000) {
      const uint32_t longest = rng.below(50) == 0 ? 2000 : 20;
      for (uint32_t left = rng.below(longest); left > 0; --left)
        text += static_cast<char>(33 + rng.below(223));
      for (uint32_t left = 1 + rng.below(3); left > 0; --left) text += separators[rng.below(8)];
    }
    const size_t portion = seed % 3 == 0 ? text.size() : 1 + rng.below(seed % 3 == 1 ? 100 : 20000);
    ASSERT_EQ(tokens(WordReader(std::make_unique<Trickle>(text, portion), "text")), expected_tokens(text))
        << "seed " << seed;
  }
}

// The buffer of the reader has 64 KiB. Words cross its borders, in one line without end.
TEST(WordReader, BuffersDoNotCutWords) {
  std::string text;
  std::vector<std::string> expected;
  for (uint32_t i = 0; i < 100000; ++i) {
    expected.push_back("w" + std::to_string(Rng(1, {i}).below(1000000)));
    text += expected.back() + " ";
  }
  EXPECT_EQ(tokens(text), expected);
}

TEST(WordReader, LeavesOutWordsThatAreTooLong) {
  const std::string most(WordReader::kMaxWordBytes, 'x');
  EXPECT_THAT(tokens("a " + most + "y b"), ElementsAre("a", "b"));
  EXPECT_THAT(tokens("a " + most + " b"), ElementsAre("a", most, "b"));
  EXPECT_THAT(tokens("a " + std::string(300000, 'x') + "\nb"), ElementsAre("a", "\n", "b"));
  EXPECT_THAT(tokens("a " + std::string(300000, 'y') + "\nb " + std::string(200000, 'z')),
              ElementsAre("a", "\n", "b"));
}

// Vocabulary by frequency: a 4 times, b 3, c 2, d once.
constexpr char kText[] = "a b a c a\nb a d b c\n";

TEST(WordsEncoder, SkipgramPairsAWordWithItsNeighbours) {
  const auto samples = samples_of(words_options({"window=2"}), kText);
  ASSERT_EQ(samples.size(), 10u);
  EXPECT_EQ(samples[0], OwnedSample({0}, {1}, {0, 1}));     // a: b, a
  EXPECT_EQ(samples[1], OwnedSample({1}, {1}, {0, 2}));     // b: a, a, c
  EXPECT_EQ(samples[4], OwnedSample({0}, {1}, {0, 2}));     // a: a, c; nothing from the next line
  EXPECT_EQ(samples[7], OwnedSample({3}, {1}, {0, 1, 2}));  // d: b, a, b, c
}

TEST(WordsEncoder, NextWordFromTheOnesBefore) {
  const auto bag = samples_of(words_options({"task=\"next\"", "window=3"}), kText);
  ASSERT_EQ(bag.size(), 8u);  // the first word of a line has no word before it
  EXPECT_EQ(bag[0], OwnedSample({0}, {1}, {1}));
  EXPECT_EQ(bag[2], OwnedSample({0, 1}, {2, 1}, {2}));
  const auto placed = samples_of(words_options({"task=\"next\"", "window=3", "positions=true"}), kText);
  EXPECT_EQ(placed[2],
            OwnedSample({0, 5, 8}, {1, 1, 1}, {2}));  // a at 1, b at 2, a at 3; four words a position
}

std::vector<OwnedSample> answers_to(const WordsEncoder& encoder, const std::string& questions) {
  const auto reader =
      encoder.open_requests({std::make_unique<std::stringbuf>(questions, std::ios::in), "questions"});
  std::vector<OwnedSample> samples;
  for (Sample sample; reader->next(sample);) {
    EXPECT_LT(sample.features.empty() ? 0 : sample.features.back(), reader->features());
    samples.emplace_back(sample);
  }
  return samples;
}

// The beginning of a line as a question is the sample of training whose label comes next.
TEST(WordsEncoder, AQuestionIsWhatTrainingSawBeforeAWord) {
  for (const char* positions : {"positions=false", "positions=true"}) {
    const Encoding options = words_options({"task=\"next\"", "window=3", positions});
    const auto encoder = WordsEncoder::fit(options, words_of(kText), {});
    std::vector<OwnedSample> expected = samples_of(options, kText);
    for (OwnedSample& sample : expected) sample.labels.clear();
    EXPECT_EQ(answers_to(*encoder, "a\na b\na b a\na b a c\nb\nb a\nb a d\nb a d b"), expected);
  }
}

TEST(WordsEncoder, EachLineOfAQuestionIsASample) {
  const auto encoder = WordsEncoder::fit(words_options({"window=2"}), words_of(kText), {});
  EXPECT_THAT(answers_to(*encoder, "b\n\nb d\tb x b a\r\nx\nd"),
              ElementsAre(OwnedSample({1}, {1}, {}), OwnedSample(), OwnedSample({0, 1, 3}, {1, 3, 1}, {}),
                          OwnedSample(), OwnedSample({3}, {1}, {})));
}

TEST(WordsEncoder, RareWordsCloseUp) {
  const auto samples = samples_of(words_options({"window=1", "min_count=2"}), kText);
  ASSERT_EQ(samples.size(), 9u);
  EXPECT_EQ(samples[6], OwnedSample({0}, {1}, {1}));  // b a (d) b: a's neighbours are both b
  EXPECT_THAT(
      label_names(WordsEncoder::fit(words_options({"vocabulary=2"}), words_of(kText), {})->state(), "state"),
      ElementsAre("a", "b"));
}

// Compares with a window over the whole line, which is kept in memory.
TEST(WordsEncoder, OneEndlessLine) {
  std::string text;
  std::vector<uint32_t> ids;
  for (uint32_t i = 0; i < 20000; ++i) {
    ids.push_back(Rng(4, {i}).below(50));
    text += "w" + std::to_string(ids.back()) + " ";
  }
  const auto encoder = WordsEncoder::fit(words_options({"window=7"}), words_of(text), {});
  const auto samples = samples_of(*encoder, text);
  ASSERT_EQ(samples.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    std::vector<uint32_t> expected;
    for (size_t j = i < 7 ? 0 : i - 7; j < std::min(i + 8, ids.size()); ++j)
      if (j != i) expected.push_back(encoder->words().find("w" + std::to_string(ids[j])));
    std::sort(expected.begin(), expected.end());
    expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
    ASSERT_EQ(samples[i].labels, expected) << i;
  }
}

// Every option that affects samples, compared with windows that are cut from ids in memory and sorted each
// time.
TEST(WordsEncoder, SamplesAsCutOneByOne) {
  std::string text;
  for (uint32_t i = 0; i < 6000; ++i) {
    const uint32_t most =
        Rng(9, {i, 0}).below(2) == 0 ? 6 : 400;  // so that a window holds a word several times
    text += "w" + std::to_string(Rng(9, {i, 1}).below(most)) + (Rng(9, {i, 2}).below(25) == 0 ? "\n" : " ");
  }
  const std::vector<std::string> words = tokens(text);
  for (const std::string task : {"skipgram", "next", "positions"}) {
    for (const uint32_t window : {1u, 2u, 5u, 40u}) {
      std::vector<std::string> keys = {"window=" + std::to_string(window), "subsample=0.01", "min_count=4",
                                       "seed=3"};
      if (task != "skipgram") keys.emplace_back("task=\"next\"");
      if (task == "positions") keys.emplace_back("positions=true");
      const auto encoder = WordsEncoder::fit(words_options(keys), words_of(text), {});
      const uint32_t vocabulary = static_cast<uint32_t>(encoder->words().size());

      std::map<uint32_t, double> occurrences;
      double all = 0;
      for (const std::string& word : words)
        if (const uint32_t id = encoder->words().find(word); id != StringTable::kNone)
          ++occurrences[id], ++all;
      std::vector<std::vector<uint32_t>> lines(1);
      uint64_t position = 0;
      for (const std::string& word : words) {
        if (word == "\n") lines.emplace_back();
        const uint32_t id = encoder->words().find(word);
        if (id == StringTable::kNone) continue;
        const double ratio = 0.01f * all / occurrences[id];
        const auto keep = static_cast<float>(std::min(1.0, std::sqrt(ratio) + ratio));
        if (Rng(3, {kStreamSubsample, ++position}).uniform() < keep) lines.back().push_back(id);
      }

      std::vector<OwnedSample> expected;
      for (const auto& line : lines) {
        for (size_t centre = 0; centre < line.size(); ++centre) {
          std::map<uint32_t, float> near;
          for (size_t i = centre - std::min<size_t>(centre, window); i < line.size() && i <= centre + window;
               ++i) {
            if (i == centre || (task != "skipgram" && i > centre)) continue;
            const size_t place = task == "positions" ? centre - 1 - i : 0;
            ++near[static_cast<uint32_t>(place * vocabulary + line[i])];
          }
          if (near.empty()) continue;
          OwnedSample sample({line[centre]}, {1}, {});
          for (const auto& [id, count] : near) sample.labels.push_back(id);
          if (task != "skipgram") {
            std::swap(sample.features, sample.labels);
            sample.values.clear();
            for (const auto& [id, count] : near) sample.values.push_back(count);
          }
          expected.push_back(sample);
        }
      }
      ASSERT_GT(expected.size(), 1000u);
      ASSERT_EQ(samples_of(*encoder, text), expected) << task << ", window " << window;
    }
  }
}

TEST(WordsEncoder, SubsamplingKeepsTheStatedShare) {
  std::string text;
  for (uint32_t i = 0; i < 40000; ++i) text += i % 4 == 0 ? "rare" + std::to_string(i % 400) + " " : "often ";
  const auto sampled = samples_of(words_options({"subsample=0.03"}), text);
  size_t often = 0;
  for (const OwnedSample& sample : sampled) often += sample.features[0] == 0 ? 1 : 0;
  // sqrt(0.03 / 0.75) + 0.03 / 0.75 = 0.24 of 30,000; five standard deviations are 370.
  EXPECT_NEAR(static_cast<double>(often), 0.24 * 30000, 370);
  EXPECT_EQ(sampled.size() - often, 10000u);
  EXPECT_EQ(samples_of(words_options({"subsample=0.03"}), text), sampled);
  EXPECT_NE(samples_of(words_options({"subsample=0.03", "seed=2"}), text), sampled);
}

TEST(WordsEncoder, CountingIsBounded) {
  std::string text;
  for (uint32_t i = 0; i < 3050; ++i) text += "often noise" + std::to_string(i) + " ";
  const auto encoder = WordsEncoder::fit(words_options(), words_of(text), {}, 100);
  EXPECT_EQ(encoder->words().at(0), "often");
  EXPECT_LE(encoder->words().size(), 100u);
}

TEST(WordsEncoder, StateRoundTripAndErrors) {
  const auto encoder = WordsEncoder::fit(words_options({"subsample=0.2"}), words_of(kText), {});
  const auto state = encoder->state();
  const WordsEncoder restored(SafetensorsFile(state, "state"));
  EXPECT_EQ(restored.state(), state);
  EXPECT_EQ(samples_of(restored, kText), samples_of(*encoder, kText));
  try {
    WordsEncoder::fit(words_options({"min_count=100"}), words_of(kText), {});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("words.min_count = 100"));
  }
}

TEST(WordsEncoder, MutatedStates) {
  const auto good = WordsEncoder::fit(words_options(), words_of(kText), {})->state();
  testing::restore_damaged(good, 5000, [&](const Encoder& encoder, std::span<const std::byte>) {
    const auto* words = dynamic_cast<const WordsEncoder*>(&encoder);
    if (words != nullptr) samples_of(*words, kText);
  });
}

}  // namespace
}  // namespace modelet::shard
