// Histories of entities in a table, compared with the plainest way to find them.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/rng.h"
#include "shard/data/encode/columns_encoder.h"
#include "shard/data/encode/features/history_features.h"
#include "tests/error_of.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::OwnedSample;

constexpr uint32_t kPlaces = 2, kWindow = 4;

Encoding history_options(const std::string& time = "time windows=3,10", const std::string& more = "") {
  return parse_encoding("[data]\nformat = 'columns'\n[sessions]\npositions = 2\nwindow = 4\ndecay = 0.5\n[table]\nbins = 4\n"
                        "[columns]\nuser = 'entity'\nat = '" + time + "'\nproduct = 'target separator=pipe'\n" + more,
                        "test");
}

struct PastRecord {
  std::string user, price;
  int at = -1;  // missing
  std::set<std::string> products;
};

std::vector<PastRecord> past_records(uint64_t seed, int count) {
  Rng rng(seed);
  std::vector<PastRecord> records;
  for (int i = 0; i < count; ++i) {
    PastRecord& record = records.emplace_back();
    if (rng.below(20) > 0) record.user = "u" + std::to_string(rng.below(6));
    if (rng.below(20) > 0) record.at = static_cast<int>(rng.below(40));
    if (rng.below(9) > 0) record.price = std::to_string(rng.below(100));
    for (uint32_t products = rng.below(3); products > 0; --products)
      record.products.insert("p" + std::to_string(rng.below(7)));
  }
  records[0].products = {"p0"};
  return records;
}

std::string table_of(const std::vector<PastRecord>& records) {
  std::string text = "product,at,user,price\n";
  for (const PastRecord& r : records) {
    std::string products;
    for (const std::string& product : r.products) products += (products.empty() ? "" : "|") + product;
    text += products + "," + (r.at < 0 ? "" : std::to_string(r.at)) + "," + r.user + "," + r.price + "\n";
  }
  return text;
}

LineReader history_lines(const std::string& text) {
  return {std::make_unique<std::stringbuf>(text, std::ios::in), "data.csv"};
}

std::vector<OwnedSample> history_samples(SampleReader& reader) {
  std::vector<OwnedSample> samples;
  for (Sample sample; reader.next(sample);) {
    EXPECT_TRUE(std::ranges::is_sorted(sample.features, std::less_equal{}) || sample.features.size() < 2);
    for (const uint32_t feature : sample.features) EXPECT_LT(feature, reader.features());
    samples.emplace_back(sample);
  }
  return samples;
}
std::vector<OwnedSample> trained_on(const ColumnsEncoder& encoder, const std::string& text) {
  return history_samples(*encoder.open_training(history_lines(text)));
}

// What came before a record, each time and set of products once: by time, then by products.
struct PlainPast {
  std::vector<std::pair<int, std::vector<uint32_t>>> events;
  std::vector<float> prices;
};
PlainPast past_of(const PastRecord& record, const std::vector<PastRecord>& all, const std::vector<std::string>& names) {
  std::map<std::pair<int, std::vector<uint32_t>>, float> events;
  PlainPast past;
  if (record.user.empty() || record.at < 0) return past;
  for (const PastRecord& other : all) {
    if (other.user != record.user || other.at < 0 || other.at >= record.at || other.products.empty()) continue;
    std::vector<uint32_t> items;
    for (const std::string& product : other.products)
      items.push_back(static_cast<uint32_t>(std::ranges::find(names, product) - names.begin()));
    std::ranges::sort(items);
    events.emplace(std::pair(other.at, items), other.price.empty() ? 0 : std::stof(other.price));
  }
  for (const auto& [event, price] : events) {
    past.events.push_back(event);
    past.prices.push_back(price);
  }
  return past;
}

std::map<uint32_t, float> plain_items(const PlainPast& past, uint32_t items) {
  std::vector<uint32_t> last;
  for (auto event = past.events.rbegin(); event != past.events.rend(); ++event)
    last.insert(last.end(), event->second.begin(), event->second.end());
  std::map<uint32_t, float> features;
  for (uint32_t place = 0; place < last.size(); ++place) {
    if (place < kPlaces) features[(place + 1) * items + last[place]] = 1;
    if (place < kWindow) features[last[place]] += std::pow(0.5f, static_cast<float>(place));
  }
  return features;
}

