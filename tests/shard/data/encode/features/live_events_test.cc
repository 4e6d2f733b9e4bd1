// Events after the training change what is known of their entities, and nothing else.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "shard/data/encode/columns_encoder.h"
#include "shard/data/encode/features/live_events.h"
#include "tests/error_of.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing::OwnedSample;

// A purchase of a user, for a sum that is no round number, and the same for equal purchases.
std::string purchase(Rng& rng, uint32_t first_day) {
  const uint32_t user = rng.below(8), day = first_day + rng.below(30), product = rng.below(6);
  return "u" + std::to_string(user) + "," + std::to_string(day) + "," + std::to_string((user * 131 + day * 17) % 1000) + "." +
         std::to_string(7 * day + product) + ",p" + std::to_string(product) + "\n";
}

std::string purchases(uint64_t seed, int count, uint32_t first_day) {
  Rng rng(seed);
  std::string text;
  for (int i = 0; i < count; ++i) text += purchase(rng, first_day);
  return text;
}

constexpr const char* kPurchaseHeader = "user,at,price,product\n";

LineReader purchase_lines(const std::string& rows, const std::string& header = kPurchaseHeader) {
  return {std::make_unique<std::stringbuf>(header + rows, std::ios::in), "data.csv"};
}

std::unique_ptr<ColumnsEncoder> buyers(const std::string& rows) {
  const Encoding options = parse_encoding(
      "[data]\nformat = 'columns'\n[sessions]\npositions = 2\nwindow = 4\n[table]\nbins = 4\n"
      "[columns]\nuser = 'entity'\nat = 'time windows=3,10'\nprice = 'number'\nproduct = 'target'\n",
      "test");
  return ColumnsEncoder::fit(options, purchase_lines(rows), {});
}

std::vector<OwnedSample> all_samples(SampleReader& reader) {
  std::vector<OwnedSample> samples;
  for (Sample sample; reader.next(sample);) samples.emplace_back(sample);
  for (OwnedSample& sample : samples) sample.labels.clear();
  return samples;
}

// Questions like the records of a file, without their labels.
std::vector<OwnedSample> asked_without_labels(const Encoder& encoder, const std::string& rows) {
  std::string questions;
  for (size_t at = 0; at < rows.size(); at = rows.find('\n', at) + 1)
    questions += rows.substr(at, rows.rfind(',', rows.find('\n', at)) - at) + "\n";
  return all_samples(*encoder.open_requests(purchase_lines(questions, "user,at,price\n")));
}

TEST(LiveEvents, AreAsInAFileToTheBit) {
  const std::string before = purchases(1, 200, 0), later = purchases(2, 100, 20);
  const auto of_file = buyers(before), live = buyers(before);
  const auto expected = all_samples(*of_file->open(purchase_lines(later)));
  EXPECT_NE(asked_without_labels(*live, later), expected) << "nothing has been told yet";
  // In parts, in another order, and some of it twice.
  std::vector<std::string> lines;
  for (size_t at = 0; at < later.size(); at = later.find('\n', at) + 1) lines.push_back(later.substr(at, later.find('\n', at) + 1 - at));
  std::ranges::reverse(lines);
  uint64_t added = 0;
  std::string part;
  for (size_t i = 0; i < lines.size(); ++i) {
    part += lines[i];
    if (i % 7 < 6 && i + 1 < lines.size()) continue;
    added += live->add_events(purchase_lines(part)).added;
    EXPECT_EQ(live->add_events(purchase_lines(part)).added, 0u);
    part.clear();
  }
  EXPECT_GT(added, 80u);
  EXPECT_EQ(asked_without_labels(*live, later), expected);
  EXPECT_EQ(all_samples(*live->open(purchase_lines(later))), expected);
  EXPECT_EQ(live->state(), of_file->state()) << "they are no part of the model";
  // What is kept of them says the same again.
  const auto again = buyers(before);
  EXPECT_EQ(again->add_events(purchase_lines(live->events(), "")).added, added);
  EXPECT_EQ(asked_without_labels(*again, later), expected);
  EXPECT_EQ(again->events(), live->events());
}

TEST(LiveEvents, NoQuestionSeesItsFutureOrOthers) {
  const auto encoder = buyers(purchases(1, 200, 0));
  const std::string questions = "u1,10,5,p1\nu1,40,5,p1\nu1,41,5,p1\nu2,50,5,p1\n";
  const auto before = asked_without_labels(*encoder, questions);
  EXPECT_EQ(encoder->add_events(purchase_lines("u1,40,7.5,p3\n")).added, 1u);
  const auto after = asked_without_labels(*encoder, questions);
  for (const size_t same : {0, 1, 3}) EXPECT_EQ(after[same], before[same]) << same;
  EXPECT_NE(after[2], before[2]);
}

