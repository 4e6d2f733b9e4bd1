// Trainer with replicas that have samples of their own.
#include "node_agent/train/data/sample_source.h"
#include "shard/data/batch/batch.h"
#include "shard/data/batch/split.h"
#include "tests/error_of.h"
#include "tests/node_agent/train/trainer_harness.h"

namespace modelet::agent::testing {
namespace {

using test::error_of;

// A replica's own training set, and what it knows of those of all replicas.
class OwnSamples final : public SampleSource {
 public:
  OwnSamples(const TrainJob& job, fs::path train, const shard::Dataset& of_all, uint64_t steps)
      : test_(job.experiment.data.test), train_(std::move(train)), of_all_(of_all), steps_(steps) {}

  shard::Dataset train(const std::vector<shard::NeuronRange>& neurons, const OnPreparing&) const override {
    return shard::load_training_data(train_, Normalize::kNone, {}, {.neurons = neurons});
  }
  shard::Dataset test(const shard::Dataset&, const OnPreparing&) const override {
    return shard::load_dataset(test_, Normalize::kNone);
  }
  void require_planned(const shard::Dataset& train, const shard::Dataset&) const override {
    if (train.features() != of_all_.features() || train.labels() != of_all_.labels())
      throw Error("this replica's samples are of another kind");
  }
  bool of_replica() const override { return true; }
  shard::FeatureRows feature_rows(const shard::Dataset&) const override {
    return shard::FeatureRows::of(of_all_);
  }
  std::vector<uint32_t> label_counts(const shard::Dataset&) const override {
    return shard::count_labels(of_all_);
  }
  uint64_t steps_per_epoch(uint64_t) const override { return steps_; }
  shard::LabelSpread spread() const override { return shard::LabelSpread(of_all_.labels()); }

 private:
  fs::path test_, train_;
  const shard::Dataset& of_all_;
  uint64_t steps_;
};

class SampleSourcesTest : public TrainerTest {
 protected:
  static constexpr uint32_t kReplicas = 2, kBatch = 32;

  SampleSourcesTest() {
    write_data({.rows_train = 320,  // five steps of 2 x 32
                .rows_test = 100,
                .features = 200,
                .labels = 60,
                .features_per_row = 12,
                .labels_per_row = 1.5,
                .noise = 0.1});
    experiment_.exchange.local_steps = 2;
    experiment_.cluster.replicas = kReplicas;
    experiment_.train.batch = kBatch;
    all_ = shard::Dataset::open(experiment_.data.train);
  }

  // Writes these samples as the training set of a replica.
  void write_own(uint32_t replica, const std::vector<uint32_t>& rows) {
    shard::PreparedWriter writer(own(replica), all_.features(), all_.labels(), Normalize::kNone);
    for (const uint32_t row : rows) writer.add(all_.sample(row));
    writer.finish();
  }
  fs::path own(int64_t replica) const { return folder_ / ("own-" + std::to_string(replica)); }

  Options with_own_samples(int size, uint64_t steps) {
    return {.size = size, .samples = [this, steps](const TrainJob& job) {
              sources_.push_back(std::make_unique<OwnSamples>(job, own(job.replica()), all_, steps));
              return sources_.back().get();
            }};
  }

