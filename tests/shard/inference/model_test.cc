// Sparse inference compared with scoring everything, and the single-query path with the batch path.
#include "shard/inference/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/file.h"
#include "shard/data/batch/split.h"
#include "shard/inference/explanation.h"
#include "shard/inference/nearest_samples.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/gemm.h"
#include "shard/kernels/row_dots.h"
#include "shard/modelet/state.h"
#include "shard/synth/synth.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

TEST(CollisionTablesTest, CountsAndChoosesLikeBruteForce) {
  constexpr size_t kRows = 500, kFirst = 100;
  constexpr uint32_t kOfCodes = 12, kTables = 9, kBits = 3, kBucket = 40;
  Rng rng(3);
  std::vector<uint32_t> codes(kRows * kOfCodes), query(kOfCodes);
  for (uint32_t& code : codes) code = rng.below(1u << kBits);
  const CollisionTables tables(codes, kOfCodes, kTables, kBits, kFirst);
  CollisionTables::Memory scratch;
  for (int round = 0; round < 20; ++round) {
    for (uint32_t& code : query) code = rng.below(1u << kBits);
    std::map<uint32_t, uint32_t> counts;
    for (uint32_t t = 0; t < kTables; ++t) {
      uint32_t looked_at = 0;
      for (uint32_t row = 0; row < kRows - kFirst && looked_at < kBucket; ++row)
        if (codes[(kFirst + row) * kOfCodes + t] == query[t]) ++counts[row], ++looked_at;
    }
    for (const size_t limit : {1, 7, 60, 1000}) {
      tables.count(query, kTables, kBucket, scratch);
      std::vector<uint32_t> chosen(limit);
      chosen.resize(CollisionTables::choose(limit, scratch, chosen.data()));
      EXPECT_EQ(chosen.size(), std::min(limit, counts.size()));
      EXPECT_EQ(std::set<uint32_t>(chosen.begin(), chosen.end()).size(), chosen.size()) << "each once";
      uint32_t worst = ~0u;
      for (const uint32_t row : chosen) worst = std::min(worst, counts.at(row));
      size_t better = 0;
      for (const auto& [row, count] : counts) better += count > worst ? 1 : 0;
      EXPECT_LE(better, chosen.size()) << "nothing that collided more often is missing";
      for (const auto& [row, count] : counts)
        EXPECT_TRUE(count <= worst || std::ranges::count(chosen, row) > 0) << row;
      EXPECT_TRUE(std::ranges::all_of(scratch.counts, [](uint8_t c) { return c == 0; }));
    }
  }
}

TEST(RowDotsTest, EqualTheReference) {
  constexpr size_t kStride = 80, kRows = 37;
  Rng rng(4);
  AlignedVector<float> rows(kRows * kStride), x(kStride);
  for (float& v : rows) v = rng.normal();
  for (float& v : x) v = rng.normal();
  std::vector<uint32_t> indices(23);
  for (uint32_t& i : indices) i = rng.below(kRows);
  for (const size_t n : {16, 48, 64}) {
    std::vector<float> all(kRows), some(indices.size());
    kernels::row_dots(rows.data(), kStride, kRows, x.data(), n, all.data());
    kernels::scattered_row_dots(rows.data(), kStride, indices.data(), indices.size(), x.data(), n,
                                some.data());
    for (size_t r = 0; r < kRows; ++r)
      EXPECT_NEAR(all[r], std::inner_product(x.begin(), x.begin() + n, &rows[r * kStride], 0.0f), 1e-4);
    for (size_t i = 0; i < indices.size(); ++i) EXPECT_NEAR(some[i], all[indices[i]], 1e-4);
    AlignedVector<Bf16> narrow(rows.size());
    kernels::narrow(rows.data(), narrow.data(), rows.size());
    kernels::scattered_row_dots(narrow.data(), kStride, indices.data(), indices.size(), x.data(), n,
                                some.data());
    for (size_t i = 0; i < indices.size(); ++i)
      EXPECT_NEAR(some[i], kernels::dot(x.data(), &narrow[indices[i] * kStride], n), 1e-4);
  }
}

std::vector<size_t> numbers(const SparseSettings& s) {
  return {s.rows, s.head, s.tables, s.bits, s.bucket, s.candidates};
}

