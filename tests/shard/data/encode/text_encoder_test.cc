#include "shard/data/encode/text_encoder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "base/array/aligned.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/data/encode/features/ngrams.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::OwnedSample;

Encoding text_options(const std::string& toml = "") {
  return parse_encoding("[data]\nformat = \"text\"\n" + toml, "test");
}

LineReader text_lines(const std::string& text) {
  return {std::make_unique<std::stringbuf>(text, std::ios::in), "data.txt"};
}
TextRecords records_of(const Encoding& options, const std::string& text) {
  return {options.text, text_lines(text)};
}

struct OwnedRecord {
  std::vector<std::string> labels, words;
  bool operator==(const OwnedRecord&) const = default;
};

std::vector<OwnedRecord> read_text(const Encoding& options, const std::string& text) {
  std::vector<OwnedRecord> result;
  TextRecords records = records_of(options, text);
  for (TextRecord record; records.next(record);)
    result.push_back(
        {{record.labels.begin(), record.labels.end()}, {record.words.begin(), record.words.end()}});
  return result;
}

std::string error_of(const Encoding& options, const std::string& text) {
  try {
    read_text(options, text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::unique_ptr<TextEncoder> fit_text(const Encoding& options, const std::string& text) {
  return TextEncoder::fit(options, records_of(options, text), {});
}

std::vector<OwnedSample> encode_text(const TextEncoder& encoder, const std::string& text,
                                     uint64_t* unknown = nullptr) {
  std::vector<OwnedSample> samples;
  const auto reader = encoder.open(text_lines(text));
  for (Sample sample; reader->next(sample);) samples.emplace_back(sample);
  if (unknown != nullptr) *unknown = reader->unknown_labels();
  return samples;
}

std::vector<uint32_t> ngrams(const Encoding& options, const std::vector<std::string_view>& words) {
  std::vector<uint32_t> buckets;
  NgramHasher(options.text).append(words, buckets);
  return buckets;
}

// Whoever reads a text with it reads words alike, whatever other words the text has.
TEST(HashedText, KnowsAllWordsAndTheLabelsThatAreListed) {
  const Encoding options = text_options("[text]\nbuckets = 64\nmin_count = 7\n");
  const std::vector<std::string> labels = {"b", "a"};
  const auto encoder = hashed_encoder(options, labels);
  const std::vector<std::byte> state = encoder->state();
  EXPECT_EQ(label_names(state, "test"), labels);
  const auto restored = restore_encoder(state, "test");
  EXPECT_EQ(restored->state(), state);
  const auto reader = restored->open(text_lines("__label__a new words\n__label__b __label__c words\n"));
  EXPECT_EQ(reader->features(), 64u);
  EXPECT_EQ(reader->labels(), 2u);
  std::vector<uint32_t> first = ngrams(options, {"new", "words"});
  std::ranges::sort(first);
  Sample sample;
  ASSERT_TRUE(reader->next(sample));
  EXPECT_EQ(OwnedSample(sample), OwnedSample(first, {1, 1}, {1}));
  ASSERT_TRUE(reader->next(sample));
  EXPECT_EQ(OwnedSample(sample), OwnedSample(ngrams(options, {"words"}), {1}, {0}));
  EXPECT_EQ(reader->unknown_labels(), 1u);
  EXPECT_THROW(hashed_encoder(text_options("[text]\nweight = \"tfidf\"\n"), labels), UsageError);
}

TEST(LabelledText, LabelsStandAnywhere) {
  EXPECT_EQ(
      read_text(text_options(), "__label__a one two\nthree __label__b\t four __label__a\r\n\n__label__c"),
      (std::vector<OwnedRecord>{{{"a"}, {"one", "two"}}, {{"b", "a"}, {"three", "four"}}, {}, {{"c"}, {}}}));
  EXPECT_EQ(read_text(text_options(), "\xef\xbb\xbf__label__a one\n"),
            (std::vector<OwnedRecord>{{{"a"}, {"one"}}}));
  EXPECT_EQ(read_text(text_options("[text]\nlabel_prefix = \"L_\"\n"), "L_a __label__b\n"),
            (std::vector<OwnedRecord>{{{"a"}, {"__label__b"}}}));
  EXPECT_THAT(error_of(text_options(), "__label__a x\n y __label__ z\n"),
              HasSubstr("data.txt:2: a label without a name"));
}

// Words with lengths around the size of the blocks that are scanned at once.
TEST(LabelledText, WordsOfAnyLength) {
  for (size_t length = 1; length < 200; ++length) {
    const std::string word(length, 'w');
    EXPECT_EQ(read_text(text_options(), word + "\nv " + word),
              (std::vector<OwnedRecord>{{{}, {word}}, {{}, {"v", word}}}));
  }
}

TEST(LabelledText, IsDetected) {
  const testing::TemporaryFolder folder;
  Encoding any;
  EXPECT_EQ(format_of(folder.write("a", "words __label__x\n"), any), DataFormat::kText);
  EXPECT_EQ(format_of(folder.write("m", "\xef\xbb\xbf__label__x words\n"), any), DataFormat::kText);
  EXPECT_EQ(format_of(folder.write("b", "1 2 3\n0 1:1\n"), any), DataFormat::kXmc);
  EXPECT_EQ(format_of(folder.write("c", ""), any), DataFormat::kXmc);
  any.format = DataFormat::kCsv;
  EXPECT_EQ(format_of(folder / "a", any), DataFormat::kCsv);
}

TEST(Ngrams, OfWords) {
  const auto of = [](uint32_t n, const std::vector<std::string_view>& words) {
    return ngrams(text_options("[text]\nword_ngrams = " + std::to_string(n)), words);
  };
  const auto one = of(1, {"a", "b", "c"});
  const auto three = of(3, {"a", "b", "c"});
  ASSERT_EQ(three.size(), 6u);  // a, b, c, ab, bc, abc
  EXPECT_THAT(one, ElementsAre(three[0], three[1], three[2]));
  EXPECT_EQ(std::set<uint32_t>(three.begin(), three.end()).size(), 6u);
  // The order of words matters, the words before them do not, and no n-gram crosses a border.
  EXPECT_NE(of(2, {"a", "b"})[2], of(2, {"b", "a"})[2]);
  EXPECT_EQ(of(2, {"a", "b"})[2], of(2, {"z", "a", "b"})[4]);  // z, a, b, za, ab
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
  // Text that is not UTF-8 is read to its end.
  EXPECT_THAT(of("min_char = 1\nmax_char = 4", "\x80\x80"), ::testing::SizeIs(::testing::Ge(1u)));
  EXPECT_THAT(of("min_char = 1\nmax_char = 4", "\xFFz\xE2"), ::testing::SizeIs(::testing::Ge(1u)));
}

TEST(TextEncoder, NumbersWhatTrainingHas) {
  const auto options = text_options("[text]\nmin_count = 2");
  const std::string train = "__label__x a a b\n__label__y __label__y a c\n__label__y b d __label__z\n";
  const auto encoder = fit_text(options, train);
  EXPECT_THAT(label_names(encoder->state(), "state"), ElementsAre("y", "x", "z"));  // 2, 1, 1 samples
  const auto samples = encode_text(*encoder, train);
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0].features.size(), 2u);  // a and b occur in two samples, c and d in one
  EXPECT_THAT(samples[0].values, ::testing::UnorderedElementsAre(2, 1));
  EXPECT_THAT(samples[1].labels, ElementsAre(0u));
  EXPECT_THAT(samples[2].labels, ElementsAre(0u, 2u));
  uint64_t unknown = 0;
  const auto test = encode_text(*encoder, "__label__new d __label__x e b\n\n", &unknown);
  EXPECT_EQ(unknown, 1u);
  EXPECT_THAT(test[0].labels, ElementsAre(1u));
  EXPECT_THAT(test[0].values, ElementsAre(1));
  EXPECT_THAT(test[1].features, IsEmpty());
}

TEST(TextEncoder, WeighsByInverseFrequency) {
  const auto options = text_options("[text]\nweight = \"tfidf\"");
  const std::string train = "__label__x a a b\n__label__x a\n__label__x c\n";
  const auto samples = encode_text(*fit_text(options, train), train);
  const float rare = static_cast<float>(1 + std::log(4.0 / 2)),
              common = static_cast<float>(1 + std::log(4.0 / 3));
  EXPECT_THAT(samples[0].values,
              ::testing::UnorderedElementsAre(::testing::FloatEq((1 + std::log(2.0f)) * common),
                                              ::testing::FloatEq(rare)));
}

// Compares with counting whole n-grams as strings, on random text, with so many buckets that none collide.
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
  const auto samples = encode_text(*fit_text(options, text), text);
  ASSERT_EQ(samples.size(), bags.size());
  std::map<std::string, std::set<uint32_t>> candidates;  // features that occur wherever the n-gram does
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

// A row that is made in the simplest way: byte by byte, one hash after the other, counts in a map.
struct PlainRow {
  std::vector<std::string> labels;
  std::map<uint32_t, float> buckets;
};

std::vector<PlainRow> plain_rows(const Encoding& options, const std::string& text) {
  const std::string space(" \t\v\f\r\0", 6);
  std::vector<PlainRow> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    PlainRow& row = rows.emplace_back();
    std::vector<uint64_t> hashes;
    for (size_t at = 0; (at = line.find_first_not_of(space, at)) != std::string::npos;) {
      const size_t end = std::min(line.find_first_of(space, at), line.size());
      const std::string word = line.substr(at, end - at);
      at = end;
      if (word.starts_with(options.text.label_prefix))
        row.labels.push_back(word.substr(options.text.label_prefix.size()));
      else
        hashes.push_back(XXH3_64bits_withSeed(word.data(), word.size(), 1));
    }
    for (size_t end = 1; end <= hashes.size(); ++end)
      for (size_t n = 1; n <= std::min<size_t>(options.text.word_ngrams, end); ++n) {
        uint64_t hash = hashes[end - 1];
        for (size_t before = 2; before <= n; ++before) hash = mix64(hash) + hashes[end - before];
        ++row.buckets[static_cast<uint32_t>((hash >> 32) * options.text.buckets >> 32)];
      }
  }
  return rows;
}