// JSON Lines say of each record whether it has labels.
TEST(LiveEvents, AFileOfQuestionsNeedsNoTimes) {
  const auto encoder = buyers(purchases(1, 50, 0));
  encoder->add_events(purchase_lines("u1,99,1,p1\n"));
  const std::string question = "{\"user\": \"u1\", \"at\": null}\n";
  EXPECT_EQ(all_samples(*encoder->open(purchase_lines(question, ""))), all_samples(*encoder->open_requests(purchase_lines(question, ""))));
}

TEST(LiveEvents, AreAllRightOrNone) {
  const auto encoder = buyers(purchases(1, 50, 0));
  const auto refused = [&](const std::string& row) {
    return test::error_of([&] { encoder->add_events(purchase_lines("u1,40,1,p1\n" + row)); });
  };
  EXPECT_THAT(refused("u1,soon,1,p1\n"), HasSubstr("data.csv:3: column 'at': expected a time"));
  EXPECT_THAT(refused(",40,1,p1\n"), HasSubstr("data.csv:3: column 'user': is missing: an event has an entity"));
  EXPECT_THAT(refused("u1,,1,p1\n"), HasSubstr("column 'at': is missing: an event has a time"));
  EXPECT_EQ(encoder->events(), "");
  const NewEvents events = encoder->add_events(purchase_lines("u1,40,1,p1\nu1,41,1,new\n"));
  EXPECT_EQ(std::pair(events.added, events.unknown_labels), std::pair(uint64_t{1}, uint64_t{1}));
}

TEST(LiveEvents, AreKeptBeforeTheyAreKnown) {
  const auto encoder = buyers(purchases(1, 50, 0));
  const std::string rows = "u1,40,1.5,p1\nu1,41,2,p2\n", question = "u1,50,5,p1\n";
  const auto before = asked_without_labels(*encoder, question);
  const auto full = [](const std::string&) { throw Error("the disk is full"); };
  EXPECT_THAT(test::error_of([&] { encoder->add_events(purchase_lines(rows), full); }), HasSubstr("the disk is full"));
  EXPECT_EQ(asked_without_labels(*encoder, question), before);
  std::string kept;
  const auto keep = [&](const std::string& lines) { kept += lines; };
  EXPECT_EQ(encoder->add_events(purchase_lines(rows), keep).added, 2u);
  EXPECT_EQ(encoder->add_events(purchase_lines(rows + "u1,42,3,p3\n"), keep).added, 1u);
  EXPECT_EQ(kept, encoder->events()) << "each once";
}

TEST(LiveEvents, AreNotTooLong) {
  const auto encoder = buyers(purchases(1, 50, 0));
  EXPECT_THAT(test::error_of([&] { encoder->add_events(purchase_lines("u1,40,1,p1\nu1,41," + std::string(70000, '0') + "1,p1\n")); }),
              HasSubstr("data.csv:3: an event of 70"));
  EXPECT_EQ(encoder->events(), "");
}

// Questions with what their entity did, as JSON Lines, without labels.
std::string bringing(const std::string& question, const std::string& history) {
  return "{" + question + ", \"history\": " + history + "}\n";
}

TEST(BroughtHistories, AnswerAsAddedEventsAndAreNotKept) {
  const auto brought = buyers(purchases(1, 200, 0)), live = buyers(purchases(1, 200, 0));
  live->add_events(purchase_lines("u1,40,7.5,p3\nu1,45,2,p4\nu1,99,2,p5\n"));
  const std::string history =
      R"([{"at": 45, "price": 2, "product": "p4"}, {"user": "u1", "at": 40, "price": "7.5", "product": "p3"}, {"at": 99, "product": "p5"}])";
  const std::string question = R"("user": "u1", "at": 50, "price": 5)", no_history = "{" + question + "}\n";
  const auto expected = all_samples(*live->open_requests(purchase_lines(no_history, "")));
  const auto without = all_samples(*brought->open_requests(purchase_lines(no_history, "")));
  ASSERT_NE(expected, without);
  const auto asked = [&](const std::string& lines) { return all_samples(*brought->open_requests(purchase_lines(lines, ""))); };
  EXPECT_EQ(asked(bringing(question, history)), expected);
  EXPECT_EQ(asked(no_history), without) << "nothing is kept";
  EXPECT_EQ(brought->events(), "");
  for (const char* none : {"null", "[]"}) EXPECT_EQ(asked(bringing(question, none)), without) << none;
  // Beside events that were added, one of which it repeats.
  brought->add_events(purchase_lines("u1,40,7.5,p3\n"));
  EXPECT_EQ(asked(bringing(question, history)), expected);
  // As a row, in the order of the columns.
  EXPECT_EQ(all_samples(*brought->open_rows(CsvReader({{"50", "5", "u1", history}}, "rows"))), expected);
  // A new entity, and none.
  const auto as_new = asked(bringing(R"("user": "new", "at": 50, "price": 5)", R"([{"at": 45, "product": "p4"}])"));
  EXPECT_NE(as_new, asked("{\"user\": \"new\", \"at\": 50, \"price\": 5}\n"));
  EXPECT_EQ(asked(bringing(R"("at": 50, "price": 5)", R"([{"at": 45, "product": "p4"}])")), as_new);
}