// As NumberFeatures takes them: each twice.
std::vector<float> plain_numbers(const PlainPast& past, const PastRecord& record) {
  std::vector<float> numbers;
  const auto add = [&](float number) { numbers.insert(numbers.end(), 2, number); };
  add(past.events.empty() ? NAN : static_cast<float>(record.at - past.events.back().first));
  for (const int window : {1000, 3, 10}) {
    float count = 0, sum = 0;
    for (size_t i = 0; i < past.events.size(); ++i)
      if (past.events[i].first > record.at - window) {
        ++count;
        sum += past.prices[i];
      }
    add(count);
    add(sum);
  }
  return numbers;
}

TEST(Histories, AreTheEarlierRecordsOfTheEntity) {
  const Encoding options = history_options("time windows=3,10", "price = 'number'\n");
  const std::vector<PastRecord> records = past_records(1, 300);
  const auto encoder = ColumnsEncoder::fit(options, history_lines(table_of(records)), {});
  const std::vector<std::string> names = label_names(encoder->state(), "state");
  const auto items = static_cast<uint32_t>(names.size());
  std::vector<NumberKind> kinds;
  for (int i = 0; i < 7; ++i) kinds.insert(kinds.end(), {NumberKind::kBins, NumberKind::kLogarithm});
  NumberFeatures numbers(kinds, options.table.bins);
  for (const PastRecord& record : records) numbers.count(plain_numbers(past_of(record, records, names), record));
  numbers.finish();
  const uint32_t behind = numbers.number_from((kPlaces + 1) * items);
  const auto samples = trained_on(*encoder, table_of(records));
  ASSERT_EQ(samples.size(), records.size());
  size_t with_past = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    const PlainPast past = past_of(records[i], records, names);
    FeatureList expected;
    for (const auto& [feature, value] : plain_items(past, items)) expected.add(feature, value);
    numbers.append(plain_numbers(past, records[i]), expected);
    const auto end = std::ranges::lower_bound(samples[i].features, behind) - samples[i].features.begin();
    EXPECT_EQ(std::vector(samples[i].features.begin(), samples[i].features.begin() + end), expected.ids) << i;
    ASSERT_EQ(static_cast<size_t>(end), expected.values.size());
    for (size_t f = 0; f < expected.values.size(); ++f) EXPECT_FLOAT_EQ(samples[i].values[f], expected.values[f]) << i;
    with_past += past.events.size() > 2 ? 1 : 0;
  }
  EXPECT_GT(with_past, 150u);
}

// The labels of a record change nothing but records of its entity at later times.
TEST(Histories, NoRecordSeesItselfOrItsFuture) {
  std::vector<PastRecord> records = past_records(2, 120);
  const auto encoder = ColumnsEncoder::fit(history_options(), history_lines(table_of(records)), {});
  const auto before = trained_on(*encoder, table_of(records));
  size_t seen = 0;
  for (PastRecord& changed : records) {
    const auto products = std::exchange(changed.products, {"p1", "p2", "p3"});
    const auto after = trained_on(*encoder, table_of(records));
    changed.products = products;
    for (size_t i = 0; i < records.size(); ++i) {
      const bool later = !changed.user.empty() && records[i].user == changed.user && changed.at >= 0 &&
                         records[i].at > changed.at;
      if (!later) {
        EXPECT_EQ(after[i].features, before[i].features) << i;
        EXPECT_EQ(after[i].values, before[i].values) << i;
      }
      seen += after[i] != before[i] && &records[i] != &changed ? 1 : 0;
    }
  }
  EXPECT_GT(seen, 100u);
}