// Text as files of others may have it: bytes that are not UTF-8, every kind of white space, CRLF, empty
// lines, lines of one word and of thousands, words of all lengths, no line end at the end.
std::string odd_text(uint64_t seed) {
  Rng rng(seed);
  std::string text;
  const auto word = [&] {
    const uint32_t kind = rng.below(10);
    if (kind == 0) text += "__label__" + std::to_string(rng.below(20));
    if (kind == 0) return;
    const uint32_t letters = kind == 1 ? 300 : kind < 5 ? 17 : 4;
    for (uint32_t length = 1 + rng.below(letters); length > 0; --length)
      text += kind == 2 ? static_cast<char>(0x80 + rng.below(0x80)) : static_cast<char>('a' + rng.below(3));
  };
  for (size_t row = 0; row < 150; ++row) {
    const uint32_t longest = row % 40 == 7 ? 3000 : row % 4 == 0 ? 2 : 100;
    for (uint32_t words = rng.below(longest); words > 0; --words) {
      word();
      for (uint32_t spaces = 1 + rng.below(9) / 8; spaces > 0; --spaces)
        text += std::string(" \t\v\f\r\0", 6)[rng.below(16) < 10 ? 0 : rng.below(6)];
    }
    if (rng.below(3) > 0) word();
    text += rng.below(4) == 0 ? "\r\n" : "\n";
  }
  return text + "__label__last word";
}