// A checkpoint with an untrained model. Some of its rows are much longer than others and have biases.
class ModelTest : public ::testing::Test {
 protected:
  ModelTest() {
    write_synth({.rows_train = 400, .rows_test = 900, .features = 300, .labels = kLabels, .seed = 5},
                folder_.path(), false);
    experiment_.data.train = (folder_.path() / "train.mlt").string();
    experiment_.data.test = (folder_.path() / "test.mlt").string();
    experiment_.model.hidden = {64, 32};
    data_ = Dataset::open(experiment_.data.test);
  }

  // `favourite` > 0 is a bias with which one label is the best for every query.
  std::filesystem::path write_checkpoint(float favourite = 0) {
    const DataShape shape{.features = 300, .labels = kLabels, .train_rows = 400};
    const std::vector<ModeletSpec> partition = partition_model(experiment_, shape);
    ThreadPool pool(1);
    Network network(experiment_, shape, partition, true, pool);
    network.initialise();
    const Dataset train = Dataset::open(experiment_.data.train);
    network.build_pairs(train, all_rows(train.rows()));
    network.set_label_counts(count_labels(train));
    Rng rng(8);
    std::vector<float> row(32), scratch(32);
    for (Modelet* modelet : network.output().modelets()) {
      Parameters& p = modelet->parameters();
      for (size_t r = 0; r < p.rows(); ++r) {
        const float length = rng.below(50) == 0 ? 3.0f : 1.0f;
        std::copy_n(p.weights().row(r, scratch.data()), 32, row.begin());
        for (float& v : row) v *= length;
        p.set_row(r, row.data());
        p.bias(r) = 0.05f * rng.normal();
        if (Direct* direct = modelet->direct()) {
          for (float& weight : direct->pairs.of_row(std::span(direct->classifiers->weights), r))
            weight = 0.5f * rng.normal();
          direct->classifiers->biases[r] = 0.1f * rng.normal();
        }
      }
    }
    network.output().modelets().front()->parameters().bias(0) += favourite;
    const CheckpointWriter writer(folder_.path() / "checkpoints", 1);
    CheckpointIndex index{.step = 1, .experiment = experiment_, .shape = shape};
    for (const auto& modelet : network.modelets()) index.modelets.push_back(save_modelet(*modelet, writer));
    return writer.commit(std::move(index), 1);
  }

  void expect_sparse_agrees();

  // Uses a direct path, priors that decide many queries, and rare labels with a small share.
  void use_direct_path() {
    experiment_.model.centroids = true;
    experiment_.model.classifiers = 1;
    experiment_.sampling.prior = 0.5f;
    experiment_.model.rare_trust = 0.25f;
    experiment_.model.loss = Loss::kSigmoid;
  }

  static constexpr size_t kLabels = 9000;
  testing::TemporaryFolder folder_;
  Experiment experiment_;
  Dataset data_;
};

TEST_F(ModelTest, SingleQueriesEqualTheBatchPath) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    experiment_.model.precision = precision;
    if (precision == Precision::kBf16) use_direct_path();
    Model model(write_checkpoint(), 2);
    Model::Session session = model.session();
    Batch batch;
    std::vector<uint32_t> rows(40);
    std::iota(rows.begin(), rows.end(), 0u);
    batch.assign(data_, rows, false);
    TopK expected;
    model.predict(batch, 5, expected);
    // Where batches are multiplied in bf16, labels whose scores are nearly equal may be in another order.
    const bool exact = precision == Precision::kFp32 || !kernels::pairs_pay();
    for (size_t s = 0; s < rows.size(); ++s) {
      const TopK& best = session.dense(data_.sample(s), 5);
      for (size_t i = 0; i < 5; ++i) {
        if (exact) {
          EXPECT_EQ(best.labels(0)[i], expected.labels(s)[i]);
        }
        EXPECT_NEAR(best.scores(0)[i], expected.scores(s)[i], exact ? 1e-4 : 0.02);
      }
    }
  }
}

