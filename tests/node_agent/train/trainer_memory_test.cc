// Trainer: samples in memory, and training that continues with other samples.
#include "shard/data/store/csr.h"
#include "shard/modelet/checkpoint_writer.h"
#include "shard/modelet/state.h"
#include "tests/node_agent/train/trainer_harness.h"

namespace modelet::agent::testing {
namespace {

// The rows [begin, end) of a data set, as arrays; of their features only those in [first, last), as features of
// data with `times` as many.
class InArrays {
 public:
  InArrays(const shard::Dataset& data, size_t begin, size_t end, uint32_t first = 0, uint32_t last = ~0u,
           uint64_t times = 1)
      : features_(times * data.features()), labels_(data.labels()) {
    for (size_t row = begin; row < end; ++row) {
      const shard::Sample sample = data.sample(row);
      for (size_t i = 0; i < sample.features.size(); ++i)
        if (sample.features[i] >= first && sample.features[i] < last) {
          ids_.push_back(sample.features[i]);
          values_.push_back(sample.values[i]);
        }
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

  // A copy of a checkpoint with rows for all features, as earlier programs wrote it.
  fs::path with_all_rows(const fs::path& path) const {
    const shard::Checkpoint checkpoint = shard::Checkpoint::open(path);
    shard::CheckpointIndex index = checkpoint.index();
    EXPECT_GT(index.shape.occurring_features, 0u);
    index.shape.occurring_features = 0;
    ThreadPool pool(1);
    const std::vector<ModeletSpec> partition = partition_model(experiment_, index.shape);
    shard::Network network(experiment_, index.shape, partition, true, pool);
    network.initialise();
    const shard::CheckpointWriter writer(folder_ / "all-rows" / path.parent_path().parent_path().filename(),
                                         index.step);
    index.modelets.clear();
    for (const auto& modelet : network.modelets()) {
      shard::restore_modelet(*modelet, checkpoint);
      index.modelets.push_back(shard::save_modelet(*modelet, writer));
    }
    return writer.commit(index, 1);
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

TEST_F(MemoryTest, OnlyFeaturesThatOccurTakeMemory) {
  const Outcome few = run_on("few", {train_, 0, 200}, nothing_),
                many = run_on("many", {train_, 0, 200, 0, ~0u, 5000}, {test_, 0, 0, 0, ~0u, 5000});
  EXPECT_EQ(many.losses(), few.losses());
  const shard::Checkpoint expected = shard::Checkpoint::open(few.checkpoint()),
                          found = shard::Checkpoint::open(many.checkpoint());
  EXPECT_EQ(found.index().shape.features, 5000 * expected.index().shape.features);
  for (size_t i = 0; i < found.index().modelets.size(); ++i) {
    const shard::CheckpointEntry &entry = found.index().modelets[i], &before = expected.index().modelets[i];
    EXPECT_LT(entry.digest.bytes, before.digest.bytes + 4 * entry.spec.inputs + 256);
    const auto file = found.open_modelet(entry.spec), same = expected.open_modelet(before.spec);
    for (const char* name : {"weight", "optimizer.first", "optimizer.second", "optimizer.clock"})
      EXPECT_TRUE(std::ranges::equal(file.at(name).bytes, same.at(name).bytes)) << entry.file << " " << name;
  }
}

// Rows come into being with their first weights, as if they had always been there.
TEST_F(MemoryTest, OtherSamplesMayHaveOtherFeatures) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    const std::string name(spelling(precision));
    experiment_.model.precision = precision;
    const Outcome first = run_on(name + "-first", {train_, 0, 200, 50, 120}, nothing_);
    const InArrays others(train_, 200, 300, 80, 200);
    const Outcome some = run_on(name + "-some", others, nothing_, first.checkpoint(), true),
                  all = run_on(name + "-all", others, nothing_, with_all_rows(first.checkpoint()), true);
    EXPECT_EQ(some.losses(), all.losses());
    const DataShape then = shard::Checkpoint::open(first.checkpoint()).index().shape,
                    now = shard::Checkpoint::open(some.checkpoint()).index().shape;
    EXPECT_GT(now.occurring_features, then.occurring_features + 50);
    EXPECT_LE(now.occurring_features, 150u);
  }
}

TEST_F(MemoryTest, GoesOnFromACheckpointWithRowsForAllFeatures) {
  const InArrays samples(train_, 0, 200, 50, 120);
  const Outcome first = run_on("first", samples, nothing_);
  const fs::path all = with_all_rows(first.checkpoint());
  experiment_.train.epochs = 3;
  const Outcome from_some = run_on("some", samples, nothing_, first.checkpoint()),
                from_all = run_on("all", samples, nothing_, all);
  EXPECT_EQ(from_all.losses(), from_some.losses());
  expect_same_modelets(from_all.checkpoint(), from_some.checkpoint());
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