TEST(TextEncoder, OddTextAsReadPlainly) {
  for (const char* toml : {"min_count = 1", "word_ngrams = 2\nmin_count = 2", "word_ngrams = 3",
                           "word_ngrams = 2\nbuckets = 1000\nmin_count = 30"}) {
    SCOPED_TRACE(toml);
    const auto options = text_options(std::string("[text]\n") + toml);
    const std::string train = odd_text(1);
    std::map<uint32_t, uint32_t> feature, samples;
    for (const PlainRow& row : plain_rows(options, train))
      for (const auto& [bucket, count] : row.buckets) ++samples[bucket];
    std::erase_if(samples, [&](const auto& entry) { return entry.second < options.text.min_count; });
    for (const auto& [bucket, count] : samples) feature.emplace(bucket, feature.size());
    const auto encoder = fit_text(options, train);
    const std::vector<std::string> names = label_names(encoder->state(), "state");
    for (const std::string& text : {train, odd_text(2)}) {
      const std::vector<PlainRow> rows = plain_rows(options, text);
      const std::vector<OwnedSample> got = encode_text(*encoder, text);
      ASSERT_EQ(got.size(), rows.size());
      for (size_t i = 0; i < rows.size(); ++i) {
        OwnedSample expected;
        for (const auto& [bucket, count] : rows[i].buckets) {
          if (!feature.contains(bucket)) continue;
          expected.features.push_back(feature[bucket]);
          expected.values.push_back(count);
        }
        for (uint32_t label = 0; label < names.size(); ++label)
          if (std::ranges::count(rows[i].labels, names[label]) > 0) expected.labels.push_back(label);
        ASSERT_EQ(got[i], expected) << "line " << i + 1;
      }
    }
  }
}

TEST(TextEncoder, StateRoundTrip) {
  const auto options = text_options("[text]\nweight = \"tfidf\"\nword_ngrams = 2");
  const std::string train = "__label__a one two three\n__label__b two two\n";
  const auto encoder = fit_text(options, train);
  const auto state = encoder->state();
  const TextEncoder restored(SafetensorsFile(state, "state"));
  EXPECT_EQ(restored.state(), state);
  EXPECT_EQ(encode_text(restored, train), encode_text(*encoder, train));
  EXPECT_THAT(label_names(state, "state"), ElementsAre("a", "b"));
}

TEST(TextEncoder, RefusesTextThatTeachesNothing) {
  const auto error = [](const Encoding& options, const std::string& text) -> std::string {
    try {
      fit_text(options, text);
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
  const auto good = fit_text(options, train)->state();
  testing::restore_damaged(good, 5000, [&](const Encoder& encoder, std::span<const std::byte>) {
    const auto* text = dynamic_cast<const TextEncoder*>(&encoder);
    if (text == nullptr) return;
    for (const OwnedSample& sample : encode_text(*text, train)) {
      EXPECT_TRUE(std::ranges::all_of(sample.values, [](float v) { return std::isfinite(v); }));
      EXPECT_TRUE(std::ranges::is_sorted(sample.features));
    }
  });
}

}  // namespace
}  // namespace modelet::shard