TEST_F(ModelTest, SaysWhatLabelsAreCalledAndHowLikelyTheyAreRight) {
  std::string text;
  for (size_t label = 0; label < kLabels; ++label) text += "name " + std::to_string(label) + "\n";
  const std::filesystem::path names = folder_.write("names", text), checkpoint = write_checkpoint();
  Model model(checkpoint, 1, names);
  const auto sample = data_.sample(3);
  Model::Session session = model.session();
  const TopK& best = session.dense(sample, 3);
  const std::vector<ScoredLabel> plain = model.predict(sample, 3);
  ASSERT_EQ(plain.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plain[i].label, best.labels(0)[i]);
    EXPECT_EQ(plain[i].score, best.scores(0)[i]);
    EXPECT_EQ(plain[i].name, "name " + std::to_string(plain[i].label));
    EXPECT_EQ(plain[i].probability, 0);
  }
  model.set_calibration(Calibration{});
  EXPECT_EQ(model.depth(3), kNormalisedOver);
  const std::vector<ScoredLabel> likely = model.predict(sample, 3);
  ASSERT_EQ(likely.size(), 3u);
  EXPECT_EQ(likely[0].label, plain[0].label);
  EXPECT_GT(likely[0].probability, likely[2].probability);
  EXPECT_GT(likely[2].probability, 0);
}

TEST_F(ModelTest, ReadsNamesOnlyFromItsOwnFolder) {
  experiment_.data.labels = folder_.write("names", std::string(kLabels, '\n'));
  const std::filesystem::path checkpoint = write_checkpoint();
  EXPECT_TRUE(Model(checkpoint).misses_names()) << "of a stranger's choice";
  EXPECT_TRUE(Model(checkpoint).label_names().empty());
  folder_.write(kLabelNamesFile, std::string(kLabels, '\n'));  // the run's copy
  EXPECT_FALSE(Model(checkpoint).misses_names());
  EXPECT_EQ(Model(checkpoint).label_names().size(), kLabels);
}

TEST_F(ModelTest, ChoosesAmongSomeLabels) {
  use_direct_path();
  Model model(write_checkpoint(), 2);
  model.prepare_sparse(data_);
  Rng rng(4);
  std::vector<uint32_t> chosen(40);
  for (uint32_t& label : chosen) label = rng.below(kLabels);
  const LabelSet among(kLabels, chosen);
  Batch batch;
  batch.assign(data_, all_rows(20), false);
  std::vector<float> scores(batch.size() * kLabels);
  model.score(batch, scores.data());
  TopK best;
  model.predict(batch, 5, best, SearchMode::kSparse, &among);
  for (size_t s = 0; s < batch.size(); ++s) {
    std::vector<uint32_t> expected(chosen);
    std::ranges::sort(expected);
    expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
    ASSERT_EQ(among.size(), expected.size());
    std::ranges::stable_sort(expected, std::ranges::greater{},
                             [&](uint32_t label) { return scores[s * kLabels + label]; });
    expected.resize(5);
    EXPECT_TRUE(std::ranges::equal(best.labels(s), expected)) << s;
    const std::vector<ScoredLabel> single = model.predict(data_.sample(s), 5, SearchMode::kSparse, &among);
    ASSERT_EQ(single.size(), 5u);
    EXPECT_NEAR(single[0].score, scores[s * kLabels + expected[0]], 0.02);
    for (const ScoredLabel& each : single) EXPECT_TRUE(among.contains(each.label));
  }
  const std::vector<uint32_t> two = {7, 8999};
  const LabelSet few(kLabels, two);
  EXPECT_EQ(model.predict(data_.sample(0), 5, SearchMode::kDense, &few).size(), 2u);
}

TEST_F(ModelTest, ReadsLabelsByTheirNamesOrNumbers) {
  Model numbered(write_checkpoint());
  EXPECT_EQ(numbered.read_label_set(folder_.write("some", "3\n8999\n\n3\n")).size(), 2u);
  EXPECT_THROW(numbered.read_label_set(folder_.write("beyond", "9000\n")), FormatError);
  EXPECT_THROW(numbered.read_label_set(folder_.write("named", "games\n")), FormatError);
  EXPECT_THROW(numbered.read_label_set(folder_.write("empty", "\n")), UsageError);
  std::string text;
  for (size_t label = 0; label < kLabels; ++label) text += std::to_string(label + 1) + "\n";
  Model named(write_checkpoint(), 1, folder_.write("names", text));
  EXPECT_TRUE(named.read_label_set(folder_.write("one", "9000\n")).contains(8999)) << "it is a name";
  EXPECT_THROW(named.read_label_set(folder_.write("zero", "0\n")), FormatError);
}

