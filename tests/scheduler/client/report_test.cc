// The reporter: what people and programs see of the events of a run.
#include "scheduler/client/report.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/system/file.h"
#include "shard/data/store/dataset.h"

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
    Reporter reporter(as_json, machines, people, Terminal{.width = terminal ? size_t{120} : size_t{0}});
    for (const json& event : events) reporter.handle(event);
  }
  return {machines.str(), people.str()};
}

json without_time(json event) {
  EXPECT_EQ(event.at("time").get<std::string>().size(), std::string("2026-11-22T23:46:44.123Z").size());
  event.erase("time");
  return event;
}

TEST(Reporter, AnEventKeepsTheTimeThatItHas) {
  json event = kProgress;
  event["time"] = "2026-11-22T23:46:44.123Z";
  EXPECT_EQ(json::parse(show(true, true, {event}).machines), event);
}

TEST(Reporter, JsonIsPassedOnLineByLine) {
  const Shown shown = show(true, true, {kStarted, kProgress});
  std::istringstream lines(shown.machines);
  std::string first, second;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_EQ(without_time(json::parse(first)), kStarted);
  EXPECT_EQ(without_time(json::parse(second)), kProgress);
  EXPECT_EQ(shown.people, "");
}

TEST(Reporter, FiguresThatDoNotExistAreLeftOut) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const Shown shown =
      show(false, false, {{{"event", "epoch"}, {"loss", 1.5}, {"p_at_1", 0.5}, {"auc", none}}});
  EXPECT_THAT(shown.people, HasSubstr("P@1 0.5000"));
  EXPECT_THAT(shown.people, Not(HasSubstr("AUC")));
}

TEST(Reporter, TotalsThatWereNotToldAreLeftOut) {
  const json epoch = {{"event", "epoch"}, {"epoch", 2}, {"step", 200}, {"loss", 3.5}, {"train_seconds", 1}};
  const std::string late = show(false, false, {kProgress, epoch}).people;
  EXPECT_THAT(late, HasSubstr("epoch 2  step 200  "));
  EXPECT_THAT(late, HasSubstr("epoch 2  loss 3.5000"));
  EXPECT_THAT(show(false, false, {kStarted, epoch}).people, HasSubstr("epoch 2/8  loss"));
}

TEST(Reporter, PlainLinesWithoutATerminal) {
  const Shown shown = show(false, false, {kStarted, kProgress});
  EXPECT_EQ(shown.machines, "");
  for (const char* text :
       {"epoch 2/8", "step 200/800", "25%", "12346 samples/s", "ETA 1:15", "loss 3.5000", "2.0 KiB/step"})
    EXPECT_THAT(shown.people, HasSubstr(text));
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

TEST(Reporter, TellsHowFarThePreparationOfTextIs) {
  std::ostringstream machines, people;
  Reporter reporter(true, machines, people, {});
  const auto tell = report_preparing(reporter, "data/train.txt", 0);
  tell(0, 2 << 20, 0.25);
  tell(0, 4 << 20, 0.5);
  tell(10, 1 << 20, 0.125);  // a second pass, with a speed of its own
  tell(80, 8 << 20, 1);      // the end is not reported; the next event shows it
  std::istringstream lines(machines.str());
  std::vector<json> events;
  for (std::string line; std::getline(lines, line);) events.push_back(json::parse(line));
  ASSERT_EQ(events.size(), 3u);
  for (const json& event : events) {
    EXPECT_EQ(event["event"], "preparing");
    EXPECT_EQ(event["file"], "data/train.txt");
    EXPECT_GT(event["bytes_per_second"], 0);
    EXPECT_GE(event["eta_seconds"], 0);
  }
  EXPECT_EQ(events[1]["done"], 0.5);
  EXPECT_EQ(events[1]["bytes"], 4 << 20);
  EXPECT_EQ(events[2]["rows"], 10);
  EXPECT_LT(events[2]["eta_seconds"], 10) << "of the pass alone";

  const Shown shown = show(false, true,
                           {{{"event", "preparing"},
                             {"file", "data/train.txt"},
                             {"rows", 10},
                             {"bytes", 3 << 20},
                             {"done", 0.5},
                             {"bytes_per_second", 1048576.0},
                             {"eta_seconds", 3.0}}});
  EXPECT_THAT(shown.people, HasSubstr("#####..."));
  EXPECT_THAT(shown.people, HasSubstr("prepares train.txt  50%  3.0 MiB  1.0 MiB/s  ETA 0:03"));
  EXPECT_THAT(show(false, false,
                   {{{"event", "preparing"},
                     {"file", "folder"},
                     {"rows", 10},
                     {"bytes", 0},
                     {"done", 0.5},
                     {"eta_seconds", 3.0}}})
                  .people,
              HasSubstr("prepares folder  50%  10 rows  ETA 0:03"))
      << "data that is made";
}

TEST(Reporter, ThePreparationOfATextTellsHowFarItIs) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "report_test_preparing";
  std::filesystem::create_directories(folder);
  const std::string train = (folder / "train.txt").string();
  {
    std::ofstream text(train);
    for (int row = 0; row < 20000; ++row) text << "__label__" << row % 7 << " words of a line\n";
  }
  std::ostringstream machines, people;
  Reporter reporter(true, machines, people, {});
  shard::prepare_training_data(train, Normalize::kNone, {}, folder / "train.mlt",
                               report_preparing(reporter, train, 0));
  std::istringstream lines(machines.str());
  size_t fitted = 0, prepared = 0;
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line);
    EXPECT_EQ(event["file"], train);
    EXPECT_GT(event["bytes"], 0);
    ++(event["rows"] == 0 ? fitted : prepared);
  }
  EXPECT_GT(fitted, 0u);
  EXPECT_GT(prepared, 0u);
}

