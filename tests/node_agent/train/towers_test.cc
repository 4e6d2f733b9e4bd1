// Towers: what they learn, how one model comes of them, and how a run of them goes on.
#include "node_agent/train/towers.h"

#include <cmath>
#include <map>
#include <set>

#include "base/experiment/towers.h"
#include "node_agent/train/data/tower_samples.h"
#include "node_agent/train/local_run.h"
#include "node_agent/train/train.h"
#include "shard/data/batch/split.h"
#include "shard/data/pairs/divide_labels.h"
#include "shard/inference/explanation.h"
#include "shard/inference/model.h"
#include "shard/layers/loss/loss.h"
#include "tests/error_of.h"
#include "tests/node_agent/train/trainer_harness.h"

namespace modelet::agent::testing {
namespace {

using test::error_of;

class TowersTest : public TrainerTest {
 protected:
  static constexpr uint32_t kTowers = 3;

  TowersTest() {
    experiment_.model.towers = kTowers;
    experiment_.model.loss = Loss::kSigmoid;
    experiment_.modelets.output_modelets = 2;
    experiment_.train.learning_rate = 0.01f;
    experiment_.train.epochs = 3;
  }

  TrainJob job(const std::string& name, const fs::path& resume = {}) const {
    TrainJob job = job_of_one_node(name, experiment_, shape_);
    job.threads = 1;
    job.out = folder_ / name;
    job.resume = resume;
    return job;
  }
  // Returns the events. `stop_at`: the run is asked to stop when it returns true.
  std::vector<json> train(const TrainJob& job, const std::function<bool(const json&)>& stop_at = {}) const {
    LocalRun run(job);
    std::vector<json> events;
    const auto note = [&](const json& event) {
      events.push_back(event);
      if (stop_at && stop_at(event)) run.request_stop();
    };
    try {
      run.run(note);
    } catch (const Interrupted&) {
    }
    return events;
  }
  shard::Dataset test_data() const { return shard::Dataset::open(experiment_.data.test); }