TEST_F(ModelTest, ExplainsScoresByTheirParts) {
  for (const bool direct : {false, true}) {
    if (direct) use_direct_path();
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      experiment_.model.precision = precision;
      const Model model(write_checkpoint());
      for (size_t s = 0; s < 30; ++s) {
        const Sample sample = data_.sample(s);
        for (const ScoredLabel& found : model.predict(sample, 3)) {
          const Explanation why = explain(model, sample, found.label);
          ASSERT_EQ(why.features.size(), sample.features.size());
          double sum = why.rest;
          for (const FeatureShare& each : why.features) sum += each.share;
          EXPECT_NEAR(sum, why.score, 1e-9);
          EXPECT_NEAR(sum, found.score, 1e-5 * std::max(1.0f, std::abs(found.score)));
          for (size_t f = 1; f < why.features.size(); ++f)
            EXPECT_GE(std::abs(why.features[f - 1].share), std::abs(why.features[f].share));
        }
      }
    }
  }
}

// Those with the label whose features have the largest cosines, and none without a common feature.
TEST_F(ModelTest, NearestSamplesAreThoseOfBruteForce) {
  const NearestSamples samples(Dataset::open(experiment_.data.test));
  const auto cosine = [](const Sample& one, const Sample& two) {
    double product = 0, a = 0, b = 0;
    for (size_t i = 0; i < one.features.size(); ++i)
      for (size_t j = 0; j < two.features.size(); ++j)
        if (one.features[i] == two.features[j]) product += double{one.values[i]} * two.values[j];
    for (const float value : one.values) a += double{value} * value;
    for (const float value : two.values) b += double{value} * value;
    return product / std::sqrt(a * b);
  };
  size_t all = 0;
  for (size_t s = 0; s < 20; ++s) {
    const Sample sample = data_.sample(s);
    const uint32_t label = data_.sample(s / 2).labels.front();
    std::vector<std::pair<double, uint32_t>> expected;
    for (uint32_t row = 0; row < data_.rows(); ++row)
      if (std::ranges::count(data_.sample(row).labels, label) > 0)
        if (const double found = cosine(sample, data_.sample(row)); found > 0) expected.emplace_back(-found, row);
    std::ranges::sort(expected);
    const auto found = samples.find(sample, label, 3);
    ASSERT_EQ(found.size(), std::min<size_t>(3, expected.size()));
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i].cosine, -expected[i].first, 1e-6);
    all += found.size();
  }
  EXPECT_GT(all, 20u);
  EXPECT_TRUE(samples.find({}, 0, 3).empty());
  EXPECT_TRUE(samples.find(data_.sample(0), kLabels, 3).empty()) << "a label that came later";
}

// A small change of a feature's value changes the score by the change times the feature's factor, which is its share
// over its value.
TEST_F(ModelTest, SharesAreDerivatives) {
  const Model model(write_checkpoint());
  const Sample sample = data_.sample(2);
  const uint32_t label = model.predict(sample, 1).front().label;
  const Explanation why = explain(model, sample, label);
  for (size_t f = 0; f < sample.features.size(); ++f) {
    const auto share = std::ranges::find(why.features, sample.features[f], &FeatureShare::feature)->share;
    const auto score_at = [&](float factor) {
      std::vector<float> values(sample.values.begin(), sample.values.end());
      values[f] *= factor;
      return explain(model, {sample.features, values, {}}, label).score;
    };
    EXPECT_NEAR((score_at(1.001f) - score_at(0.999f)) / 0.002, share, 0.02 * std::abs(share) + 1e-3);
  }
}

TEST_F(ModelTest, SparseAgreesWithDense) { expect_sparse_agrees(); }

TEST_F(ModelTest, SparseAgreesWithDenseWithADirectPath) {
  use_direct_path();
  expect_sparse_agrees();
}

