// Trainer with replicas that have samples of their own.
#include "node_agent/train/data/private_samples.h"
#include "node_agent/train/data/sample_source.h"
#include "shard/data/batch/batch.h"
#include "shard/data/batch/split.h"
#include "tests/error_of.h"
#include "tests/node_agent/train/trainer_harness.h"

namespace modelet::agent::testing {
namespace {

using test::error_of;
using ::testing::Not;

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

// ---- owners

class PrivateSamplesTest : public SampleSourcesTest {
 protected:
  PrivateSamplesTest() {
    experiment_.train.epochs = 2;
    experiment_.cluster.epoch_steps = static_cast<uint32_t>(all_.rows() / (kReplicas * kBatch));
    together_ = {experiment_, shape_};
    experiment_.data.train = "private:clinic";
    shape_ = shard::describe_private_shape(experiment_, shard::Dataset::open(experiment_.data.test));
  }

  Options owners(int size) {
    return {.size = size, .samples = [this](const TrainJob& job) {
              private_.push_back(std::make_unique<PrivateSamples>(job_of_rank(job), own(job.replica())));
              return private_.back().get();
            }};
  }

  // As many samples each, dealt out as a run of replicas deals them out in its first epoch.
  void deal_out() {
    const uint64_t seed = experiment_.train.seed;
    shard::BatchOrder shared(shard::all_rows(all_.rows()), kReplicas * kBatch, seed);
    shard::BatchOrder order(shard::all_rows(all_.rows() / kReplicas), kBatch, seed);
    for (uint32_t replica = 0; replica < kReplicas; ++replica) {
      std::vector<uint32_t> rows(all_.rows() / kReplicas);
      for (uint64_t step = 0; step < experiment_.cluster.epoch_steps; ++step) {
        const auto dealt = shard::share_of(shared.rows(step), {replica, kReplicas});
        const auto places = order.rows(step);
        for (size_t i = 0; i < places.size(); ++i) rows[places[i]] = dealt[i];
      }
      write_own(replica, rows);
    }
  }

  int runs_ = 0;
  std::pair<Experiment, DataShape> together_;  // the same with the data of all owners in one file

 private:
  // The jobs of the ranks of a run, which their sources read.
  const TrainJob& job_of_rank(const TrainJob& job) { return *jobs_.emplace_back(std::make_unique<TrainJob>(job)); }