// With labels, where records are events for each other.
TEST(BroughtHistories, AreOfOneRecordOfAFile) {
  const auto encoder = buyers(purchases(1, 200, 0));
  const std::string record = R"("user": "u1", "at": 50, "price": 5, "product": "p1")", other = R"({"user": "u1", "at": 60, "price": 5, "product": "p1"})";
  const auto lines = [&](const std::string& first) { return all_samples(*encoder->open(purchase_lines(first + other + "\n", ""))); };
  const auto plain = lines("{" + record + "}\n"), brought = lines(bringing(record, R"([{"at": 45, "product": "p4"}])"));
  ASSERT_THAT(brought, SizeIs(2));
  EXPECT_NE(brought[0], plain[0]);
  EXPECT_EQ(brought[1], plain[1]);
}

TEST(BroughtHistories, SayWhatIsWrong) {
  const auto encoder = buyers(purchases(1, 50, 0));
  const auto refused = [&](const std::string& history) {
    return test::error_of([&] { all_samples(*encoder->open_requests(purchase_lines(bringing("\"user\": \"u1\"", history), ""))); });
  };
  EXPECT_THAT(refused("3"), HasSubstr("data.csv:1: history: a list of earlier records is expected"));
  EXPECT_THAT(refused("[3]"), HasSubstr("each event is an object"));
  EXPECT_THAT(refused(R"([{"at": 1, "product": "p1"}, {"at": "soon", "product": "p1"}])"),
              HasSubstr("data.csv:1: history: event:2: column 'at': expected a time"));
  EXPECT_THAT(refused(R"([{"product": "p1"}])"), HasSubstr("an event has a time"));
  EXPECT_THAT(refused(R"([{"user": "u2", "at": 1, "product": "p1"}])"), HasSubstr("an event of 'u2', the question is about 'u1'"));
  std::string many = "[{\"at\": 1}";
  for (int i = 0; i < 1000; ++i) many += ",{\"at\": 1}";
  EXPECT_THAT(refused(many + "]"), HasSubstr("1001 events; the last 1000"));
}

LiveEvent live_event(const std::string& entity, double time) { return {{entity, time, {1}, {}}, entity + std::to_string(time)}; }

TEST(LiveEvents, AreBounded) {
  EventLog known;
  known.add(known.entities().insert("a"), 1, std::vector<uint32_t>{1}, {});
  known.sort();
  LiveEvents events(known, {.of_entity = 3, .together = 7});
  EXPECT_EQ(events.add({live_event("a", 2), live_event("a", 2), live_event("a", 1)}), 1u);
  EXPECT_EQ(events.of("a")->size(), 2u);
  events.add({live_event("a", 4), live_event("a", 3)});
  EXPECT_EQ(events.of("a")->size(), 3u);
  EXPECT_EQ(events.of("a")->time(0), 2);
  events.add({live_event("a", 5)});
  EXPECT_EQ(events.of("a")->time(0), 3);
  EXPECT_EQ(events.size(), 3u) << "that of time 2 is forgotten";
  events.add({live_event("b", 1), live_event("b", 2), live_event("c", 1)});
  events.add({live_event("a", 6)});
  EXPECT_NE(events.of("b"), nullptr);
  events.add({live_event("c", 2), live_event("c", 3)});
  EXPECT_EQ(events.of("b"), nullptr) << "was told of longest ago";
  EXPECT_EQ(events.of("a")->size() + events.of("c")->size(), 6u);
  EXPECT_EQ(events.of("d"), nullptr);
}

}  // namespace
}  // namespace modelet::shard