TEST(Reporter, TellsHowFarAnEvaluationIs) {
  EXPECT_THAT(
      show(false, true,
           {{{"event", "evaluating"},
             {"step", 10},
             {"data", "test"},
             {"rows", 512},
             {"total_rows", 1024},
             {"eta_seconds", 61.0}}})
          .people,
      testing::AllOf(HasSubstr("#####..."), HasSubstr("evaluates test data  512 of 1024 samples  ETA 1:01")));
  EXPECT_THAT(
      show(false, false, {{{"event", "preparing"}, {"node", "office-17"}, {"file", "a/train.txt"}}}).people,
      HasSubstr("office-17 prepares train.txt"));
}

TEST(Reporter, NothingIsToldOfShortPreparations) {
  std::ostringstream machines, people;
  Reporter reporter(true, machines, people, {});
  report_preparing(reporter, "data/train.txt", 1e6)(10, 10, 0.5);
  EXPECT_EQ(machines.str(), "");
}

TEST(Reporter, LinesFitTheTerminal) {
  const json epoch = {{"event", "epoch"}, {"epoch", 2},    {"step", 200},   {"loss", 3.4},
                      {"p_at_1", 0.5},    {"p_at_3", 0.4}, {"p_at_5", 0.3}, {"train_seconds", 61}};
  const json finished = {
      {"event", "finished"}, {"p_at_1", 0.5}, {"steps", 200}, {"checkpoint", std::string(100, 'c')}};
  for (const size_t columns : {20, 40, 60, 80, 200}) {
    std::ostringstream machines, people;
    Reporter reporter(false, machines, people, Terminal{.width = columns});
    for (const json& event : {kStarted, epoch, finished}) reporter.handle(event);
    std::istringstream lines(people.str());
    size_t epochs = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.find("ccc") == std::string::npos) {
        EXPECT_LE(line.size(), std::max<size_t>(columns, 34)) << line;
      }
      epochs += line.starts_with("epoch") ? 1 : 0;
    }
    EXPECT_EQ(epochs, 1u);
    EXPECT_THAT(people.str(), HasSubstr(columns < 40 ? "epoch 2/8" : "epoch 2/8  loss 3.4000"));
    EXPECT_THAT(people.str(), HasSubstr(std::string(100, 'c'))) << "what will be copied is whole";
  }
}

TEST(Reporter, ColoursOnlyWhereTheyAreWanted) {
  for (const bool colour : {false, true}) {
    std::ostringstream machines, people;
    Reporter reporter(false, machines, people, Terminal{.width = 80, .colour = colour});
    reporter.handle({{"event", "interrupted"}, {"step", 5}});
    EXPECT_EQ(people.str(), colour ? "\x1b[33minterrupted at step 5\x1b[0m\n" : "interrupted at step 5\n");
  }
}

TEST(Reporter, SaysWhichFiguresAreOfHeldOutSamples) {
  const json epoch = {
      {"event", "epoch"}, {"epoch", 2}, {"validation", {{"p_at_1", 0.625}, {"p_at_5", 0.25}}}};
  const json finished = {
      {"event", "finished"}, {"p_at_1", 0.5}, {"best_step", 200}, {"validation", {{"p_at_1", 0.625}}}};
  const Shown shown = show(false, false, {kStarted, epoch, kProgress, finished});
  for (const char* text : {"validation  P@1 0.6250  P@5 0.2500", "ETA 1:15  loss 3.5000  P@1 0.6250",
                           "best by validation: step 200", "validation  P@1 0.6250  test  P@1 0.5000"})
    EXPECT_THAT(shown.people, HasSubstr(text));
}

TEST(Reporter, ALogGetsEveryEventAndKeepsWhatItHas) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "report_test/run";
  std::filesystem::remove_all(folder);
  for (const bool as_json : {false, true}) {
    std::ostringstream machines, people;
    Reporter reporter(as_json, machines, people, {});
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
  for (std::string line; std::getline(file, line);) events.push_back(without_time(json::parse(line)));
  EXPECT_THAT(events, testing::ElementsAre(kStarted, kProgress, kStarted, kProgress));
}

// The caller that started the run stops it then. Everything else is still reported.
TEST(Reporter, ALogThatCannotBeWrittenIsKeptInMind) {
  std::ostringstream machines, people;
  Reporter unmade(false, machines, people, {});
  unmade.record_in("/dev/null/run", "");
  unmade.require_success();
  unmade.handle(kStarted);
  EXPECT_NE(unmade.failure(), "");
  EXPECT_THAT(people.str(), HasSubstr(unmade.failure())) << "told at once";
  EXPECT_THAT(people.str(), HasSubstr("demo"));
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "report_test_full";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::filesystem::create_symlink("/dev/full", folder / "log.jsonl");
  Reporter full(false, machines, people, {});
  full.record_in(folder, "");
  full.handle(kStarted);
  full.handle({{"event", "checkpoint"}, {"step", 3}, {"path", "somewhere"}});
  try {
    full.require_success();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("log.jsonl"), HasSubstr("--resume somewhere")));
  }
}

TEST(Reporter, AReaderThatIsGoneIsKeptInMind) {
  std::ostringstream people;
  std::ofstream machines("/dev/full");
  Reporter reporter(true, machines, people, {});
  reporter.handle(kStarted);
  EXPECT_NE(reporter.failure(), "");
  EXPECT_THROW(reporter.require_success(), Error);
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
