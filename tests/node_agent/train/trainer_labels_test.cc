// Ranks that have only the labels of their own neurons train as ranks that have all labels do.
#include <fstream>

#include "node_agent/train/data/label_selection.h"
#include "shard/data/store/prepared.h"
#include "tests/node_agent/train/trainer_harness.h"

namespace modelet::agent {
namespace {

using namespace testing;
using shard::NeuronRange;

TEST(LabelSelection, NeighboursAreJoined) {
  Experiment experiment;
  experiment.model.hidden = {32};
  experiment.modelets = {.hidden_columns = 16, .output_modelets = 5};
  const DataShape shape{.features = 10, .labels = 50};
  const auto ranges = [&](int rank, const std::vector<uint32_t>& owner) {
    const auto of_job = output_neurons(
        TrainJob{.experiment = experiment, .shape = shape, .owner = owner, .rank = rank, .size = 3});
    std::vector<std::pair<uint64_t, uint64_t>> pairs;
    for (const NeuronRange& range : of_job) pairs.emplace_back(range.begin, range.end);
    return pairs;
  };
  const std::vector<uint32_t> owner = {0, 2, 0, 0, 1, 0, 1};
  using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;
  EXPECT_EQ(ranges(0, owner), (Pairs{{0, 20}, {30, 40}}));
  EXPECT_EQ(ranges(1, owner), (Pairs{{20, 30}, {40, 50}}));
  EXPECT_EQ(ranges(2, owner), Pairs{});
  experiment.cluster.replicas = 3;  // of one rank each
  EXPECT_EQ(ranges(2, std::vector<uint32_t>(7, 0)), (Pairs{{0, 50}}));
}

class TrainerLabelsTest : public TrainerTest {
 protected:
  TrainerLabelsTest() {
    experiment_.data.validation = 0.2f;
    experiment_.train.epochs = 3;
    write_data({.rows_train = 300,
                .rows_test = 100,
                .features = 200,
                .labels = 60,
                .features_per_row = 12,
                .labels_per_row = 3,
                .noise = 0.1});
  }

  // Writes the training data with nonsense instead of the labels that the rank does not need. Adds the number
  // of these bytes to `left_out`.
  fs::path own_labels(const TrainJob& job) {
    std::string bytes = bytes_of(experiment_.data.train);
    const auto file = std::as_writable_bytes(std::span(bytes));
    const std::vector<std::byte> good(file.begin(), file.end());
    const auto section = shard::label_section(good, good.size(), "train");
    std::ranges::fill(file.subspan(section.begin), std::byte{0xee});
    left_out_ += section.end - section.begin;
    for (const auto& [begin, end] : shard::bytes_of_labels(good, output_neurons(job), "train")) {
      std::copy(good.begin() + static_cast<ptrdiff_t>(begin), good.begin() + static_cast<ptrdiff_t>(end),
                file.begin() + static_cast<ptrdiff_t>(begin));
      left_out_ -= end - begin;
    }
    return folder_.write("own-" + std::to_string(job.rank), bytes);
  }
  // What a run learned and reported, without times.
  static std::vector<json> results(const Outcome& outcome) {
    std::vector<json> found;
    for (const json& event : outcome.events)
      for (const char* key : {"loss", "validation", "p_at_1", "psp_at_1", "ndcg_at_5", "best_step"})
        if (event.contains(key)) found.push_back({event["event"], key, event[key]});
    return found;
  }

  uint64_t left_out_ = 0;
};

TEST_F(TrainerLabelsTest, TheLabelsOfItsNeuronsAreEnoughForARank) {
  for (const auto& [size, replicas] : {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 2}, {2, 2}})
    for (const Loss loss : all_values<Loss>()) {
      SCOPED_TRACE(std::to_string(size) + " ranks, " + std::to_string(replicas) + " replicas");
      experiment_.cluster.replicas = static_cast<uint32_t>(replicas);
      experiment_.model.loss = loss;
      left_out_ = 0;
      const Outcome whole = run("whole", {.size = size}),
                    own = run("own", {.size = size,
                                      .train_file = [this](const TrainJob&job) { return own_labels(job); }});
      EXPECT_FALSE(whole.of_kind("epoch").front().at("validation").empty());
      EXPECT_EQ(results(own), results(whole));
      EXPECT_EQ(left_out_ > 0, size > replicas);
      fs::remove_all(folder_ / "whole");
      fs::remove_all(folder_ / "own");
    }
}

// Held-out samples are judged by all of their labels, whichever rank holds the neurons.
TEST_F(TrainerLabelsTest, ValidationDoesNotDependOnRanks) {
  experiment_.model.loss = Loss::kSoftmax;
  const auto figures = [this](int size) {
    return run("ranks-" + std::to_string(size), {.size = size}).of_kind("epoch").front().at("validation");
  };
  const json alone = figures(1);
  for (const int size : {2, 3}) {
    const json found = figures(size);
    for (const auto& [name, value] : alone.items())
      EXPECT_NEAR(found.at(name).get<double>(), value.get<double>(), 0.02) << name << " of " << size;
  }
}

// The data has the same shape, because this program made it. Only the places of labels differ.
TEST_F(TrainerLabelsTest, ARunWithAnotherOrderOfLabelsIsNotContinued) {
  run("old", {.stop_after = 3});
  const fs::path checkpoint = shard::find_checkpoint(folder_ / "old");
  json index = json::parse(bytes_of(checkpoint / "index.json"));
  index["data_shape"]["label_seed"] = 5;
  std::ofstream(checkpoint / "index.json") << index.dump();
  EXPECT_THAT(failure(folder_ / "old"), HasSubstr("order of labels"));
}

// The labels come from other nodes, so they are checked like everything from outside.
TEST_F(TrainerLabelsTest, LabelsOfSamplesThatAreNotHeldOutAreRefused) {
  auto groups = make_groups(2);
  const auto open = [this](uint64_t begin, uint64_t end) {
    return shard::Dataset::open(experiment_.data.train, true, {.neurons = {{{begin, end}}}});
  };
  std::vector<shard::Dataset> data;
  data.push_back(open(0, 20));
  data.push_back(open(20, 60));
  const std::vector<uint32_t> rows[] = {{1, 5, 7}, {1, 5, 8}};
  std::vector<std::string> errors(2);
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    try {
      complete_labels(data[rank], rows[rank], group, {});
    } catch (const FormatError& error) {
      errors[rank] = error.what();
    }
  });
  EXPECT_THAT(errors, ::testing::Contains(HasSubstr("not held out")));
}

}  // namespace
}  // namespace modelet::agent
