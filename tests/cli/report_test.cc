// The reporter: what people and machines see of a run's events.
#include "scheduler/cli/report.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"

namespace modelet::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const json kStarted = {{"event", "started"}, {"run", "demo"},   {"epochs", 8},  {"steps", 800},
                       {"parameters", 1000}, {"nodes", 2},      {"threads", 1}, {"features", 10},
                       {"labels", 20},       {"train_rows", 30}};
const json kProgress = {{"event", "progress"},
                        {"step", 200},
                        {"epoch", 2},
                        {"loss", 3.5},
                        {"samples_per_second", 12345.6},
                        {"eta_seconds", 75},
                        {"bytes_sent_per_node_per_step", 2048}};

struct Shown {
  std::string machines, people;
};

Shown show(bool as_json, bool terminal, const std::vector<json>& events) {
  std::ostringstream machines, people;
  {
    Reporter reporter(as_json, machines, people, terminal);
    for (const json& event : events) reporter.handle(event);
  }
  return {machines.str(), people.str()};
}

TEST(Reporter, JsonIsPassedOnLineByLine) {
  const Shown shown = show(true, true, {kStarted, kProgress});
  std::istringstream lines(shown.machines);
  std::string first, second;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_EQ(json::parse(first), kStarted);
  EXPECT_EQ(json::parse(second), kProgress);
  EXPECT_EQ(shown.people, "");
}

TEST(Reporter, FiguresThatDoNotExistAreLeftOut) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const Shown shown =
      show(false, false, {{{"event", "epoch"}, {"loss", 1.5}, {"p_at_1", 0.5}, {"auc", none}}});
  EXPECT_THAT(shown.people, HasSubstr("P@1 0.5000"));
  EXPECT_THAT(shown.people, Not(HasSubstr("AUC")));
}

TEST(Reporter, PlainLinesWithoutATerminal) {
  const Shown shown = show(false, false, {kStarted, kProgress});
  EXPECT_EQ(shown.machines, "");
  for (const char* part :
       {"epoch 2/8", "step 200/800", "25%", "12346 samples/s", "ETA 1:15", "loss 3.5000", "2.0 KiB/step"})
    EXPECT_THAT(shown.people, HasSubstr(part));
  EXPECT_THAT(shown.people, Not(HasSubstr("\r")));
}

TEST(Reporter, OneLineIsRedrawnOnATerminal) {
  const json epoch = {{"event", "epoch"}, {"epoch", 2},    {"step", 200},
                      {"loss", 3.4},      {"p_at_1", 0.5}, {"train_seconds", 61}};
  const Shown shown = show(false, true, {kStarted, kProgress, kProgress, epoch, kProgress});
  EXPECT_EQ(std::count(shown.people.begin(), shown.people.end(), '\n'), 3)
      << "start, epoch, and the end of the progress line";
  EXPECT_THAT(shown.people, HasSubstr("P@1 0.5000"));
}

TEST(Reporter, DataOnItsWayHasAProgressLineToo) {
  json event = {{"event", "fetching"},    {"node", "a"},
                {"data", "train"},        {"bytes", 3 << 20},
                {"total_bytes", 6 << 20}, {"bytes_per_second", 1048576.0},
                {"eta_seconds", 3.0}};
  EXPECT_EQ(show(false, false, {event}).people,
            "a fetches train data  3.0 MiB of 6.0 MiB  1.0 MiB/s  ETA 0:03\n");
  EXPECT_THAT(show(false, true, {event}).people, HasSubstr("#####....."));
  event["event"] = "sending";
  event.erase("node");
  EXPECT_THAT(show(false, false, {event}).people, HasSubstr("sends train data"));
}

TEST(Reporter, SaysWhichFiguresAreOfHeldOutSamples) {
  const json epoch = {
      {"event", "epoch"}, {"epoch", 2}, {"validation", {{"p_at_1", 0.625}, {"p_at_5", 0.25}}}};
  const json finished = {
      {"event", "finished"}, {"p_at_1", 0.5}, {"best_step", 200}, {"validation", {{"p_at_1", 0.625}}}};
  const Shown shown = show(false, false, {kStarted, epoch, kProgress, finished});
  for (const char* part : {"validation  P@1 0.6250  P@5 0.2500", "ETA 1:15  loss 3.5000  P@1 0.6250",
                           "best by validation: step 200", "validation  P@1 0.6250  test  P@1 0.5000"})
    EXPECT_THAT(shown.people, HasSubstr(part));
}

TEST(Reporter, ALogGetsEveryEventAndKeepsWhatItHas) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "report_test/run";
  std::filesystem::remove_all(folder);
  for (const bool as_json : {false, true}) {
    std::ostringstream machines, people;
    Reporter reporter(as_json, machines, people, false);
    const std::string experiment = as_json ? "second" : "first";
    reporter.record_in(folder, experiment);
    reporter.handle({{"event", "failed"}, {"error", "refused before it began"}});
    EXPECT_EQ(std::filesystem::exists(folder), as_json) << "a refused run leaves no trace";
    if (as_json) {
      EXPECT_EQ(read_text_file(folder / "experiment.toml"), "first");
    }
    reporter.handle(kStarted);
    EXPECT_EQ(read_text_file(folder / "experiment.toml"), experiment);
    reporter.handle(kProgress);
  }
  std::ifstream file(folder / "log.jsonl");
  std::vector<json> events;
  for (std::string line; std::getline(file, line);) events.push_back(json::parse(line));
  EXPECT_THAT(events, testing::ElementsAre(kStarted, kProgress, kStarted, kProgress));
}

TEST(Reporter, ALogThatCannotBeWrittenIsAnError) {
  std::ostringstream machines, people;
  Reporter reporter(false, machines, people, false);
  reporter.record_in("/dev/null/run", "");
  EXPECT_THROW(reporter.handle(kStarted), Error);
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "report_test_full";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::filesystem::create_symlink("/dev/full", folder / "log.jsonl");
  reporter.record_in(folder, "");
  EXPECT_THROW(reporter.handle(kStarted), Error);
}

TEST(Reporter, StrangeEventsDoNoHarm) {
  const json not_a_number =
      json::parse(R"({"event":"progress","loss":null,"step":"many","eta_seconds":-5,"epoch":1e300})");
  const Shown shown = show(false, false,
                           {json::array({1, 2}),
                            json(nullptr),
                            {{"event", 5}},
                            {{"event", "future"}},
                            {{"event", "epoch"}, {"validation", 5}},
                            not_a_number});
  EXPECT_THAT(shown.people, HasSubstr("loss ?"));
}

TEST(Reporter, NamesANodeThatIsNotablySlower) {
  const auto nodes = [](std::initializer_list<double> seconds) {
    json event = kProgress;
    for (const double s : seconds)
      event["nodes"].push_back(
          {{"node", "n" + std::to_string(event["nodes"].size())}, {"compute_seconds", s}});
    return show(false, false, {kStarted, event}).people;
  };
  EXPECT_THAT(nodes({1, 1.5, 1}), HasSubstr("slowest n1 +50 %"));
  EXPECT_THAT(nodes({1, 1.1, 1}), Not(HasSubstr("slowest")));
  EXPECT_THAT(nodes({0, 0}), Not(HasSubstr("slowest")));
  json odd = kProgress;
  odd["nodes"] = json::parse(R"([7, null, {"node": 3, "compute_seconds": "x"}])");
  EXPECT_THAT(show(false, false, {kStarted, odd}).people, Not(HasSubstr("slowest")));
}

}  // namespace
}  // namespace modelet::cli
