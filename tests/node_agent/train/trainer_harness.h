// What the tests of Trainer share: small data, an experiment, and whole runs of the experiment on ranks in
// this process.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/clock.h"
#include "node_agent/train/trainer.h"
#include "shard/modelet/checkpoint.h"
#include "shard/synth/synth.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {

namespace fs = std::filesystem;
using nlohmann::json;
using shard::testing::bytes_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

struct Outcome {
  std::vector<json> events;
  bool interrupted = false;

  std::vector<json> of_kind(const std::string& kind) const {
    std::vector<json> found;
    for (const json& event : events)
      if (event.at("event") == kind) found.push_back(event);
    return found;
  }
  // The losses of all steps, if the experiment logs each step.
  std::vector<double> losses() const {
    std::vector<double> losses;
    for (const json& event : of_kind("progress")) losses.push_back(event.at("loss"));
    return losses;
  }
  fs::path checkpoint() const { return events.back().at("checkpoint").get<std::string>(); }
};

// A clock on which each step, and each look at the clock, takes a fixed number of seconds. Evaluations and
// checkpoints take no time.
class StepClock final : public Clock {
 public:
  explicit StepClock(double seconds_per_step, double seconds_per_look = 0)
      : seconds_per_step_(seconds_per_step), seconds_per_look_(seconds_per_look) {}
  double now() const override {
    const double steps = trainer == nullptr ? 0 : seconds_per_step_ * double(trainer->step());
    return steps + seconds_per_look_ * double(looks_++) + slept_;
  }
  void sleep(double seconds) const override {
    Clock::sleep(seconds);
    slept_ += seconds;
  }
  const Trainer* trainer = nullptr;  // whose steps are counted