  shard::Dataset all_;
  std::vector<std::unique_ptr<OwnSamples>> sources_;
};

// If the samples of each replica are those that it would have been dealt, in that order, it makes no difference
// that no rank has the others.
TEST_F(SampleSourcesTest, TheSharesOfABatchAsOwnSamplesTeachTheSame) {
  experiment_.train.epochs = 1;
  const uint64_t seed = experiment_.train.seed, steps = all_.rows() / (kReplicas * kBatch);
  shard::BatchOrder shared(shard::all_rows(all_.rows()), kReplicas * kBatch, seed);
  shard::BatchOrder order(shard::all_rows(all_.rows() / kReplicas), kBatch, seed);
  for (uint32_t replica = 0; replica < kReplicas; ++replica) {
    std::vector<uint32_t> rows(all_.rows() / kReplicas);
    for (uint64_t step = 0; step < steps; ++step) {
      const auto dealt = shard::share_of(shared.rows(step), {replica, kReplicas});
      const auto places = order.rows(step);
      ASSERT_EQ(dealt.size(), places.size());
      for (size_t i = 0; i < places.size(); ++i) rows[places[i]] = dealt[i];
    }
    write_own(replica, rows);
  }
  for (const int size : {2, 4}) {
    const std::string name = "run-" + std::to_string(size);
    const Outcome together = run(name, {.size = size});
    const Outcome apart = run(name + "-own", with_own_samples(size, steps));
    EXPECT_EQ(apart.losses(), together.losses());
    EXPECT_EQ(apart.events.back()["p_at_1"], together.events.back()["p_at_1"]);
    expect_same_modelets(apart.checkpoint(), together.checkpoint());
  }
}

// A replica with fewer samples goes through them again while the other one goes through its own once. The
// model learns from both: replica 0 alone would know no label that only samples of replica 1 have.
TEST_F(SampleSourcesTest, ReplicasMayHaveDifferentSamples) {
  std::vector<uint32_t> rows[kReplicas];
  for (uint32_t row = 0; row < all_.rows(); ++row) {
    const auto labels = all_.sample(row).labels;
    const bool odd = std::ranges::any_of(labels, [](uint32_t label) { return label % 2 == 1; });
    if (odd || rows[0].size() < 70) rows[odd ? 1 : 0].push_back(row);
  }
  for (uint32_t replica = 0; replica < kReplicas; ++replica) write_own(replica, rows[replica]);
  ASSERT_GT(rows[1].size(), 2 * rows[0].size());
  experiment_.train.epochs = 12;
  const uint64_t steps = (rows[1].size() + kBatch - 1) / kBatch;
  const Outcome together = run("together", with_own_samples(4, steps));
  EXPECT_EQ(together.events.back()["steps"], experiment_.train.epochs * steps);
  experiment_.cluster.replicas = 1;
  experiment_.data.train = own(0);
  shape_ = shard::describe_shape(shard::Dataset::open(own(0)), shard::Dataset::open(experiment_.data.test));
  experiment_.train.epochs *= 3;
  const double alone = run("alone").events.back()["p_at_1"];
  EXPECT_GT(together.events.back()["p_at_1"], alone + 0.2);
}

TEST_F(SampleSourcesTest, GoOnToTheBitFromACheckpoint) {
  const std::vector<uint32_t> rows = shard::all_rows(all_.rows());
  write_own(0, {rows.begin(), rows.begin() + 70});
  write_own(1, {rows.begin() + 70, rows.end()});
  experiment_.data.validation = 0.2;  // of each replica's own samples
  const uint64_t steps = 7;
  Options options = with_own_samples(4, steps);
  const Outcome whole = run("whole", options);
  options.resume = shard::checkpoint_of_step(folder_ / "whole" / "checkpoints", steps);
  const Outcome rest = run("rest", options);
  EXPECT_EQ(rest.events.front()["step"], steps);
  const std::vector<double> losses = whole.losses();
  EXPECT_EQ(rest.losses(), std::vector<double>(losses.begin() + steps, losses.end()));
  expect_same_modelets(rest.checkpoint(), whole.checkpoint());
}

// Nobody has the samples of which these are computed.
TEST_F(SampleSourcesTest, RefuseWhatIsComputedOfAllSamples) {
  for (const uint32_t replica : {0u, 1u}) write_own(replica, shard::all_rows(all_.rows()));
  experiment_.model.centroids = true;
  EXPECT_THAT(error_of([&] { run("run", with_own_samples(2, 5)); }),
              HasSubstr("set model.centroids = false and model.classifiers = 0"));
}

}  // namespace
}  // namespace modelet::agent::testing
