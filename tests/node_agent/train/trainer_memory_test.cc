// Trainer: samples in memory, and training that continues with other samples.
#include "shard/data/store/csr.h"
#include "tests/node_agent/train/trainer_harness.h"

namespace modelet::agent::testing {
namespace {

// The rows [begin, end) of a data set, as arrays.
class InArrays {
 public:
  InArrays(const shard::Dataset& data, size_t begin, size_t end)
      : features_(data.features()), labels_(data.labels()) {
    for (size_t row = begin; row < end; ++row) {
      const shard::Sample sample = data.sample(row);
      ids_.insert(ids_.end(), sample.features.begin(), sample.features.end());
      values_.insert(values_.end(), sample.values.begin(), sample.values.end());
      label_ids_.insert(label_ids_.end(), sample.labels.begin(), sample.labels.end());
      offsets_.push_back(ids_.size());
      label_offsets_.push_back(label_ids_.size());
    }
  }
  shard::CsrSamples view() const {
    return {features_, labels_, offsets_, ids_, values_, label_offsets_, label_ids_};
  }

 private:
  uint64_t features_, labels_;
  std::vector<uint64_t> offsets_ = {0}, label_offsets_ = {0};
  std::vector<uint32_t> ids_, label_ids_;
  std::vector<float> values_;
};

class MemoryTest : public TrainerTest {
 protected:
  Outcome run_on(const std::string& name, const InArrays& train, const InArrays& test,
                 const fs::path& resume = {}, bool other_samples = false) {
    const SamplesInMemory samples{train.view(), test.view()};
    shape_ = shard::describe_shape(shard::Dataset::of(samples.train, Normalize::kNone),
                                   shard::Dataset::of(samples.test, Normalize::kNone));
    return run(name, {.resume = resume, .in_memory = &samples, .other_samples = other_samples});
  }

  const shard::Dataset train_ = shard::Dataset::open(experiment_.data.train);
  const shard::Dataset test_ = shard::Dataset::open(experiment_.data.test);
  const InArrays nothing_{test_, 0, 0};
};

TEST_F(MemoryTest, LearnsWhatItLearnsFromAFile) {
  const Outcome file = run("file");
  experiment_.data.train = experiment_.data.test = folder_ / "nowhere";
  const Outcome memory = run_on("memory", {train_, 0, train_.rows()}, {test_, 0, test_.rows()});
  EXPECT_EQ(memory.losses(), file.losses());
  EXPECT_EQ(memory.events.back().at("p_at_1"), file.events.back().at("p_at_1"));
  expect_same_modelets(memory.checkpoint(), file.checkpoint());
}

TEST_F(MemoryTest, WithoutTestSamplesNothingIsTested) {
  const Outcome result = run_on("untested", {train_, 0, train_.rows()}, nothing_);
  for (const json& event : result.events) EXPECT_FALSE(event.contains("p_at_1")) << event;
  EXPECT_EQ(result.events.back().at("event"), "finished");
}

TEST_F(MemoryTest, GoesOnWithOtherSamplesAndCountsStepsOn) {
  const Outcome first = run_on("first", {train_, 0, 200}, nothing_);  // 7 steps an epoch
  EXPECT_EQ(first.events.back().at("steps"), 14);
  experiment_.train.epochs = 1;
  experiment_.train.batch = 20;  // 5 steps an epoch: after 14 steps, 15 is the first that ends one
  const InArrays others(train_, 200, 300);
  const Outcome second = run_on("second", others, nothing_, first.checkpoint(), true);
  EXPECT_EQ(second.events.front().at("step"), 15);
  EXPECT_EQ(second.events.back().at("steps"), 20);
  EXPECT_LT(second.losses().front(), first.losses().front()) << "it knows something already";

  const Outcome third = run_on("third", others, nothing_, second.checkpoint(), true);
  EXPECT_EQ(third.events.back().at("steps"), 25);
  EXPECT_NE(third.losses(), second.losses());
  EXPECT_THAT([&] { run_on("refused", others, nothing_, first.checkpoint()); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("made with another")));
}

// The direct path is then that of all samples, and so are the counts of labels, which priors follow from.
TEST_F(MemoryTest, OtherSamplesAreAddedToTheDirectPath) {
  experiment_.model.loss = Loss::kSigmoid;
  experiment_.model.centroids = true;
  experiment_.model.classifiers = 2;
  experiment_.sampling.prior = 0.5f;
  const Outcome first = run_on("first", {train_, 0, 200}, {test_, 0, test_.rows()}),
                second =
                    run_on("second", {train_, 200, 300}, {test_, 0, test_.rows()}, first.checkpoint(), true),
                whole = run_on("whole", {train_, 0, 300}, {test_, 0, test_.rows()});
  const shard::Checkpoint parts = shard::Checkpoint::open(second.checkpoint()),
                          all = shard::Checkpoint::open(whole.checkpoint());
  EXPECT_EQ(parts.index().shape.train_rows, 300u);
  size_t outputs = 0;
  for (const shard::CheckpointEntry& entry : all.index().modelets) {
    if (entry.spec.kind != LayerKind::kOutput) continue;
    ++outputs;
    const auto expected = all.open_modelet(entry.spec), found = parts.open_modelet(entry.spec);
    for (const char* name : {"pairs.offsets", "pairs.features", "pairs.positives", "label_counts"})
      EXPECT_TRUE(std::ranges::equal(found.at(name).bytes, expected.at(name).bytes)) << name;
    const uint64_t pairs = expected.at("pairs.sums").shape[0];
    const auto a = expected.values<float>("pairs.sums", {pairs}),
               b = found.values<float>("pairs.sums", {pairs});
    for (size_t i = 0; i < pairs; ++i) EXPECT_NEAR(a[i], b[i], 1e-4);
  }
  EXPECT_EQ(outputs, 3u);
  const auto p_at_1 = [](const Outcome& outcome) { return outcome.events.back().at("p_at_1").get<double>(); };
  EXPECT_GT(p_at_1(second), p_at_1(first));
}

TEST_F(MemoryTest, OtherSamplesMustFitTheModel) {
  const Outcome first = run_on("first", {train_, 0, 200}, nothing_);
  experiment_.model.hidden = {48};
  EXPECT_THAT(
      [&] {
        run_on("wider", {train_, 0, 100}, nothing_, first.checkpoint(), true);
      },
      ::testing::ThrowsMessage<UsageError>(HasSubstr("model.hidden")));
}

}  // namespace
}  // namespace modelet::agent::testing
