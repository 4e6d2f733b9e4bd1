#include "shard/data/encode/sessions_encoder.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "tests/error_of.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::OwnedSample;

Encoding session_options(const std::string& keys = "") {
  return parse_encoding("[data]\nformat = 'sessions'\n[sessions]\nbuckets = 4096\n" + keys, "test");
}

LineReader session_lines(const std::string& text) {
  return {std::make_unique<std::stringbuf>(text, std::ios::in), "sessions.txt"};
}

std::vector<OwnedSample> all_of(const std::unique_ptr<SampleReader>& reader) {
  std::vector<OwnedSample> samples;
  for (Sample sample; reader->next(sample);) {
    EXPECT_TRUE(std::ranges::is_sorted(sample.features, std::less_equal{}) || sample.features.size() < 2);
    for (const uint32_t feature : sample.features) EXPECT_LT(feature, reader->features());
    samples.emplace_back(sample);
  }
  return samples;
}

std::string random_sessions(uint64_t seed, int lines) {
  Rng rng(seed);
  std::string text;
  for (int line = 0; line < lines; ++line) {
    for (uint32_t items = rng.below(12); items > 0; --items) text += "i" + std::to_string(rng.below(9)) + " ";
    text += "\n";
  }
  return text;
}

// Features of places and of the bag, in the plainest way; those of pairs lie behind them.
std::map<uint32_t, float> plain_features(const std::vector<uint32_t>& before, const Experiment::Sessions& options,
                                         uint32_t items) {
  std::map<uint32_t, float> features;
  for (size_t place = 0; place < before.size(); ++place) {
    const uint32_t item = before[before.size() - 1 - place];
    if (place < options.positions) features[static_cast<uint32_t>(place + 1) * items + item] = 1;
    if (place < options.window)
      features[item] += std::pow(options.decay, static_cast<float>(place));
  }
  return features;
}

TEST(SessionDirection, IsOneForChainsAndNothingForChance) {
  EXPECT_EQ(session_direction(session_lines("a b c\nb c d\na b\n")), 1);
  EXPECT_EQ(session_direction(session_lines("a b\nc d\ne f\n")), 0) << "of pairs that occur once nothing is known";
  EXPECT_EQ(session_direction(session_lines("a a a\n\na\n")), 0);
  EXPECT_LT(session_direction(session_lines("a b a b a\n")), 0);
  Rng rng(3);
  std::string chance;
  for (int line = 0; line < 4000; ++line)
    chance += std::to_string(rng.below(20)) + " " + std::to_string(rng.below(20)) + "\n";
  EXPECT_NEAR(session_direction(session_lines(chance)), 0, 0.05);
}

TEST(SessionsEncoder, EveryItemIsTheTargetOfWhatCameBefore) {
  const Encoding options = session_options("window = 5\npositions = 2\ndecay = 0.5\npairs = 2");
  const std::string text = random_sessions(1, 200);
  const auto encoder = SessionsEncoder::fit(options, session_lines(text), {});
  const std::vector<std::string> names = label_names(encoder->state(), "state");
  const auto samples = all_of(encoder->open_training(session_lines(text)));
  size_t next = 0, with_pairs = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<uint32_t> before;
    for (std::string word; words >> word;) {
      const auto id = static_cast<uint32_t>(std::ranges::find(names, word) - names.begin());
      if (!before.empty()) {
        ASSERT_LT(next, samples.size());
        const OwnedSample& sample = samples[next++];
        EXPECT_THAT(sample.labels, ElementsAre(id));
        const auto expected = plain_features(before, options.sessions, static_cast<uint32_t>(names.size()));
        const auto pairs_from = static_cast<uint32_t>(3 * names.size());
        size_t i = 0;
        for (const auto& [feature, value] : expected) {
          ASSERT_EQ(sample.features[i], feature);
          EXPECT_FLOAT_EQ(sample.values[i++], value);
        }
        float pairs = 0;
        for (; i < sample.features.size(); ++i) {
          EXPECT_GE(sample.features[i], pairs_from);
          pairs += sample.values[i];
        }
        EXPECT_EQ(pairs, std::min<size_t>(2, before.size() - 1));
        with_pairs += pairs > 0 ? 1 : 0;
      }
      before.push_back(id);
    }
  }
  EXPECT_EQ(next, samples.size());
  EXPECT_GT(with_pairs, 100u);
}