void ModelTest::expect_sparse_agrees() {
  Model model(write_checkpoint(), 2);
  model.prepare_sparse(data_);
  EXPECT_GE(model.sparse_settings().recall, 0.998);
  const SparseSettings& settings = model.sparse_settings().settings;
  EXPECT_LE(settings.rows, kLabels);
  EXPECT_LE(model.sparse_settings().cost, static_cast<double>(kLabels));
  // The tuner must count what the index really does.
  Model::Session session = model.session();
  std::vector<uint32_t> all(data_.rows());
  std::iota(all.begin(), all.end(), 0u);
  Batch batch;
  batch.assign(data_, all, false);
  TopK sparse;
  model.predict(batch, 3, sparse, SearchMode::kSparse);
  size_t agreed = 0;
  for (size_t s = 0; s < data_.rows(); ++s) {
    agreed += session.dense(data_.sample(s), 1).labels(0)[0] == sparse.labels(s)[0] ? 1 : 0;
    const TopK& single = session.sparse(data_.sample(s), 3);
    EXPECT_TRUE(std::ranges::equal(single.labels(0), sparse.labels(s)));
  }
  EXPECT_DOUBLE_EQ(static_cast<double>(agreed) / static_cast<double>(data_.rows()),
                   model.sparse_settings().recall)
      << "all samples are tuning queries here";
}

TEST_F(ModelTest, SettingsDoNotDependOnThreads) {
  const std::filesystem::path checkpoint = write_checkpoint();
  Model one(checkpoint, 1), three(checkpoint, 3);
  one.prepare_sparse(data_);
  std::filesystem::remove(checkpoint / kSparsePlanFile);
  three.prepare_sparse(data_);
  EXPECT_EQ(numbers(one.sparse_settings().settings), numbers(three.sparse_settings().settings));
}

// A model that has learned little gives the same label to everything. The index must still know more than one
// label.
TEST_F(ModelTest, SparseHasMoreThanTheBestLabel) {
  Model model(write_checkpoint(100), 1);
  model.prepare_sparse(data_);
  Model::Session session = model.session();
  EXPECT_EQ(std::ranges::count(session.sparse(data_.sample(0), 100).labels(0), TopK::kNoLabel), 0);
}

TEST_F(ModelTest, TablesFindWhatTheHeadLeaves) {
  Model model(write_checkpoint(), 1);
  Model::Session session = model.session();
  model.prepare_sparse(data_);
  const std::vector<Modelet*>& output = model.network().output().modelets();
  // Rows in any order, a short head and many tables test the retrieval by itself.
  RowOrder order;
  order.neurons.resize(kLabels);
  std::iota(order.neurons.begin(), order.neurons.end(), 0u);
  order.row_mean.assign(32, 0.0f);
  order.query_mean.assign(32, 0.0f);
  const SparseIndex index(
      model.network().scoring(), order,
      {.rows = kLabels, .head = 100, .tables = 64, .bits = 5, .bucket = 9000, .candidates = 3000}, 1,
      model.network().pool());
  AlignedVector<float> hidden(32);
  Rng rng(2);
  SparseIndex::Memory scratch;
  TopK best;
  size_t found = 0;
  constexpr size_t kQueries = 100;
  for (size_t q = 0; q < kQueries; ++q) {
    for (float& h : hidden) h = rng.normal();
    best.reset(1, 1);
    index.rank(hidden.data(), nullptr, scratch, 0, best);
    double highest = -1e9;
    uint32_t label = 0;
    for (const Modelet* modelet : output)
      for (size_t r = 0; r < modelet->parameters().rows(); ++r) {
        const double score = modelet->parameters().logit(r, hidden.data());
        if (score > highest) {
          highest = score;
          label = model.network().spread().label(static_cast<uint32_t>(modelet->spec().begin + r));
        }
      }
    found += best.labels(0)[0] == label ? 1 : 0;
  }
  EXPECT_GE(found, kQueries * 9 / 10);
}