 private:
  const double seconds_per_step_, seconds_per_look_;
  mutable uint64_t looks_ = 0;
  mutable double slept_ = 0;
};

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    // 300 samples are nine batches of 32 and one of 12.
    write_data({.rows_train = 300,
                .rows_test = 100,
                .features = 200,
                .labels = 60,
                .features_per_row = 12,
                .labels_per_row = 1.5,
                .noise = 0.1});
    experiment_.model.hidden = {32};
    experiment_.modelets = {.hidden_columns = 16, .output_modelets = 3};
    experiment_.sampling.uniform = 20;
    experiment_.sampling.tables = 8;
    experiment_.sampling.bits = 4;
    experiment_.sampling.rehash_every = 5;
    experiment_.train.epochs = 2;
    experiment_.train.batch = 32;
    experiment_.train.learning_rate = 0.02f;
    experiment_.train.log_every = 1;
    experiment_.exchange.codec = CodecKind::kNone;
  }

  void write_data(const shard::SynthOptions& options) {
    shard::write_synth(options, folder_.path(), false);
    experiment_.data.train = folder_ / "train.mlt";
    experiment_.data.test = folder_ / "test.mlt";
    shape_ = shard::describe_shape(shard::Dataset::open(experiment_.data.train),
                                   shard::Dataset::open(experiment_.data.test));
  }

  // XMC text as the training and the test data.
  void prepare(const std::string& samples) {
    std::ofstream(folder_ / "samples.txt") << samples;
    for (const std::string& file : {experiment_.data.train, experiment_.data.test})
      shard::prepare_data(folder_ / "samples.txt", Normalize::kNone, {}, file);
    shape_ = shard::describe_shape(shard::Dataset::open(experiment_.data.train),
                                   shard::Dataset::open(experiment_.data.test));
  }

  // If `stop_after` > 0, rank `stopper` is asked to stop when that step is reported. `dies_at` names an event
  // with which rank 0 dies: nothing that it does afterwards has an effect. The folder of the run is folder_ /
  // name.
  struct Options {
    int size = 1;
    unsigned threads = 1;
    fs::path resume;
    uint64_t stop_after = 0;
    int stopper = 0;
    std::function<bool(const json&)> stop_at = {};  // the same, when this event is reported
    uint64_t others_wait_for = 0;                   // steps that rank 0 makes before the others begin
    std::string dies_at = {};                       // "epoch 10"
    std::function<fs::path(const TrainJob&)> train_file = {};  // for each rank
    std::function<void(const json&)> on_event = {};
    double seconds_per_step = 0, seconds_per_look = 0;
    const SamplesInMemory* in_memory = nullptr;
    std::function<const SampleSource*(const TrainJob&)> samples = {};  // for each rank
    bool other_samples = false;
    uint32_t former_groups = 0;
    std::function<void(int rank)> before_round = {};
  };
  struct Died : Error {
    using Error::Error;
  };
  Outcome run(const std::string& name, const Options& options) const {
    auto groups = make_groups(options.size);
    std::vector<std::unique_ptr<Trainer>> trainers;
    for (int rank = 0; rank < options.size; ++rank) {
      TrainJob job{.run = name,
                   .experiment = experiment_,
                   .shape = shape_,
                   .owner = round_robin(experiment_, shape_, options.size / replicas()),
                   .rank = rank,
                   .size = options.size,
                   .threads = options.threads,
                   .out = folder_ / name,
                   .resume = options.resume,
                   .in_memory = options.in_memory,
                   .other_samples = options.other_samples,
                   .snapshots = {.retry_seconds = 0}};
      job.former_groups = options.former_groups;
      if (options.before_round) job.before_round = [&options, rank] { options.before_round(rank); };
      if (options.train_file) job.train_file = options.train_file(job);
      if (options.samples) job.samples = options.samples(job);
      auto clock = std::make_unique<StepClock>(options.seconds_per_step, options.seconds_per_look);
      StepClock& of_steps = *clock;
      trainers.push_back(std::make_unique<Trainer>(std::move(job), std::move(clock)));
      of_steps.trainer = trainers.back().get();
      trainers.back()->prepare();
    }
    Outcome result;
    std::atomic<int> interrupted = 0;
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      const EventSink sink = [&](const json& event) {
        EXPECT_EQ(group.rank(), 0) << "only rank 0 reports";
        if (!options.dies_at.empty() && event.contains("step") &&
            event.at("event").get<std::string>() + " " + event.at("step").dump() == options.dies_at)
          throw Died("at " + options.dies_at);
        result.events.push_back(event);
        if (options.on_event) options.on_event(event);
        if ((options.stop_after > 0 && event["event"] == "progress" && event["step"] == options.stop_after) ||
            (options.stop_at && options.stop_at(event)))
          trainers[static_cast<size_t>(options.stopper)]->request_stop();
      };
      while (group.rank() > 0 && trainers[0]->step() < options.others_wait_for) std::this_thread::yield();
      try {
        trainers[static_cast<size_t>(group.rank())]->run(group, sink);
      } catch (const Interrupted&) {
        ++interrupted;
      } catch (const Died&) {
      }
    });
    EXPECT_TRUE(interrupted == 0 || interrupted == options.size) << "ranks stop together";
    result.interrupted = interrupted > 0;
    return result;
  }
  Outcome run(const std::string& name) const { return run(name, Options{}); }
  int replicas() const { return static_cast<int>(experiment_.cluster.replicas); }

  // The text of the error that resuming from a folder throws.
  std::string failure(const fs::path& resume) const {
    try {
      run("fails", {.resume = resume});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  std::vector<fs::path> checkpoints(const std::string& name) const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_ / name / "checkpoints"))
      found.push_back(entry.path().filename());
    std::ranges::sort(found);
    return found;
  }

  void expect_same_modelets(const fs::path& a, const fs::path& b) const {
    const ModeletSpec first = partition_model(experiment_, shape_)[0];
    ASSERT_TRUE(fs::exists(a / (first.name() + ".safetensors"))) << a;
    for (const ModeletSpec& spec : partition_model(experiment_, shape_)) {
      const std::string file = spec.name() + ".safetensors";
      EXPECT_TRUE(bytes_of(a / file) == bytes_of(b / file)) << file << " differs";
    }
  }

  TemporaryFolder folder_;
  Experiment experiment_;
  DataShape shape_;
};

}  // namespace modelet::agent::testing
