// Trainer with several replicas of the model.
#include "base/experiment/memory.h"
#include "tests/node_agent/train/trainer_harness.h"

namespace modelet::agent::testing {
namespace {

class ReplicasTest : public TrainerTest {
 protected:
  ReplicasTest() {
    experiment_.exchange.codec = CodecKind::kInt8;
    experiment_.exchange.local_steps = 3;
    experiment_.cluster.replicas = 2;
    experiment_.train.batch = 16;  // 300 samples are nine steps of 2 x 16 and one of 12
  }
};

TEST_F(ReplicasTest, LearnAsOneModelDoes) {
  experiment_.train.epochs = 10;
  experiment_.train.checkpoint_every = 1000;
  experiment_.cluster.replicas = 1;
  experiment_.train.batch = 32;
  const double one = run("one").events.back()["p_at_1"];
  experiment_.train.batch = 16;
  experiment_.cluster.replicas = 2;
  int runs = 0;
  for (const int size : {2, 6}) {
    const Outcome result = run("two" + std::to_string(runs++), {.size = size});
    EXPECT_EQ(result.events.front()["replicas"], 2);
    EXPECT_EQ(result.events.front()["nodes"], size);
    EXPECT_EQ(result.events.back()["steps"], 100);
    EXPECT_EQ(result.of_kind("progress")[0]["nodes"].size(), static_cast<size_t>(size));
    EXPECT_GT(result.events.back()["bytes_sent_per_node_per_step"], 0);
    EXPECT_NEAR(result.events.back()["p_at_1"], one, 0.1);
    // A checkpoint is that of one model, whichever replicas wrote it.
    Experiment alone = experiment_;
    alone.cluster.replicas = 1;
    alone.train.batch = 32;
    const Outcome resumed = [&] {
      const Experiment own = std::exchange(experiment_, alone);
      const Outcome again = run("again" + std::to_string(runs++), {.resume = result.checkpoint()});
      experiment_ = own;
      return again;
    }();
    EXPECT_EQ(resumed.events.back()["p_at_1"], result.events.back()["p_at_1"]);
  }
}

TEST_F(ReplicasTest, GoOnToTheBitFromACheckpoint) {
  struct Mode {
    SamplingMode sampling;
    Precision precision;
  };
  int runs = 0;
  for (const Mode& mode : {Mode{SamplingMode::kUniform, Precision::kFp32},
                           {SamplingMode::kLsh, Precision::kFp32},
                           {SamplingMode::kLsh, Precision::kBf16}}) {
    experiment_.sampling.mode = mode.sampling;
    experiment_.model.precision = mode.precision;
    experiment_.train.epochs = 2;
    const std::string name = "whole" + std::to_string(runs++);
    const Outcome whole = run(name, {.size = 4});
    // The checkpoint of the first epoch is continued by another group.
    const fs::path middle = shard::checkpoint_of_step(folder_ / name / "checkpoints", 10);
    const Outcome rest = run(name + "-rest", {.size = 4, .threads = kSeveralThreads, .resume = middle});
    EXPECT_EQ(rest.events.front()["step"], 10);
    const std::vector<double> losses = whole.losses();
    EXPECT_EQ(rest.losses(), std::vector<double>(losses.begin() + 10, losses.end()));
    expect_same_modelets(rest.checkpoint(), whole.checkpoint());
  }
}

// The moments of the rule are in the checkpoint. A run with another rule goes on without them.
TEST_F(ReplicasTest, TheRuleGoesOnFromACheckpoint) {
  for (const MeanRule rule : {MeanRule::kProx, MeanRule::kAdam, MeanRule::kMomentum}) {
    experiment_.cluster.rule = rule;
    const std::string name(spelling(rule));
    const Outcome whole = run(name, {.size = 4});
    const fs::path middle = shard::checkpoint_of_step(folder_ / name / "checkpoints", 10);
    const Outcome rest = run(name + "-rest", {.size = 4, .resume = middle});
    const std::vector<double> losses = whole.losses();
    EXPECT_LT(losses.back(), losses.front());
    EXPECT_EQ(rest.losses(), std::vector<double>(losses.begin() + 10, losses.end())) << name;
    expect_same_modelets(rest.checkpoint(), whole.checkpoint());
    experiment_.cluster.rule = MeanRule::kAverage;
    EXPECT_NE(run(name + "-average", {.size = 4, .resume = middle}).losses().back(), losses.back()) << name;
  }
}

TEST_F(ReplicasTest, ThatArePulledBackLearnNothing) {
  experiment_.train.epochs = 1;
  const double learned = run("learns", {.size = 2}).events.back()["p_at_1"];
  experiment_.cluster.rule = MeanRule::kProx;
  experiment_.cluster.proximal = 1e6;
  EXPECT_LT(run("pulled", {.size = 2}).events.back()["p_at_1"], learned - 0.05);
}

// Between synchronisations replicas need nothing from each other. What they learn depends neither on which
// replica is ahead nor on how often progress is reported.
TEST_F(ReplicasTest, RunApartAndSettleAllTheSame) {
  experiment_.exchange.local_steps = 8;
  const Outcome together = run("together", {.size = 2});
  experiment_.train.log_every = 1000;
  const Outcome apart = run("apart", {.size = 2, .others_wait_for = 8});
  EXPECT_EQ(apart.losses().size(), 1u) << "at the end";
  ASSERT_EQ(apart.of_kind("epoch").size(), 2u);
  for (size_t epoch = 0; epoch < 2; ++epoch) {
    const json one = apart.of_kind("epoch")[epoch], other = together.of_kind("epoch")[epoch];
    for (const char* field : {"step", "loss", "p_at_1", "p_at_3", "p_at_5"})
      EXPECT_EQ(one[field], other[field]) << "epoch " << epoch << ", " << field;
    const uint64_t step = 10 * (epoch + 1);
    expect_same_modelets(shard::checkpoint_of_step(folder_ / "apart" / "checkpoints", step),
                         shard::checkpoint_of_step(folder_ / "together" / "checkpoints", step));
  }
}

TEST_F(ReplicasTest, StopTogetherWhoeverIsAsked) {
  experiment_.exchange.local_steps = 4;
  for (const int stopper : {0, 1, 3}) {
    const std::string name = "stop" + std::to_string(stopper);
    const Outcome stopped = run(name, {.size = 4, .stop_after = 4, .stopper = stopper});
    ASSERT_TRUE(stopped.interrupted) << "asked: " << stopper;
    EXPECT_EQ(stopped.events.back()["event"], "interrupted");
    EXPECT_EQ(stopped.events.back()["step"], 8) << "where replicas meet next";
    const Outcome rest = run(name, {.size = 2, .resume = folder_ / name});
    EXPECT_EQ(rest.events.back()["steps"], 20);
  }
}

TEST_F(ReplicasTest, EndEarlyTogether) {
  experiment_.data.validation = 0.2f;
  experiment_.train.epochs = 40;
  experiment_.train.patience = 3;
  const Outcome result = run("early", {.size = 4});
  const json& last = result.events.back();
  EXPECT_LT(last["steps"], 40 * 8);
  EXPECT_EQ(result.checkpoint(),
            shard::checkpoint_of_step(folder_ / "early" / "checkpoints", last["best_step"].get<uint64_t>()));
}

// The figure includes these buffers before anything is sent.
TEST_F(ReplicasTest, WhatANodeSaysThatItTakesHasTheBuffersOfSynchronising) {
  Trainer trainer({.run = "memory",
                   .experiment = experiment_,
                   .shape = shape_,
                   .owner = round_robin(experiment_, shape_, 1),
                   .rank = 1,
                   .size = 2,
                   .threads = 1,
                   .out = folder_ / "memory"});
  trainer.prepare();
  uint64_t modelets = 0, buffers = 0;
  for (const ModeletSpec& modelet : partition_model(experiment_, shape_)) {
    modelets += modelet_bytes(modelet, experiment_);
    buffers = std::max(buffers, sync_buffer_bytes(modelet, experiment_));
  }
  const auto planned = static_cast<double>(modelets + buffers);
  EXPECT_NEAR(static_cast<double>(trainer.memory_bytes()), planned, 0.2 * planned);
  EXPECT_GT(static_cast<double>(buffers), 0.4 * planned) << "else the test says nothing";
}

TEST_F(ReplicasTest, ALostReplicaIsNamed) {
  constexpr double kPatience = 5;  // while all ranks live, none is missed
  experiment_.exchange.timeout_seconds = kPatience;
  auto groups = comm::make_inproc_groups(4, {.run = 1,
                                             .timeout_seconds = kPatience,
                                             .column_patience = 1,
                                             .node_names = {"alpha", "beta", "gamma", "delta"}});
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (const auto& group : groups) {
    trainers.push_back(std::make_unique<Trainer>(TrainJob{.run = "lost",
                                                          .experiment = experiment_,
                                                          .shape = shape_,
                                                          .owner = round_robin(experiment_, shape_, 2),
                                                          .rank = group->rank(),
                                                          .size = 4,
                                                          .threads = 1,
                                                          .out = folder_ / "lost",
                                                          .resume = {}}));
    trainers.back()->prepare();
  }
  std::atomic<int> named = 0;
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    try {
      trainers[static_cast<size_t>(group.rank())]->run(group, [&](const json& event) {
        // Rank 0 ends in the middle of the run, and its replica and its peer miss it.
        if (event["event"] == "progress" && event["step"] == 4) throw Error("gone");
      });
      ADD_FAILURE() << "the run went on without a rank";
    } catch (const PeerError& error) {
      named += std::string(error.what()).find("alpha") != std::string::npos;
    } catch (const Error&) {
      EXPECT_EQ(group.rank(), 0);
    }
  });
  EXPECT_GE(named, 2) << "rank 1 shares its replica, rank 2 its modelets";
}

TEST_F(ReplicasTest, RefuseGroupsThatAreNotEqual) {
  try {
    run("three", {.size = 3});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cluster.replicas is 2"), HasSubstr("3 node(s)")));
  }
  const fs::path checkpoint = run("two", {.size = 2}).checkpoint();
  experiment_.cluster.replicas = 1;
  EXPECT_THAT(failure(checkpoint), HasSubstr("train.batch x cluster.replicas"));
}

}  // namespace
}  // namespace modelet::agent::testing