// A sample must not change when what comes after it does.
TEST(SessionsEncoder, NoSampleSeesItsFuture) {
  const Encoding options = session_options();
  const auto encoder = SessionsEncoder::fit(options, session_lines("a b c d e\ne d c b a\n"), {});
  const auto whole = all_of(encoder->open_training(session_lines("a b c d e\n")));
  ASSERT_EQ(whole.size(), 4u);
  for (size_t items = 2; items <= 5; ++items) {
    const std::string text = std::string("a b c d e").substr(0, 2 * items - 1);
    EXPECT_EQ(all_of(encoder->open_training(session_lines(text + " a d\n")))[items - 2], whole[items - 2]) << text;
    // The same sample as a line with its target last, and with the target behind a tab.
    EXPECT_THAT(all_of(encoder->open(session_lines(text))), ElementsAre(whole[items - 2])) << text;
    std::string divided = text;
    divided[divided.rfind(' ')] = '\t';
    EXPECT_THAT(all_of(encoder->open(session_lines(divided))), ElementsAre(whole[items - 2])) << text;
    // And as a question, which has no target.
    const auto asked = all_of(encoder->open_requests(session_lines(text.substr(0, text.size() - 2))));
    ASSERT_EQ(asked.size(), 1u);
    EXPECT_EQ(asked[0].features, whole[items - 2].features);
    EXPECT_THAT(asked[0].labels, IsEmpty());
  }
}

// As model.exclude_own expects.
TEST(SessionsEncoder, WithoutPlacesLinesAreReadBackwardsToo) {
  const Encoding options = session_options("window = 3\npositions = 0\npairs = 0\ndecay = 0.5");
  const std::string text = "a b c d\nd\na b\tc\n\nb a\n";
  const auto encoder = SessionsEncoder::fit(options, session_lines(text), {});
  const auto read = [&](const std::string& lines) { return all_of(encoder->open_training(session_lines(lines))); };
  const auto expect_same = [](const std::vector<OwnedSample>& samples, const std::vector<OwnedSample>& others) {
    ASSERT_EQ(samples.size(), others.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      EXPECT_EQ(samples[i].features, others[i].features);
      EXPECT_EQ(samples[i].values, others[i].values);
      EXPECT_EQ(samples[i].labels, others[i].labels);
    }
  };
  // A line that is divided has one direction.
  expect_same(read(text), read("a\tb\na b\tc\na b c\td\nd\tc\nd c\tb\nd c b\ta\na b\tc\nb\ta\na\tb\n"));
  EXPECT_EQ(all_of(encoder->open(session_lines("a b c d\n"))).size(), 1u);
  EXPECT_EQ(all_of(encoder->open_requests(session_lines("a b c d\n"))).size(), 1u);
}

TEST(SessionsEncoder, TheFirstFeaturesHaveTheNumbersOfLabels) {
  const auto encoder = SessionsEncoder::fit(session_options("window = 2"), session_lines("a b c d\nd c b a\nb\n"), {});
  const std::vector<std::string> names = label_names(encoder->state(), "state");
  const auto asked = all_of(encoder->open_requests(session_lines("a b c\n")));
  std::vector<std::string> own;
  for (const uint32_t feature : asked[0].features)
    if (feature < names.size()) own.push_back(names[feature]);
  EXPECT_THAT(own, ::testing::UnorderedElementsAre("b", "c"));
}

TEST(SessionsEncoder, UnknownItemsAreLeftOutAndUnknownTargetsCounted) {
  const auto encoder = SessionsEncoder::fit(session_options(), session_lines("a b c\nc a\n"), {});
  const auto reader = encoder->open(session_lines("a new b\na b new\nb\n\n"));
  const auto samples = all_of(reader);
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[0], all_of(encoder->open(session_lines("a b")))[0]);
  EXPECT_THAT(samples[1].labels, IsEmpty());
  EXPECT_EQ(samples[1].features, all_of(encoder->open(session_lines("a b\tc")))[0].features);
  EXPECT_THAT(samples[2].features, IsEmpty());
  EXPECT_THAT(samples[2].labels, ::testing::SizeIs(1));
  EXPECT_THAT(samples[3].labels, IsEmpty());
  EXPECT_EQ(reader->unknown_labels(), 1u);
  const auto frequent = SessionsEncoder::fit(session_options("min_count = 2"), session_lines("a b c\nc a\n"), {});
  EXPECT_THAT(label_names(frequent->state(), "state"), ElementsAre("a", "c"));
}

TEST(SessionsEncoder, TheStateIsAllOfIt) {
  const std::string text = random_sessions(2, 100), other = random_sessions(3, 50);
  const auto encoder = SessionsEncoder::fit(session_options("min_count = 2"), session_lines(text), {});
  const auto state = encoder->state();
  const auto restored = restore_encoder(state, "state");
  EXPECT_EQ(restored->state(), state);
  EXPECT_EQ(all_of(restored->open(session_lines(other))), all_of(encoder->open(session_lines(other))));
  testing::restore_damaged(state, 3000, [&](const Encoder& damaged, std::span<const std::byte>) {
    const auto* sessions = dynamic_cast<const SessionsEncoder*>(&damaged);
    if (sessions != nullptr) all_of(sessions->open(session_lines(other)));
  });
}

TEST(SessionsEncoder, RefusesTextThatTeachesNothing) {
  for (const char* text : {"", "a\nb\n", "a a a\n"})
    EXPECT_THAT(test::error_of([&] { SessionsEncoder::fit(session_options(), session_lines(text), {}); }),
                HasSubstr("no session of two items"));
}

}  // namespace
}  // namespace modelet::shard
