#include "node_agent/train/labels/change_labels.h"

#include <map>

#include "node_agent/train/local_run.h"
#include "node_agent/train/towers.h"
#include "node_agent/train/train.h"
#include "shard/data/batch/split.h"
#include "shard/inference/model.h"
#include "tests/error_of.h"
#include "tests/node_agent/train/trainer_harness.h"

namespace modelet::agent::testing {
namespace {

using test::error_of;

// Labels with words of their own, in samples that also have words of no label. A model learns the first ones.
class ChangeLabelsTest : public TrainerTest {
 protected:
  static constexpr uint32_t kLabels = 16, kKnown = 12, kWords = 5, kCommon = 20;

  ChangeLabelsTest() {
    experiment_.model.loss = Loss::kSigmoid;
    experiment_.model.centroids = true;
    experiment_.model.classifiers = 0.5f;
    experiment_.sampling.uniform = 6;
    experiment_.train.epochs = 6;
  }

  static constexpr uint32_t features() { return kLabels * kWords + kCommon; }
  static std::vector<uint32_t> words_of(uint32_t label, uint64_t number) {
    Rng rng(7, {label, number});
    std::vector<uint32_t> words;
    for (uint32_t word = 0; word < kWords; ++word)
      if (rng.below(3) > 0) words.push_back(label * kWords + word);
    for (int i = 0; i < 3; ++i) words.push_back(kLabels * kWords + rng.below(kCommon));
    std::ranges::sort(words);
    return words;
  }
  // XMC text of samples of labels [first, last), `each` of every label.
  std::string xmc(uint32_t labels, uint32_t first, uint32_t last, uint32_t each, uint64_t from = 0) const {
    std::string lines;
    for (uint64_t number = from; number < from + each; ++number)
      for (uint32_t label = first; label < last; ++label) {
        lines += std::to_string(label);
        std::map<uint32_t, int> counted;
        for (const uint32_t word : words_of(label, number)) ++counted[word];
        for (const auto& [word, count] : counted) lines += ' ' + std::to_string(word) + ':' + std::to_string(count);
        lines += '\n';
      }
    return std::to_string(each * (last - first)) + ' ' + std::to_string(features()) + ' ' + std::to_string(labels) + '\n' + lines;
  }
  fs::path file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  // Trains on the known labels, and returns the folder of the run.
  fs::path trained() {
    prepare(xmc(kKnown, 0, kKnown, 20));
    return train("run");
  }
  fs::path train(const std::string& name, const fs::path& resume = {}) const {
    TrainJob job = job_of_one_node(name, experiment_, shape_);
    job.threads = 1;
    job.out = folder_ / name;
    job.resume = resume;
    LocalRun(job).run([](const json&) {});
    return job.out;
  }
  // The share of the samples of labels [first, last) whose best label is theirs.
  double found(const shard::Model& model, uint32_t first, uint32_t last, shard::SearchMode mode = shard::SearchMode::kDense) const {
    const shard::Dataset data = shard::load_queries(file("test.txt", xmc(kLabels, first, last, 10, 100)), Normalize::kNone, {});
    size_t right = 0;
    for (size_t row = 0; row < data.rows(); ++row)
      right += model.predict(data.sample(row), 1, mode).at(0).label == data.sample(row).labels[0];
    return static_cast<double>(right) / static_cast<double>(data.rows());
  }
  // [label] scores of a sample.
  static std::map<uint32_t, float> scores(const shard::Model& model, const shard::Sample& sample) {
    std::map<uint32_t, float> scores;
    for (const shard::ScoredLabel& label : model.predict(sample, model.shape().labels)) scores[label.label] = label.score;
    return scores;
  }
  static AddOptions only_means() {
    AddOptions options;
    options.fit = false;
    return options;
  }
};

TEST_F(ChangeLabelsTest, NewLabelsAreFoundAndOthersKeepTheirScores) {
  const fs::path run = trained();
  const shard::Model before(run);
  EXPECT_GT(found(before, 0, kKnown), 0.9);
  const fs::path samples = file("new.txt", xmc(kLabels, kKnown, kLabels, 3));
  const ChangedLabels changed = add_labels(run, samples, {});
  EXPECT_EQ(changed.labels, kLabels);
  EXPECT_EQ(changed.changed, kLabels - kKnown);
  EXPECT_EQ(changed.samples, 3 * (kLabels - kKnown));
  EXPECT_EQ(changed.background, 20 * kKnown);

  const shard::Model after(run);
  EXPECT_EQ(after.folder(), changed.checkpoint);
  EXPECT_EQ(after.step(), before.step() + 1);
  EXPECT_GT(found(after, kKnown, kLabels), 0.9);
  EXPECT_GT(found(after, 0, kKnown), 0.9);
  const shard::Dataset data = shard::Dataset::open(experiment_.data.test);
  for (size_t row = 0; row < 20; ++row) {
    const auto now = scores(after, data.sample(row));
    for (const auto& [label, score] : scores(before, data.sample(row)))
      EXPECT_NEAR(now.at(label), score, 1e-4 * std::max(1.0f, std::abs(score))) << label;
  }
  EXPECT_EQ(after.label_counts()[kKnown], 3u);
  EXPECT_EQ(after.label_counts()[0], before.label_counts()[0]);
}

TEST_F(ChangeLabelsTest, AMeanSampleIsEnoughToBeFoundAtOnce) {
  const fs::path run = trained();
  const ChangedLabels changed = add_labels(run, file("new.txt", xmc(kLabels, kKnown, kLabels, 1)), only_means());
  EXPECT_EQ(changed.background, 0u);
  const shard::Model model(run);
  EXPECT_GT(found(model, kKnown, kLabels), 0.6);
  EXPECT_GT(found(model, 0, kKnown), 0.9);
}

// A softmax model, whose labels compete, with hash tables.
TEST_F(ChangeLabelsTest, WhateverBelongsToANeuronMovesWithIt) {
  experiment_.model.loss = Loss::kSoftmax;
  experiment_.model.classifiers = 0;
  experiment_.sampling.mode = SamplingMode::kLsh;
  experiment_.sampling.retrieval = RetrievalKind::kTables;
  const fs::path run = trained();
  add_labels(run, file("new.txt", xmc(kLabels, kKnown, kLabels, 3)), {});
  EXPECT_GT(found(shard::Model(run), 0, kKnown), 0.9);
  EXPECT_GT(found(shard::Model(run), kKnown, kLabels), 0.5) << "three samples of each were seen";

  // With samples of all labels, training goes on.
  const uint64_t step = shard::Model(run).step();
  prepare(xmc(kLabels, 0, kLabels, 20));
  experiment_.train.epochs = 30;
  EXPECT_THAT(error_of([&] { train("run", run); }), HasSubstr("samples")) << "these are others";
  EXPECT_EQ(shard::Model(run).step(), step);
}

// Samples of label 1 look like nothing that the model knows of it.
TEST_F(ChangeLabelsTest, AModelLearnsFromSamplesAndForgetsNothing) {
  for (const Loss loss : {Loss::kSigmoid, Loss::kSoftmax}) {
    experiment_.model.loss = loss;
    experiment_.model.classifiers = loss == Loss::kSigmoid ? 0.5f : 0;
    const std::string name = loss == Loss::kSigmoid ? "sigmoid" : "softmax";
    prepare(xmc(kKnown, 0, kKnown, 20));
    const fs::path run = train(name);
    const std::string words = " 10:1 17:1\n";  // of labels 2 and 3
    const fs::path question = file("question.txt", "1 " + std::to_string(features()) + ' ' + std::to_string(kKnown) + "\n1" + words);
    const shard::Dataset asked = shard::load_queries(question, Normalize::kNone, {});
    EXPECT_NE(shard::Model(run).predict(asked.sample(0), 1).at(0).label, 1u);
    const shard::Model before(run);
    std::string lines;
    for (int i = 0; i < 3; ++i) lines += '1' + words;
    const ChangedLabels changed = learn(
        run, file("learn.txt", "3 " + std::to_string(features()) + ' ' + std::to_string(kKnown) + '\n' + lines), {});
    EXPECT_EQ(changed.changed, 1u);
    EXPECT_EQ(changed.samples, 3u);
    const shard::Model after(run);
    EXPECT_EQ(after.predict(asked.sample(0), 1).at(0).label, 1u) << name;
    EXPECT_GT(found(after, 0, kKnown), found(before, 0, kKnown) - 0.03) << name;
    EXPECT_EQ(after.label_counts()[1], before.label_counts()[1] + 3);
    const auto now = scores(after, asked.sample(0));
    for (const auto& [label, score] : scores(before, asked.sample(0))) {
      if (label == 1) continue;
      EXPECT_NEAR(now.at(label), score, 1e-4 * std::max(1.0f, std::abs(score))) << label;
    }
  }
}

TEST_F(ChangeLabelsTest, ARemovedLabelIsNeverAnAnswer) {
  const fs::path run = trained();
  const shard::Model before(run);
  const std::vector<std::string> removed = {"3", "0"};
  EXPECT_EQ(remove_labels(run, removed, {}).changed, 2u);
  const shard::Dataset data = shard::Dataset::open(experiment_.data.test);
  const auto check = [&](const shard::Model& model, size_t labels) {
    for (size_t row = 0; row < 20; ++row) {
      const auto now = scores(model, data.sample(row));
      EXPECT_EQ(now.size(), labels);
      EXPECT_FALSE(now.contains(0) || now.contains(3));
    }
  };
  check(shard::Model(run), kKnown - 2);
  EXPECT_THAT(error_of([&] { remove_labels(run, removed, {}); }), HasSubstr("'3' was removed already"));

  add_labels(run, file("new.txt", xmc(kLabels, kKnown, kLabels, 3)), {});
  check(shard::Model(run), kLabels - 2);
  EXPECT_GT(found(shard::Model(run), kKnown, kLabels), 0.9);

  std::vector<std::string> all;
  for (uint32_t label = 0; label < kLabels; ++label)
    if (label != 0 && label != 3) all.push_back(std::to_string(label));
  EXPECT_THAT(error_of([&] { remove_labels(run, all, {}); }), HasSubstr("no label would be left"));
}

TEST_F(ChangeLabelsTest, NamesOfLabels) {
  std::string text;
  const auto line = [](const std::string& label, const std::string& words) { return "__label__" + label + ' ' + words + '\n'; };
  for (int i = 0; i < 30; ++i) text += line("games", "tile board players") + line("tea", "green leaves hot water");
  experiment_.data.format = DataFormat::kText;
  for (const std::string& prepared : {experiment_.data.train, experiment_.data.test}) {
    file("words.txt", text);
    shard::prepare_training_data(folder_ / "words.txt", Normalize::kNone, encoding_of(experiment_), prepared);
  }
  shape_ = shard::describe_shape(shard::Dataset::open(experiment_.data.train), shard::Dataset::open(experiment_.data.test));
  const fs::path run = train("run");
  std::string added = line("tea", "leaves");
  for (int i = 0; i < 5; ++i) added += line("pottery", "board water");
  add_labels(run, file("new.txt", added), {});
  EXPECT_THAT(shard::Model(run).label_names(), ElementsAre("games", "tea", "pottery"));
  EXPECT_EQ(shard::Model(run).predict("board water", 1).at(0).name, "pottery");
  EXPECT_EQ(shard::Model(run).predict("green leaves", 1).at(0).name, "tea");
  EXPECT_THAT(error_of([&] { add_labels(run, folder_ / "new.txt", {}); }), HasSubstr("has no label that the model"));

  EXPECT_THAT(error_of([&] { rename_label(run, "potery", "cups", {}); }), HasSubstr("'potery'"));
  EXPECT_THAT(error_of([&] { rename_label(run, "pottery", "tea", {}); }), HasSubstr("another label has the name"));
  rename_label(run, "pottery", "cups", {});
  EXPECT_EQ(shard::Model(run).predict("board water", 1).at(0).name, "cups");
}

TEST_F(ChangeLabelsTest, ARemovedLabelOfTowersIsNeverAnAnswer) {
  experiment_.model.towers = 2;
  for (const uint32_t divisions : {1, 2}) {
    experiment_.model.divisions = divisions;
    prepare(xmc(kKnown, 0, kKnown, 20));
    const fs::path run = train("run" + std::to_string(divisions));
    const shard::Model before(run);
    const std::vector<std::string> first = {"3"}, second = {"0"};
    EXPECT_EQ(remove_labels(run, first, {}).changed, 1u);
    EXPECT_EQ(remove_labels(run, second, {}).labels, kKnown);
    const shard::Dataset data = shard::Dataset::open(experiment_.data.test);
    const shard::Model now(run);
    for (size_t row = 0; row < 20; ++row) {
      auto expected = scores(before, data.sample(row));
      EXPECT_EQ(expected.erase(0) + expected.erase(3), 2u);
      EXPECT_EQ(scores(now, data.sample(row)), expected);
    }
    EXPECT_THAT(error_of([&] { remove_labels(run, first, {}); }), HasSubstr("'3' was removed already"));
    EXPECT_THAT(error_of([&] { add_labels(run, file("new.txt", xmc(kLabels, kKnown, kLabels, 3)), {}); }), HasSubstr("gets no more labels"));
    // Training that goes on does not bring them back.
    ++experiment_.train.epochs;
    train(run.filename(), TowerRun::start_of(run));
    const auto later = scores(shard::Model(run), data.sample(0));
    EXPECT_EQ(later.size(), kKnown - 2);
    EXPECT_FALSE(later.contains(0) || later.contains(3));
    EXPECT_THAT(error_of([&] { remove_labels(run, first, {}); }), HasSubstr("'3' was removed already"));
  }
}

TEST_F(ChangeLabelsTest, NamesOfLabelsOfTowers) {
  experiment_.model.towers = 2;
  experiment_.data.format = DataFormat::kText;
  std::string text;
  for (int i = 0; i < 30; ++i) text += "__label__games tile board players\n__label__tea green leaves hot water\n__label__cars wheels engine\n";
  file("words.txt", text);
  for (const std::string& prepared : {experiment_.data.train, experiment_.data.test})
    shard::prepare_training_data(folder_ / "words.txt", Normalize::kNone, encoding_of(experiment_), prepared);
  shape_ = shard::describe_shape(shard::Dataset::open(experiment_.data.train), shard::Dataset::open(experiment_.data.test));
  const fs::path run = train("run");
  ASSERT_EQ(shard::Model(run).predict("green leaves", 1).at(0).name, "tea");
  rename_label(run, "tea", "infusion", {});
  const std::vector<std::string> removed = {"cars"};
  remove_labels(run, removed, {});
  const shard::Model model(run);
  EXPECT_EQ(model.predict("green leaves", 1).at(0).name, "infusion");
  EXPECT_THAT(model.predict("wheels engine", 3), SizeIs(2));
}

TEST_F(ChangeLabelsTest, AnInterruptedChangeChangesNothing) {
  const fs::path run = trained();
  const shard::Model before(run);
  AddOptions options;
  options.progress = [](std::string_view what, double) {
    if (what == "fits neurons") throw Interrupted("enough");
  };
  EXPECT_THROW(add_labels(run, file("new.txt", xmc(kLabels, kKnown, kLabels, 3)), options), Interrupted);
  EXPECT_EQ(shard::Model(run).folder(), before.folder());
  EXPECT_THAT(error_of([&] { add_labels(run, file("wide.txt", "1 7 20\n15 3:1\n"), {}); }), HasSubstr("7 features"));
  EXPECT_THAT(error_of([&] { add_labels(run, file("none.txt", xmc(kLabels, 0, 2, 1)), {}); }), HasSubstr("4 of its 4 new labels have no sample"));
}

}  // namespace
}  // namespace modelet::agent::testing