  std::vector<std::unique_ptr<TrainJob>> jobs_;
  std::vector<std::unique_ptr<PrivateSamples>> private_;
};

// Owners of equal size are replicas of one data set: to the bit if rows travel, but for rounding if sums are masked.
TEST_F(PrivateSamplesTest, EqualOwnersAreReplicas) {
  experiment_.train.epochs = together_.first.train.epochs = 1;
  deal_out();
  experiment_.cluster.privacy = Privacy::kRows;
  const Outcome rows = run("rows", owners(2));
  experiment_.cluster.privacy = Privacy::kSums;
  const Outcome sums = run("sums", owners(2)), on_two_nodes_each = run("sums-4", owners(4));
  std::tie(experiment_, shape_) = together_;
  const Outcome together = run("together", {.size = 2});
  EXPECT_EQ(rows.losses(), together.losses());
  EXPECT_EQ(rows.events.back()["p_at_1"], together.events.back()["p_at_1"]);
  const std::vector<double> of_sums = sums.losses(), of_four = on_two_nodes_each.losses(), of_all = together.losses();
  ASSERT_EQ(of_sums.size(), of_all.size());
  for (size_t i = 0; i < of_all.size(); ++i) {
    EXPECT_NEAR(of_sums[i], of_all[i], 1e-4 * of_all[i]);
    EXPECT_NEAR(of_four[i], of_all[i], 1e-4 * of_all[i]);
  }
}

// A group that was formed anew draws other samples: the sum of a step that is done again, without an owner, must not
// differ from the former one by just what this owner gave.
TEST_F(PrivateSamplesTest, AGroupThatIsFormedAnewDrawsAnew) {
  deal_out();
  const auto losses = [&](uint32_t former_groups) {
    Options options = owners(2);
    options.former_groups = former_groups;
    return run("groups-" + std::to_string(runs_++), options).losses();
  };
  const std::vector<double> first = losses(0), second = losses(1);
  EXPECT_NE(second.front(), first.front());
  EXPECT_EQ(losses(0), first);
  EXPECT_EQ(losses(1), second);
  std::tie(experiment_, shape_) = together_;
  const auto shared = [&](uint32_t former_groups) {
    return run("shared-" + std::to_string(runs_++), {.size = 2, .former_groups = former_groups}).losses();
  };
  EXPECT_EQ(shared(1), shared(0)) << "what others learn does not depend on losses of nodes";
}

// A group without an owner that is away goes on from the checkpoint of all, and all go on from its.
TEST_F(PrivateSamplesTest, OwnersComeAndGo) {
  const std::vector<uint32_t> all = shard::all_rows(all_.rows());
  for (const uint32_t owner : {0u, 1u, 2u}) write_own(owner, {all.begin() + 30 * owner, all.begin() + 30 * owner + 40});
  const uint64_t steps = experiment_.cluster.epoch_steps;
  const auto go_on = [&](int present, uint32_t epochs, const fs::path& from) {
    experiment_.cluster.replicas = static_cast<uint32_t>(present);
    experiment_.train.epochs = epochs;
    Options options = owners(present);
    options.resume = from;
    options.former_groups = epochs - 1;
    const Outcome outcome = run("epochs-" + std::to_string(epochs), options);
    EXPECT_EQ(outcome.events.front()["replicas"], present);
    EXPECT_EQ(outcome.events.front()["step"], (epochs - 1) * steps);
    return shard::checkpoint_of_step(folder_ / ("epochs-" + std::to_string(epochs)) / "checkpoints", epochs * steps);
  };
  const fs::path of_all = go_on(3, 1, {}), of_two = go_on(2, 2, of_all);
  EXPECT_TRUE(fs::exists(go_on(3, 3, of_two)));
}

// Owners that take no part in a round do no steps; all end with the same model.
TEST_F(PrivateSamplesTest, SomeOwnersOfEachRound) {
  const std::vector<uint32_t> all = shard::all_rows(all_.rows());
  for (const uint32_t owner : {0u, 1u, 2u}) write_own(owner, {all.begin() + 30 * owner, all.begin() + 30 * owner + 40});
  experiment_.cluster.replicas = 3;
  experiment_.cluster.owners_per_round = 2;
  experiment_.train.epochs = 3;
  for (const Privacy privacy : {Privacy::kRows, Privacy::kSums}) {
    experiment_.cluster.privacy = privacy;
    const std::string name = "some-" + std::string(spelling(privacy));
    const Outcome some = run(name, owners(3));
    EXPECT_LT(some.of_kind("epoch").back()["loss"], some.of_kind("epoch").front()["loss"].get<double>());
    Options options = owners(3);
    options.resume = shard::checkpoint_of_step(folder_ / name / "checkpoints", 2 * experiment_.cluster.epoch_steps);
    const Outcome rest = run(name + "-rest", options);
    expect_same_modelets(rest.checkpoint(), some.checkpoint());
    EXPECT_EQ(rest.of_kind("epoch").back()["loss"], some.of_kind("epoch").back()["loss"]);
  }
}

// Owners write down each round to which they give their part, before they send anything of it.
TEST_F(PrivateSamplesTest, ARoundIsCountedBeforeItTakesPlace) {
  deal_out();
  experiment_.exchange.local_steps = 2;
  uint64_t all = 0;  // rounds: also at the end of an epoch
  for (uint64_t step = 1; step <= experiment_.train.epochs * experiment_.cluster.epoch_steps; ++step)
    if (step % 2 == 0 || step % experiment_.cluster.epoch_steps == 0) ++all;
  std::array<std::atomic<uint64_t>, 3> rounds{};
  Options options = owners(2);
  options.before_round = [&](int rank) { ++rounds[static_cast<size_t>(rank)]; };
  run("counted", options);
  EXPECT_EQ(rounds[0], all);
  EXPECT_EQ(rounds[1], rounds[0].load());
  options.before_round = [](int) { throw Error("the disk is full"); };
  EXPECT_EQ(error_of([&] { run("refused", options); }), "the disk is full");

  write_own(2, shard::all_rows(all_.rows() / 2));
  experiment_.cluster.replicas = 3;
  experiment_.cluster.owners_per_round = 2;
  for (auto& of_owner : rounds) of_owner = 0;
  options = owners(3);
  options.before_round = [&](int rank) { ++rounds[static_cast<size_t>(rank)]; };
  run("some-counted", options);
  EXPECT_EQ(rounds[0] + rounds[1] + rounds[2], 2 * all) << "of each round two";
}

// With noise no figure of the owners' samples leaves them, and the state of the optimiser does not either.
TEST_F(PrivateSamplesTest, NoiseInTheSum) {
  deal_out();
  experiment_.cluster.noise = 0.01f;
  experiment_.cluster.clip = 1;
  const Outcome noisy = run("noisy", owners(2));
  EXPECT_TRUE(noisy.events.back().contains("p_at_1"));
  for (const json& event : noisy.events) EXPECT_FALSE(event.contains("loss")) << event.dump();
  EXPECT_EQ(noisy.of_kind("epoch").size(), 2u);
  EXPECT_THAT(error_of([&] { run("two-nodes", owners(4)); }), HasSubstr("each owner must be one node; the run has 2"));
}

// Whether a rank goes on from a checkpoint or has never stopped: the optimiser's state is the same.
TEST_F(PrivateSamplesTest, GoOnToTheBitFromACheckpoint) {
  const std::vector<uint32_t> rows = shard::all_rows(all_.rows());
  write_own(0, {rows.begin(), rows.begin() + 70});
  write_own(1, {rows.begin() + 70, rows.end()});
  experiment_.data.validation = 0.2;
  Options options = owners(2);
  const Outcome whole = run("whole", options);
  options.resume =
      shard::checkpoint_of_step(folder_ / "whole" / "checkpoints", experiment_.cluster.epoch_steps);
  const Outcome rest = run("rest", options);
  const std::vector<double> losses = whole.losses();
  EXPECT_EQ(rest.losses(), std::vector<double>(losses.begin() + experiment_.cluster.epoch_steps, losses.end()));
  expect_same_modelets(rest.checkpoint(), whole.checkpoint());
}

// An owner of whom nothing but its weight differs does not change what the others see of the run in its events.
TEST_F(PrivateSamplesTest, EventsDoNotTellHowManySamplesAnOwnerHas) {
  const std::vector<uint32_t> rows = shard::all_rows(all_.rows());
  write_own(0, {rows.begin(), rows.begin() + 75});
  write_own(1, {rows.begin() + 75, rows.end()});
  experiment_.data.validation = 0.2;
  experiment_.train.checkpoint_every = 3;  // within an epoch of 5 steps, whose losses are not reported yet
  experiment_.train.log_every = 100;
  experiment_.train.epochs = 1;
  const Outcome outcome = run("run", owners(2));
  const json started = outcome.of_kind("started")[0];
  EXPECT_EQ(started["train_rows"], shape_.train_rows);
  EXPECT_EQ(started["validation_rows"], 0);
  EXPECT_EQ(outcome.of_kind("evaluating").size(), 0u);
  std::ifstream index(shard::checkpoint_of_step(outcome.checkpoint().parent_path(), 3) / "index.json");
  const json extra = json::parse(index).at("extra");
  for (const json& of_rank : extra.at("ranks"))
    for (const json& number : of_rank) EXPECT_EQ(number, 0) << "the losses of an owner's samples";
}

// Held-out samples of all owners count alike: the figure is that of all of them together.
TEST_F(PrivateSamplesTest, FiguresAreThoseOfAllHeldOutSamples) {
  const std::vector<uint32_t> all = shard::all_rows(all_.rows());
  write_own(0, {all.begin(), all.begin() + 70});
  write_own(1, {all.begin() + 70, all.end()});
  experiment_.data.validation = 0.3;
  experiment_.train.epochs = 1;
  experiment_.train.learning_rate = 0.05f;
  const Outcome outcome = run("run", owners(2));
  const double common = outcome.events.back()["validation"]["p_at_1"];
  const double rows = 21 + 75;
  EXPECT_NEAR(common * rows, std::round(common * rows), 1e-3) << "a whole number of hits";
}

TEST_F(PrivateSamplesTest, ErrorsDoNotNameTheFile) {
  write_own(0, {0, 1, 2});
  const auto text_of_file = [&](const std::string& text) {
    std::ofstream(own(1)) << text;
    return error_of([&] { run("run", owners(2)); });
  };
  for (const char* const text : {"secret word", "1 200 60\n0 3:secret\n", "2 200 60\n0 3:1\n"}) {
    const std::string error = text_of_file(text);
    EXPECT_THAT(error, HasSubstr("private:clinic: the data that goes by this name on this node cannot be read"));
    EXPECT_THAT(error, Not(HasSubstr("own-1")));
    EXPECT_THAT(error, Not(HasSubstr("secret")));
  }
  EXPECT_THAT(text_of_file("1 777 60\n0 3:1\n"),
              AllOf(HasSubstr("the run has 200 features and 60 labels"), Not(HasSubstr("777")), Not(HasSubstr("own-1"))));
  experiment_.data.validation = 0.5;
  EXPECT_THAT(text_of_file("1 200 60\n0 3:1\n"),
              AllOf(HasSubstr("on this node cannot be read"), Not(HasSubstr("of 1 training samples"))));
}

// The encoder of the test data, which was fitted on a public text, says what an owner's words and labels mean.
TEST_F(PrivateSamplesTest, TextIsReadWithTheEncoderOfTheTestData) {
  const auto write = [&](const fs::path& file, const std::string& text) { std::ofstream(file) << text; };
  const fs::path text = folder_ / "public.txt", encoded = folder_ / "public.mlt";
  write(text, "__label__a red round\n__label__b blue square\n__label__c green round\n");
  shard::prepare_training_data(text, Normalize::kNone, {.format = DataFormat::kText}, encoded);
  const shard::Dataset with_encoder = shard::Dataset::open(encoded);
  experiment_.data.test = folder_ / "public-test.mlt";
  shard::prepare_data(text, Normalize::kNone, with_encoder.encoder(), experiment_.data.test);
  shape_ = shard::describe_private_shape(experiment_, load_public_test(experiment_.data.test, Normalize::kNone));
  EXPECT_NE(shape_.encoder, 0u);
  const std::string mine = "__label__a red red secretword\n__label__z blue\n__label__b blue square\n";
  write(own(0), mine);
  write(own(1), "__label__c green\n__label__a round red\n");
  experiment_.train.epochs = 10;
  const Outcome outcome = run("text", owners(2));
  EXPECT_EQ(outcome.events.back()["p_at_1"], 1.0);
  // A file that was prepared with the same encoder is the same data; with another one it is refused.
  write(folder_ / "mine.txt", mine);
  shard::prepare_data(folder_ / "mine.txt", Normalize::kNone, with_encoder.encoder(), own(0));
  EXPECT_EQ(run("prepared", owners(2)).losses(), outcome.losses());
  shard::prepare_training_data(folder_ / "mine.txt", Normalize::kNone, {.format = DataFormat::kText}, own(0));
  EXPECT_THAT(error_of([&] { run("other", owners(2)); }), HasSubstr("on this node cannot be read"));
}

TEST_F(PrivateSamplesTest, AreOfNoUseWithoutAnOwner) {
  EXPECT_THAT(error_of([&] { run("run", {.size = 2}); }), HasSubstr("modelet train --owners"));
}

}  // namespace
}  // namespace modelet::agent::testing
