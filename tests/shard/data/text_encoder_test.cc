#include "shard/data/text_encoder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "base/aligned.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/data/ngrams.h"
#include "tests/shard/data/data_testing.h"

namespace modelet::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::OwnedSample;

Experiment text_options(const std::string& toml = "") {
  return parse_encoding_toml("[data]\nformat = \"text\"\n" + toml, "test");
}

Experiment csv_options(const std::string& toml) {
  return parse_encoding_toml("[data]\nformat = \"csv\"\n[csv]\n" + toml, "test");
}

std::unique_ptr<TextRecords> records_of(const Experiment& options, const std::string& text) {
  return open_records(options, std::make_unique<std::stringbuf>(text, std::ios::in), "data.txt");
}

struct OwnedRecord {
  std::vector<std::string> labels, words;
  bool operator==(const OwnedRecord&) const = default;
};

std::vector<OwnedRecord> read(const Experiment& options, const std::string& text) {
  std::vector<OwnedRecord> result;
  const auto records = records_of(options, text);
  for (TextRecord record; records->next(record);)
    result.push_back(
        {{record.labels.begin(), record.labels.end()}, {record.words.begin(), record.words.end()}});
  return result;
}

std::string error_of(const Experiment& options, const std::string& text) {
  try {
    read(options, text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::unique_ptr<TextEncoder> fit(const Experiment& options, const std::string& text) {
  return TextEncoder::fit(options, *records_of(options, text), {});
}

std::vector<OwnedSample> encode(const TextEncoder& encoder, const Experiment& options,
                                const std::string& text, uint64_t* unknown = nullptr) {
  std::vector<OwnedSample> samples;
  const auto reader = encoder.open(records_of(options, text));
  for (Sample sample; reader->next(sample);) samples.emplace_back(sample);
  if (unknown != nullptr) *unknown = reader->unknown_labels();
  return samples;
}

std::vector<uint32_t> ngrams(const Experiment& options, const std::vector<std::string_view>& words) {
  std::vector<uint32_t> buckets;
  NgramHasher(options.text).append(words, buckets);
  return buckets;
}

TEST(LabelledText, LabelsStandAnywhere) {
  EXPECT_EQ(
      read(text_options(), "__label__a one two\nthree __label__b\t four __label__a\r\n\n__label__c"),
      (std::vector<OwnedRecord>{{{"a"}, {"one", "two"}}, {{"b", "a"}, {"three", "four"}}, {}, {{"c"}, {}}}));
  EXPECT_EQ(read(text_options(), "\xef\xbb\xbf__label__a one\n"),
            (std::vector<OwnedRecord>{{{"a"}, {"one"}}}));
  EXPECT_EQ(read(text_options("[text]\nlabel_prefix = \"L_\"\n"), "L_a __label__b\n"),
            (std::vector<OwnedRecord>{{{"a"}, {"__label__b"}}}));
  EXPECT_THAT(error_of(text_options(), "__label__a x\n y __label__ z\n"),
              HasSubstr("data.txt:2: a label without a name"));
}

TEST(LabelledText, IsDetected) {
  const testing::TemporaryFolder folder;
  Experiment any;
  EXPECT_EQ(format_of(folder.write("a", "words __label__x\n"), any), DataFormat::kText);
  EXPECT_EQ(format_of(folder.write("m", "\xef\xbb\xbf__label__x words\n"), any), DataFormat::kText);
  EXPECT_EQ(format_of(folder.write("b", "1 2 3\n0 1:1\n"), any), DataFormat::kXmc);
  EXPECT_EQ(format_of(folder.write("c", ""), any), DataFormat::kXmc);
  any.data.format = DataFormat::kCsv;
  EXPECT_EQ(format_of(folder / "a", any), DataFormat::kCsv);
}

TEST(Csv, ColumnsByNameAndNumber) {
  const std::string text = "id,title,tags,body\n1,a title,x|y|,\"two\nlines, \"\"quoted\"\"\"\n2,,z,b\n";
  const std::vector<OwnedRecord> expected = {{{"x", "y"}, {"a", "title", "", "two", "lines,", "\"quoted\""}},
                                             {{"z"}, {"b"}}};
  EXPECT_EQ(
      read(csv_options("labels = \"tags\"\nlabel_separator = \"pipe\"\ntext = [\"title\", \"body\"]"), text),
      expected);
  EXPECT_EQ(read(csv_options("labels = \"3\"\nlabel_separator = \"pipe\"\ntext = [\"2\", \"4\"]"), text),
            expected);
  EXPECT_EQ(read(csv_options("labels = \"1\"\ntext = [\"2\"]\nheader = false"), "a|b,c d\n,e\n"),
            (std::vector<OwnedRecord>{{{"a|b"}, {"c", "d"}}, {{}, {"e"}}}));
  EXPECT_EQ(read(csv_options("labels = \"1\"\ntext = [\"2\"]\ndelimiter = \"tab\""), "l\tt\nx\t\"y\n"),
            (std::vector<OwnedRecord>{{{"x"}, {"\"y"}}}));
}

TEST(Csv, Errors) {
  const auto options = csv_options("labels = \"tag\"\ntext = [\"text\"]");
  EXPECT_THAT(error_of(options, ""), HasSubstr("empty"));
  EXPECT_THAT(error_of(options, "tags,text\nx,y\n"),
              HasSubstr("csv.labels: there is no column 'tag' among 2; did you mean 'tags'?"));
  EXPECT_THAT(error_of(csv_options("labels = \"3\"\ntext = [\"text\"]"), "tags,text\n"),
              HasSubstr("no column '3'"));
  EXPECT_THAT(error_of(csv_options("text = []"), "tags,text\n"), HasSubstr("must name the columns"));
}

TEST(Ngrams, OfWords) {
  const auto of = [](uint32_t n, const std::vector<std::string_view>& words) {
    return ngrams(text_options("[text]\nword_ngrams = " + std::to_string(n)), words);
  };
  const auto one = of(1, {"a", "b", "c"});
  const auto three = of(3, {"a", "b", "c"});
  ASSERT_EQ(three.size(), 6u);  // a, b, ab, c, bc, abc
  EXPECT_THAT(one, ElementsAre(three[0], three[1], three[3]));
  EXPECT_EQ(std::set<uint32_t>(three.begin(), three.end()).size(), 6u);
  // The order of words matters, what stands before does not, and nothing crosses a border.
  EXPECT_NE(of(2, {"a", "b"})[2], of(2, {"b", "a"})[2]);
  EXPECT_EQ(of(2, {"a", "b"})[2], of(2, {"z", "a", "b"})[4]);
  EXPECT_EQ(of(2, {"a", "", "b"}).size(), 2u);
}

TEST(Ngrams, OfCharacters) {
  const auto of = [](const std::string& lengths, std::string_view word) {
    return ngrams(text_options("[text]\n" + lengths), {word});
  };
  // <ab>: the word; <a, ab, b>; <ab, ab>
  EXPECT_EQ(of("min_char = 2\nmax_char = 3", "ab").size(), 1u + 3 + 2);
  EXPECT_EQ(of("min_char = 1\nmax_char = 1", "ab").size(), 1u + 2);
  EXPECT_EQ(of("min_char = 3\nmax_char = 6", "a").size(), 1u + 1);
  // Characters, not bytes.
  EXPECT_EQ(of("min_char = 1\nmax_char = 1", "\xC3\xA4\xE2\x82\xAC").size(), 1u + 2);
  // Bytes that are no UTF-8 are read to their end.
  EXPECT_THAT(of("min_char = 1\nmax_char = 4", "\x80\x80"), ::testing::SizeIs(::testing::Ge(1u)));
  EXPECT_THAT(of("min_char = 1\nmax_char = 4", "\xFFz\xE2"), ::testing::SizeIs(::testing::Ge(1u)));
}

TEST(TextEncoder, NumbersWhatTrainingHas) {
  const auto options = text_options("[text]\nmin_count = 2");
  const std::string train = "__label__x a a b\n__label__y __label__y a c\n__label__y b d __label__z\n";
  const auto encoder = fit(options, train);
  EXPECT_THAT(label_names(encoder->state(), "state"), ElementsAre("y", "x", "z"));  // 2, 1, 1 samples
  const auto samples = encode(*encoder, options, train);
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0].features.size(), 2u);  // a and b occur in two samples, c and d in one
  EXPECT_THAT(samples[0].values, ::testing::UnorderedElementsAre(2, 1));
  EXPECT_THAT(samples[1].labels, ElementsAre(0u));
  EXPECT_THAT(samples[2].labels, ElementsAre(0u, 2u));
  uint64_t unknown = 0;
  const auto test = encode(*encoder, options, "__label__new d __label__x e b\n\n", &unknown);
  EXPECT_EQ(unknown, 1u);
  EXPECT_THAT(test[0].labels, ElementsAre(1u));
  EXPECT_THAT(test[0].values, ElementsAre(1));
  EXPECT_THAT(test[1].features, IsEmpty());
}

TEST(TextEncoder, WeighsByInverseFrequency) {
  const auto options = text_options("[text]\nweight = \"tfidf\"");
  const std::string train = "__label__x a a b\n__label__x a\n__label__x c\n";
  const auto samples = encode(*fit(options, train), options, train);
  const float rare = static_cast<float>(1 + std::log(4.0 / 2)),
              common = static_cast<float>(1 + std::log(4.0 / 3));
  EXPECT_THAT(samples[0].values,
              ::testing::UnorderedElementsAre(::testing::FloatEq((1 + std::log(2.0f)) * common),
                                              ::testing::FloatEq(rare)));
}

// Against counting whole n-grams as strings, on random text; so many buckets that none collide.
TEST(TextEncoder, EqualsABagOfStrings) {
  const auto options = text_options("[text]\nword_ngrams = 2\nbuckets = 67108864");
  std::string text;
  std::vector<std::map<std::string, float>> bags;
  for (uint64_t row = 0; row < 50; ++row) {
    Rng rng(3, {row});
    std::string last, line = "__label__" + std::to_string(rng.below(5));
    bags.emplace_back();
    for (uint32_t i = 0; i < 1 + rng.below(30); ++i) {
      const std::string word = "w" + std::to_string(rng.below(40));
      line += " " + word;
      ++bags.back()[word];
      if (!last.empty()) ++bags.back()[last + " " + word];
      last = word;
    }
    text += line + "\n";
  }
  const auto samples = encode(*fit(options, text), options, text);
  ASSERT_EQ(samples.size(), bags.size());
  std::map<std::string, std::set<uint32_t>> candidates;  // features that stood wherever the n-gram did
  for (size_t row = 0; row < bags.size(); ++row) {
    std::multiset<float> counts;
    for (const auto& [gram, count] : bags[row]) counts.insert(count);
    EXPECT_EQ(std::multiset<float>(samples[row].values.begin(), samples[row].values.end()), counts);
    for (const auto& [gram, count] : bags[row]) {
      std::set<uint32_t> with_count;
      for (size_t i = 0; i < samples[row].features.size(); ++i)
        if (samples[row].values[i] == count) with_count.insert(samples[row].features[i]);
      if (!candidates.contains(gram)) {
        candidates[gram] = with_count;
      } else {
        std::erase_if(candidates[gram], [&](uint32_t f) { return !with_count.contains(f); });
      }
      EXPECT_FALSE(candidates[gram].empty()) << gram;
    }
  }
}

TEST(TextEncoder, StateRoundTrip) {
  const auto options = csv_options(
      "labels = \"1\"\ntext = [\"2\"]\nheader = false\n[text]\nweight = \"tfidf\"\nword_ngrams = 2");
  const std::string train = "\"a,\nname\",one two three\nb,two two\n";
  const auto encoder = fit(options, train);
  const auto state = encoder->state();
  const TextEncoder restored(SafetensorsFile(state, "state"));
  EXPECT_EQ(restored.state(), state);
  EXPECT_EQ(encode(restored, options, train), encode(*encoder, options, train));
  EXPECT_THAT(label_names(state, "state"), ElementsAre("a,\nname", "b"));
}

TEST(TextEncoder, RefusesTextThatTeachesNothing) {
  const auto error = [](const Experiment& options, const std::string& text) -> std::string {
    try {
      fit(options, text);
    } catch (const Error& failure) {
      return failure.what();
    }
    return "no error";
  };
  EXPECT_THAT(error(text_options(), "no labels here\n"), HasSubstr("has no label in 1 samples"));
  EXPECT_THAT(error(text_options("[text]\nmin_count = 2"), "__label__x a\n"),
              HasSubstr("text.min_count = 2"));
  EXPECT_THAT(error(text_options(), "__label__" + std::string(5000, 'x') + " a\n"),
              HasSubstr("data.txt:1: the label"));
}

TEST(TextEncoder, MutatedStates) {
  const auto options = text_options("[text]\nweight = \"tfidf\"\nbuckets = 1024");
  const std::string train = "__label__x a a b\n__label__y a c d e\n";
  const auto good = fit(options, train)->state();
  testing::restore_damaged(good, 20000, [&](const Encoder& encoder, std::span<const std::byte>) {
    const auto* text = dynamic_cast<const TextEncoder*>(&encoder);
    if (text == nullptr) return;
    for (const OwnedSample& sample : encode(*text, options, train)) {
      EXPECT_TRUE(std::ranges::all_of(sample.values, [](float v) { return std::isfinite(v); }));
      EXPECT_TRUE(std::ranges::is_sorted(sample.features));
    }
  });
}

}  // namespace
}  // namespace modelet::shard