TEST_F(ModelTest, KeepsThePlanBesideTheCheckpoint) {
  const std::filesystem::path checkpoint = write_checkpoint(), file = checkpoint / kSparsePlanFile;
  const auto prepared = [&](const Dataset& data) {
    Model model(checkpoint, 1);
    model.prepare_sparse(data);
    Model::Session session = model.session();
    std::vector<uint32_t> answers;
    for (size_t q = 0; q < 100; ++q) answers.push_back(session.sparse(data_.sample(q), 1).labels(0)[0]);
    return std::pair(numbers(model.sparse_settings().settings), answers);
  };
  const auto fresh = prepared(data_);
  const std::string stored = testing::bytes_of(file);
  // A plan that is read is not written again: the file stays the same.
  std::filesystem::create_hard_link(file, folder_ / "link");
  EXPECT_EQ(prepared(data_), fresh);
  EXPECT_TRUE(std::filesystem::equivalent(file, folder_ / "link"));
  // Another model or other queries make a plan of their own.
  prepared(Dataset::open(folder_.path() / "train.mlt"));
  EXPECT_NE(testing::bytes_of(file), stored);
  // A damaged plan is made again.
  std::string damaged = stored;
  damaged[damaged.size() / 2] ^= 1;
  folder_.write("damaged", damaged);
  std::filesystem::rename(folder_ / "damaged", file);
  EXPECT_EQ(prepared(data_), fresh);
  EXPECT_EQ(testing::bytes_of(file), stored);
  // The plan cannot be written.
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_EQ(prepared(data_), fresh);
  EXPECT_TRUE(std::filesystem::is_directory(file));
}

TEST(SparsePlanTest, ReadsOnlyWhatWasWritten) {
  const testing::TemporaryFolder folder;
  constexpr uint64_t kKey = 77;
  constexpr size_t kNeurons = 500, kWidth = 16;
  SparsePlan plan{{{.rows = 90, .head = 30, .tables = 8, .bits = 3, .bucket = 16, .candidates = 64}, 0.5, 7},
                  {}};
  for (uint32_t i = 0; i < kNeurons; ++i) plan.order.neurons.push_back(kNeurons - 1 - i);
  plan.order.row_mean.assign(kWidth, 0.25f);
  plan.order.query_mean.assign(kWidth, -1.5f);
  write_sparse_plan(folder / "plan", kKey, plan);
  const auto read = read_sparse_plan(folder / "plan", kKey, kNeurons, kWidth);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(numbers(read->tuned.settings), numbers(plan.tuned.settings));
  EXPECT_EQ(read->tuned.recall, 0.5);
  EXPECT_EQ(read->tuned.cost, 7);
  plan.order.neurons.resize(90);
  EXPECT_EQ(read->order.neurons, plan.order.neurons);
  EXPECT_EQ(read->order.row_mean, plan.order.row_mean);
  EXPECT_EQ(read->order.query_mean, plan.order.query_mean);
  EXPECT_FALSE(read_sparse_plan(folder / "plan", kKey + 1, kNeurons, kWidth));
  EXPECT_FALSE(read_sparse_plan(folder / "plan", kKey, kNeurons, kWidth + 1));
  EXPECT_FALSE(read_sparse_plan(folder / "plan", kKey, kNeurons - 1, kWidth)) << "neuron 499 is out of range";
  EXPECT_FALSE(read_sparse_plan(folder / "none", kKey, kNeurons, kWidth));
  const std::string good = testing::bytes_of(folder / "plan");
  for (size_t at = 0; at < good.size(); at += 7) {
    std::string damaged = good;
    damaged[at] ^= 0x20;
    const auto found = read_sparse_plan(folder.write("damaged", damaged), kKey, kNeurons, kWidth);
    EXPECT_TRUE(!found || found->order.neurons == plan.order.neurons) << at;
  }
  // A right checksum does not make the settings plausible.
  plan.tuned.settings.tables = 1 << 30;
  write_sparse_plan(folder / "plan", kKey, plan);
  EXPECT_FALSE(read_sparse_plan(folder / "plan", kKey, kNeurons, kWidth));
}

TEST_F(ModelTest, RefusesWhatItCannotDo) {
  Model model(write_checkpoint(), 1);
  write_synth({.rows_train = 10, .rows_test = 10, .features = 300, .labels = 10, .labels_per_row = 1},
              folder_.path() / "other", false);
  EXPECT_THROW(model.load_data(folder_.path() / "other/test.mlt"), UsageError);
  write_synth({.rows_train = 10, .rows_test = 20, .features = 300, .labels = kLabels, .labels_per_row = 1},
              folder_.path() / "few", false);
  EXPECT_THROW(model.prepare_sparse(model.load_data(folder_.path() / "few/test.mlt")), UsageError);
  EXPECT_THROW(Model(folder_.path() / "nowhere"), UsageError);
}

}  // namespace
}  // namespace modelet::shard