TEST(Histories, LastBeyondTheTrainingText) {
  const std::vector<PastRecord> records = past_records(3, 200);
  const std::string text = table_of(records);
  const auto encoder = ColumnsEncoder::fit(history_options(), history_lines(text), {});
  // The text that is known already adds nothing to what is known.
  EXPECT_EQ(history_samples(*encoder->open(history_lines(text))), trained_on(*encoder, text));
  // A question is a record without a label, after all events if it lacks a time; of a table or as a row, whose last field is its history.
  const auto ask = [&](const std::string& row) {
    const auto asked = history_samples(*encoder->open_requests(history_lines("user,at\n" + row)));
    EXPECT_THAT(asked, SizeIs(1));
    EXPECT_EQ(history_samples(*encoder->open_rows(CsvReader({{row.substr(3), "u1", ""}}, "rows"))), asked) << row;
    return asked[0];
  };
  const std::string past = table_of({{.user = "u1", .at = 25, .products = {"p3"}}});
  EXPECT_EQ(ask("u1,25").features, history_samples(*encoder->open(history_lines(past)))[0].features);
  EXPECT_NE(ask("u1,25"), ask("u1,60"));
  EXPECT_THAT(ask("u1,60").labels, IsEmpty());
  const uint32_t of_items = 3 * static_cast<uint32_t>(label_names(encoder->state(), "state").size());
  const auto items = [&](OwnedSample sample) {
    std::erase_if(sample.features, [&](uint32_t feature) { return feature >= of_items; });
    return sample.features;
  };
  EXPECT_EQ(items(ask("u1,60")), items(ask("u1,")));
  // Records of another text are events for its later ones, and an entity may be new.
  const auto fresh = history_samples(
      *encoder->open(history_lines(table_of({{.user = "new", .at = 9, .products = {"p1"}},
                                             {.user = "new", .at = 8, .products = {"p2"}}}))));
  EXPECT_THAT(items(fresh[0]), SizeIs(2)) << "p2 in the bag and at the last place";
  EXPECT_THAT(items(fresh[1]), IsEmpty());
}

TEST(Histories, TheStateIsAllOfThem) {
  const Encoding options = history_options("time windows=3", "price = 'number'\n");
  const std::string text = table_of(past_records(4, 150)), other = table_of(past_records(5, 50));
  const auto encoder = ColumnsEncoder::fit(options, history_lines(text), {});
  const auto state = encoder->state();
  const auto restored = restore_encoder(state, "state");
  EXPECT_EQ(restored->state(), state);
  EXPECT_EQ(history_samples(*restored->open(history_lines(other))), history_samples(*encoder->open(history_lines(other))));
  testing::restore_damaged(state, 3000, [&](const Encoder& damaged, std::span<const std::byte> bytes) {
    if (encoder_options(SafetensorsFile(bytes, "state")).columns != options.columns) return;
    history_samples(*damaged.open(history_lines(other)));
  });
}

TEST(Histories, TimesAreDatesOrNumbers) {
  const auto fit = [](const std::string& rows) {
    return ColumnsEncoder::fit(history_options(), history_lines("product,user,at\n" + rows), {});
  };
  const std::string later = "b,x,2026-11-30T09:41\nc,x,2026-11-30T09:40:59Z\n";
  const auto dates = fit(later);
  EXPECT_THAT(label_names(dates->state(), "state"), ElementsAre("b", "c"));
  const auto samples = trained_on(*dates, "product,user,at\n" + later);
  EXPECT_EQ(samples[0].features[0], 1u) << "c came before";
  EXPECT_GE(samples[1].features[0], 6u) << "nothing came before";
  EXPECT_THAT(test::error_of([&] { fit(later + "b,x,17\n"); }),
              HasSubstr("data.csv:4: column 'at': the times before are dates, found '17'"));
  EXPECT_THAT(test::error_of([&] { fit("b,x,soon\n"); }), HasSubstr("expected a time"));
  EXPECT_THAT(test::error_of([&] { fit("b,x,1e999\n"); }), HasSubstr("expected a time"));
  // Seconds since 1970 and more digits than a float has.
  const std::string close = "b,x,1764490000001\nc,x,1764490000000\n";
  EXPECT_EQ(trained_on(*fit(close), "product,user,at\n" + close)[0].features[0], 1u);
}

}  // namespace
}  // namespace modelet::shard