  // [samples, labels]
  std::vector<float> scores_of(shard::Model& model) const {
    const shard::Dataset data = test_data();
    shard::Batch batch;
    batch.assign(data, shard::all_rows(data.rows()), false);
    std::vector<float> scores(data.rows() * data.labels());
    model.score(batch, scores.data());
    return scores;
  }
};

TEST_F(TowersTest, EveryLabelIsInOneTowerOfEachDivision) {
  experiment_.model.divisions = 3;
  ThreadPool pool(2);
  const shard::Dataset data = shard::Dataset::open(experiment_.data.train);
  for (const TowerLabels kind : all_values<TowerLabels>()) {
    experiment_.model.tower_labels = kind;
    const shard::LabelDivision division =
        shard::divide_labels(experiment_, data, shard::all_rows(data.rows()), pool);
    const std::vector<uint32_t> counts = shard::count_labels(data);
    const auto parts = division.parts(counts);
    const uint32_t most = std::ranges::max(counts);
    ASSERT_EQ(parts.size(), 9u);
    for (uint32_t first = 0; first < 9; first += 3) {
      std::set<uint32_t> seen;
      uint64_t entries = 0;
      for (uint32_t task = first; task < first + 3; ++task) {
        const shard::LabelSpread spread = division.spread(task);
        EXPECT_EQ(spread.neurons(), parts[task].labels);
        uint64_t of_task = 0;
        for (uint32_t neuron = 0; neuron < spread.neurons(); ++neuron)
          of_task += counts[spread.label(neuron)];
        EXPECT_EQ(of_task, parts[task].entries);
        for (uint32_t neuron = 0; neuron < spread.neurons(); ++neuron) {
          EXPECT_TRUE(seen.insert(spread.label(neuron)).second) << "in two towers";
          EXPECT_EQ(spread.neuron(spread.label(neuron)), neuron);
        }
        entries += parts[task].entries;
        // As equal as whole labels allow, where each label is one more sample.
        EXPECT_NEAR(static_cast<double>(parts[task].entries + parts[task].labels),
                    static_cast<double>(data.label_entries() + data.labels()) / 3, 2.0 * (most + 1));
      }
      EXPECT_EQ(seen.size(), data.labels());
      EXPECT_EQ(entries, data.label_entries());
    }
    const fs::path file = folder_ / "division.safetensors";
    division.write(file);
    EXPECT_EQ(shard::LabelDivision::read(file, 3, 3, data.labels()), division);
    EXPECT_NE(error_of([&] { shard::LabelDivision::read(file, 2, 3, data.labels()); }), "no error");
    EXPECT_NE(error_of([&] { shard::LabelDivision::read(file, 4, 3, data.labels()); }), "no error");
    EXPECT_EQ(shard::divide_labels(experiment_, data, shard::all_rows(data.rows()), pool), division);
  }
}

// Two kinds of samples, whose features and labels have nothing in common.
TEST_F(TowersTest, ClustersHaveLabelsWhoseSamplesAreAlike) {
  std::string text = "40 20 8\n";
  for (int i = 0; i < 40; ++i) {
    const int kind = i % 2;
    text += std::to_string(4 * kind + i / 2 % 4) + " " + std::to_string(10 * kind + i % 3) + ":1 " +
            std::to_string(10 * kind + 4 + i % 5) + ":1\n";
  }
  prepare(text);
  experiment_.model.towers = 2;
  ThreadPool pool(1);
  const shard::Dataset data = shard::Dataset::open(experiment_.data.train);
  const shard::LabelSpread first =
      shard::divide_labels(experiment_, data, shard::all_rows(data.rows()), pool).spread(0);
  ASSERT_EQ(first.neurons(), 4u);
  for (uint32_t neuron = 1; neuron < 4; ++neuron) EXPECT_EQ(first.label(neuron) / 4, first.label(0) / 4);
}

TEST_F(TowersTest, OneModelComesOfThem) {
  experiment_.model.centroids = true;
  experiment_.model.classifiers = 1;
  const std::vector<json> events = train(job("run"));
  EXPECT_EQ(events.front().at("event"), "started");
  EXPECT_EQ(std::ranges::count(events, "tower_finished", [](const json& e) { return e.at("event"); }),
            kTowers);
  const json& finished = events.back();
  ASSERT_EQ(finished.at("event"), "finished");
  EXPECT_FALSE(fs::exists(folder_ / "run" / "towers"));

  shard::Model model(folder_ / "run");
  ASSERT_EQ(model.towers().size(), kTowers);
  const std::vector<float> scores = scores_of(model);
  const shard::Dataset data = test_data();
  shard::Batch batch;
  batch.assign(data, shard::all_rows(data.rows()), false);
  constexpr size_t kBest = 5;
  shard::TopK best;
  model.predict(batch, kBest, best);
  auto session = model.session();
  size_t hits = 0;
  for (size_t s = 0; s < data.rows(); ++s) {
    std::vector<std::pair<float, uint32_t>> order;
    for (uint32_t label = 0; label < data.labels(); ++label)
      order.emplace_back(-scores[s * data.labels() + label], label);
    std::ranges::sort(order);
    const shard::TopK& single = session.dense(data.sample(s), kBest);
    for (size_t i = 0; i < kBest; ++i) {
      EXPECT_EQ(best.labels(s)[i], order[i].second) << "the best of all towers";
      EXPECT_NEAR(single.scores(0)[i], best.scores(s)[i], 1e-4);
    }
    hits += std::ranges::count(data.sample(s).labels, best.labels(s)[0]) > 0 ? 1 : 0;
  }
  EXPECT_NEAR(finished.at("p_at_1").get<double>(),
              static_cast<double>(hits) / static_cast<double>(data.rows()), 1e-9);
  EXPECT_GT(finished.at("p_at_1").get<double>(), 0.3) << "they learn";
  EXPECT_EQ(model.label_counts(), shard::count_labels(shard::Dataset::open(experiment_.data.train)));
}

// A tower is the network of its labels: one that is trained on data which has no other labels learns the same.
TEST_F(TowersTest, ATowerKnowsNothingOfOtherLabels) {
  for (const bool alone : {false, true}) {
    TrainJob whole = job(alone ? "alone" : "tower");
    ThreadPool pool(1);
    const shard::LabelDivision division = start_of_towers(whole, pool).division;
    const auto part = division.parts(shard::count_labels(shard::Dataset::open(experiment_.data.train)))[1];
    if (alone) {
      const shard::Dataset data = shard::Dataset::open(experiment_.data.train);
      const shard::LabelSpread own = division.spread(1);
      const fs::path file = folder_ / "of_tower.mlt";
      shard::PreparedWriter writer(file, data.features(), data.labels(), data.normalize());
      for (size_t row = 0; row < data.rows(); ++row) {
        const shard::Sample sample = data.sample(row);
        std::vector<uint32_t> labels;
        for (const uint32_t label : sample.labels)
          if (own.neuron(label) != shard::LabelSpread::kNoNeuron) labels.push_back(label);
        writer.add({sample.features, sample.values, labels});
      }
      writer.finish();
      whole.experiment.data.train = file;
      whole.shape.fingerprint = 0;
    }
    const TrainJob tower = tower_job(whole, part);
    const TowerSamples samples(tower, division.spread(1), 1);
    TrainJob with_samples = tower;
    with_samples.samples = &samples;
    Trainer trainer(with_samples);
    trainer.prepare();
    trainer.run(*comm::make_solo_group(), [](const json&) {});
  }
  const shard::Checkpoint a = shard::Checkpoint::open(shard::find_checkpoint(folder_ / "tower")),
                          b = shard::Checkpoint::open(shard::find_checkpoint(folder_ / "alone"));
  for (const shard::CheckpointEntry& entry : a.index().modelets)
    EXPECT_TRUE(std::ranges::equal(a.open_modelet(entry.spec).bytes(), b.open_modelet(entry.spec).bytes()))
        << entry.file;
}

TEST_F(TowersTest, ScoresOfALabelInSeveralTowersAreAveraged) {
  for (const bool common : {false, true}) {
    SCOPED_TRACE(common ? "common labels" : "divisions");
    experiment_.model.divisions = common ? 1 : 2;
    experiment_.model.tower_common = common ? 7 : 0;
    experiment_.model.tower_labels = TowerLabels::kMixed;
    const std::string name = common ? "common" : "divisions";
    const json finished = train(job(name)).back();
    shard::Model model(folder_ / name);
    ASSERT_EQ(model.towers().size(), experiment_.model.divisions * kTowers);
    const std::vector<float> scores = scores_of(model);
    const shard::Dataset data = test_data();
    shard::Batch batch;
    batch.assign(data, shard::all_rows(data.rows()), false);
    std::vector<double> sums(scores.size());
    std::vector<float> own(scores.size());
    for (const auto& tower : model.towers()) {
      std::ranges::fill(own, 0.0f);
      tower->score(batch, own.data());
      for (size_t i = 0; i < own.size(); ++i) sums[i] += own[i];
    }
    std::vector<uint32_t> owners(data.labels());
    for (const auto& tower : model.towers())
      for (uint32_t neuron = 0; neuron < tower->network().spread().neurons(); ++neuron)
        ++owners[tower->network().spread().label(neuron)];
    EXPECT_EQ(std::ranges::count(owners, kTowers), common ? 7 : 0);
    for (size_t i = 0; i < sums.size(); ++i)
      EXPECT_NEAR(scores[i], sums[i] / owners[i % data.labels()], 1e-4);
    auto session = model.session();
    shard::TopK best;
    model.predict(batch, 3, best);
    size_t hits = 0;
    for (size_t s = 0; s < data.rows(); ++s) {
      const float* const of_sample = &scores[s * data.labels()];
      EXPECT_EQ(best.scores(s)[0], *std::max_element(of_sample, of_sample + data.labels()));
      EXPECT_NEAR(session.dense(data.sample(s), 3).scores(0)[0], best.scores(s)[0], 1e-4);
      hits += std::ranges::count(data.sample(s).labels, best.labels(s)[0]) > 0 ? 1 : 0;
    }
    const std::vector<uint32_t> chosen = {1, 4, 9, 12};
    const shard::LabelSet among(data.labels(), chosen);
    model.predict(batch, 1, best, shard::SearchMode::kDense, &among);
    for (size_t s = 0; s < data.rows(); ++s) {
      const auto score = [&](uint32_t label) { return scores[s * data.labels() + label]; };
      EXPECT_EQ(best.labels(s)[0], std::ranges::max(chosen, {}, score));
      const shard::Explanation why = shard::explain(model, data.sample(s), best.labels(s)[0]);
      EXPECT_NEAR(why.score, best.scores(s)[0], 0.02);  // batches may be multiplied in bf16
    }
    EXPECT_NEAR(finished.at("p_at_1").get<double>(),
                static_cast<double>(hits) / static_cast<double>(data.rows()), 1e-9);
    EXPECT_NE(error_of([&] { model.prepare_sparse(data); }).find("--sparse"), std::string::npos);
  }
}

// Which towers train at once, and with how many threads, changes nothing that they learn.
TEST_F(TowersTest, SeveralTrainAtOnce) {
  train(job("one"));
  TrainJob both = job("both");
  both.threads = 2;
  size_t done = 0;
  for (const json& event : train(both)) {
    if (event.at("event") == "tower_started") {
      EXPECT_EQ(event.at("threads"), 1) << "each of two has one";
    }
    if (event.at("event") == "tower_finished") ++done;
  }
  EXPECT_EQ(done, kTowers);
  shard::Model one(folder_ / "one"), two(folder_ / "both");
  EXPECT_EQ(scores_of(one), scores_of(two));
}

TEST_F(TowersTest, AStopEndsAllThatTrainAtOnce) {
  train(job("whole"));
  TrainJob left = job("left");
  left.threads = 2;
  std::vector<std::string> interrupted;
  for (const json& event : train(left, [](const json& event) {
         return event.at("event") == "tower_started" && event.at("tower") == 2;
       }))
    if (event.at("event") == "interrupted") interrupted.push_back(event.at("checkpoint"));
  EXPECT_EQ(interrupted, std::vector{(folder_ / "left").string()});
  left.resume = TowerRun::start_of(folder_ / "left");
  EXPECT_EQ(train(left).back().at("event"), "finished");
  shard::Model whole(folder_ / "whole"), rest(folder_ / "left");
  EXPECT_EQ(scores_of(whole), scores_of(rest));
}

TEST_F(TowersTest, ARunThatWasStoppedGoesOnToTheBit) {
  train(job("whole"));
  size_t steps = 0;
  const std::vector<json> events =
      train(job("left"), [&](const json& event) { return event.at("event") == "progress" && ++steps == 35; });
  ASSERT_EQ(events.back().at("event"), "interrupted");
  EXPECT_EQ(events.back().at("checkpoint"), (folder_ / "left").string());
  EXPECT_NE(error_of([&] { LocalRun(job("left")).run([](const json&) {}); }).find("--resume"),
            std::string::npos);
  const fs::path start = TowerRun::start_of(folder_ / "left");
  EXPECT_EQ(start, folder_ / "left" / "towers");
  const std::vector<json> rest = train(job("left", start));
  EXPECT_EQ(std::ranges::count(rest, "tower_started", [](const json& e) { return e.at("event"); }),
            kTowers - 1)
      << "the first one was done";
  shard::Model whole(folder_ / "whole"), left(folder_ / "left");
  EXPECT_EQ(scores_of(whole), scores_of(left));
}

TEST_F(TowersTest, AModelGoesOnForMoreEpochs) {
  experiment_.train.epochs = 4;
  train(job("whole"));
  experiment_.train.epochs = 2;
  train(job("first"));
  experiment_.train.epochs = 4;
  const fs::path model = shard::find_checkpoint(folder_ / "first");
  EXPECT_EQ(TowerRun::start_of(folder_ / "first"), model);
  train(job("then", model));
  shard::Model whole(folder_ / "whole"), then(folder_ / "then");
  EXPECT_EQ(scores_of(whole), scores_of(then));
  experiment_.model.towers = 2;
  EXPECT_NE(error_of([&] { LocalRun(job("other", model)).run([](const json&) {}); }).find("towers"),
            std::string::npos);
}

// The loss of a batch in which only some of the samples without labels are left has the same mean.
TEST_F(TowersTest, SamplesWithoutLabelsAreLeftOutWithoutBias) {
  experiment_.model.tower_samples = 0.25;
  const TrainJob whole = job("run");
  ThreadPool pool(1);
  const shard::LabelDivision division = start_of_towers(whole, pool).division;
  const auto part = division.parts(shard::count_labels(shard::Dataset::open(experiment_.data.train)))[0];
  const TrainJob tower = tower_job(whole, part);
  const TowerSamples samples(tower, division.spread(0), 0);
  const shard::Dataset data = samples.train({}, [](const std::string&) { return shard::PrepareProgress(); });
  const std::vector<uint32_t> all = shard::all_rows(data.rows()), kept = samples.trained(data, all);
  const auto labelled = [&](uint32_t row) { return !data.sample(row).labels.empty(); };
  EXPECT_EQ(std::ranges::count_if(all, labelled), std::ranges::count_if(kept, labelled));
  const auto others = static_cast<double>(std::ranges::count_if(all, std::not_fn(labelled)));
  EXPECT_NEAR(static_cast<double>(std::ranges::count_if(kept, std::not_fn(labelled))), others / 4,
              3 * std::sqrt(others * 0.25 * 0.75));

  shard::Batch batch;
  batch.assign(data, kept, false);
  batch.weigh_unlabelled(samples.unlabelled_weight());
  for (size_t s = 0; s < kept.size(); ++s) EXPECT_EQ(batch.weight(s), labelled(kept[s]) ? 1.0f : 4.0f);
  const size_t columns = padded(batch.size());
  AlignedVector<float> statistics(shard::kStatistics * columns);
  for (size_t s = 0; s < batch.size(); ++s)
    statistics[shard::kSum * columns + s] = 1 + static_cast<float>(s % 7);
  shard::BatchLoss loss;
  const ConstMatrix local{statistics.data(), shard::kStatistics, batch.size(), columns};
  shard::make_loss(Loss::kSigmoid)->combine(batch, std::span(&local, 1), loss);
  double sum = 0;
  for (size_t s = 0; s < batch.size(); ++s) {
    sum += batch.weight(s) * statistics[shard::kSum * columns + s];
    EXPECT_FLOAT_EQ(loss.factors[0][s], batch.weight(s) / static_cast<float>(batch.size()));
    EXPECT_FLOAT_EQ(loss.target_factor[s], batch.weight(s) / static_cast<float>(batch.size()));
  }
  EXPECT_NEAR(loss.loss, sum / static_cast<double>(batch.size()), 1e-6);
}

// What a submitter says of its towers decides how much memory an agent takes, and which neurons it has.
TEST_F(TowersTest, ADivisionThatIsNotThatOfTheRunIsRefused) {
  const TrainJob whole = job("run");
  ThreadPool pool(1);
  const shard::LabelDivision division = start_of_towers(whole, pool).division;
  const auto part = division.parts(shard::count_labels(shard::Dataset::open(experiment_.data.train)))[0];
  const auto refusal = [&](const shard::LabelSpread& spread, uint64_t labels) {
    const TrainJob tower = tower_job(whole, {.labels = labels, .entries = part.entries});
    const TowerSamples samples(tower, spread, 0);
    TrainJob with_samples = tower;
    with_samples.samples = &samples;
    return error_of([&] { Trainer(with_samples).prepare(); });
  };
  const shard::LabelSpread own = division.spread(0);
  EXPECT_EQ(refusal(own, part.labels), "no error");
  EXPECT_NE(refusal(own, part.labels + 1).find("the division gives it"), std::string::npos);
  EXPECT_NE(refusal(own, part.labels - 1).find("the division gives it"), std::string::npos);
  EXPECT_NE(refusal(shard::LabelSpread({0, 1, 2}, 10), 3).find("were made for 10 labels"), std::string::npos);
  EXPECT_NE(refusal(shard::LabelSpread({0, 1, 2}, 1000), 3), "no error");
}

TEST_F(TowersTest, ATowerAloneIsNoModel) {
  train(job("run"));
  const fs::path tower = shard::find_checkpoint(folder_ / "run") / "tower-001";
  EXPECT_NE(error_of([&] { shard::Model{tower}; }).find("tower of a model"), std::string::npos);
  // Another tower in its place is noticed.
  fs::remove_all(tower);
  fs::copy(shard::find_checkpoint(folder_ / "run") / "tower-000", tower);
  EXPECT_NE(error_of([&] { shard::Model{folder_ / "run"}; }).find("tower-001"), std::string::npos);
}

}  // namespace
}  // namespace modelet::agent::testing
