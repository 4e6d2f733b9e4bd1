// The training step compared with an independent reference (tests/golden/make_golden.py): logits, loss and
// gradients of the first step, the losses of ten steps, and the final tensors. It must be the same on one,
// two and three ranks, and on every instruction set of this machine.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "node_agent/train/evaluation/evaluator.h"
#include "shard/data/batch/split.h"
#include "tests/node_agent/ranks.h"
#include "tests/shard/kernels/forced_instruction_set.h"

namespace modelet::agent::testing {
namespace {

using nlohmann::json;

constexpr double kGoldenTolerance = 1e-5;  // relative to 1 + |expected|

// Tensors of the whole model by name, flattened row by row; output rows are labels.
using Tensors = std::map<std::string, std::vector<double>>;

void flatten(const json& nested, std::vector<double>& flat) {
  if (!nested.is_array()) return flat.push_back(nested.get<double>());
  for (const json& element : nested) flatten(element, flat);
}

std::vector<double> flat(const json& nested) {
  std::vector<double> values;
  flatten(nested, values);
  return values;
}

Tensors tensors(const json& named) {
  Tensors result;
  for (const auto& [name, values] : named.items()) result[name] = flat(values);
  return result;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], kGoldenTolerance * (1 + std::abs(expected[i])))
        << what << " [" << i << "]";
}

void expect_near(const Tensors& actual, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (const auto& [name, values] : expected) expect_near(actual.at(name), values, what + " " + name);
}

// Calls use(value in the modelet, value in the tensors) for every parameter.
template <class Use>
void for_each_parameter(const std::vector<std::unique_ptr<Rank>>& ranks, Tensors& whole, const Use& use) {
  for (const auto& rank : ranks)
    for (const auto& modelet : rank->network.modelets()) {
      const ModeletSpec& spec = modelet->spec();
      shard::Parameters& p = modelet->parameters();
      const Matrix weights = p.floats();
      if (spec.kind == LayerKind::kInput) {
        const size_t width = rank->network.experiment().model.hidden[0], bias_row = weights.rows - 1;
        for (size_t f = 0; f < bias_row; ++f)
          for (size_t c = 0; c < weights.cols; ++c)
            use(weights.row(f)[c], whole["input.weight"][f * width + spec.begin + c]);
        for (size_t c = 0; c < weights.cols; ++c)
          use(weights.row(bias_row)[c], whole["input.bias"][spec.begin + c]);
        continue;
      }
      const std::string kind = spec.kind == LayerKind::kHidden ? "hidden" : "output";
      for (size_t r = 0; r < weights.rows; ++r) {
        const auto neuron = static_cast<uint32_t>(spec.begin + r);
        const size_t row = spec.kind == LayerKind::kHidden ? neuron : rank->network.spread().label(neuron);
        for (size_t c = 0; c < weights.cols; ++c)
          use(weights.row(r)[c], whole[kind + ".weight"][row * weights.cols + c]);
        use(p.bias(r), whole[kind + ".bias"][row]);
      }
    }
}

void inject(const std::vector<std::unique_ptr<Rank>>& ranks, Tensors whole) {
  for_each_parameter(ranks, whole, [](float& mine, double& given) { mine = static_cast<float>(given); });
}

// Returns the tensors of the model. `shape` has tensors of the right sizes.
Tensors extract(const std::vector<std::unique_ptr<Rank>>& ranks, Tensors shape) {
  for (auto& [name, values] : shape) std::fill(values.begin(), values.end(), std::nan(""));
  for_each_parameter(ranks, shape, [](float& mine, double& out) { out = mine; });
  return shape;
}

class GoldenTest : public ::testing::TestWithParam<std::tuple<int, std::string>> {
 protected:
  GoldenTest() : ranks_(std::get<0>(GetParam())), forced_(std::get<1>(GetParam())) {
    std::ifstream file(MODELET_GOLDEN);
    golden_ = json::parse(file);
    std::vector<OwnedSample> samples;
    for (const json& batch : golden_["batches"])
      for (const json& sample : batch["samples"])
        samples.emplace_back(sample["features"].get<std::vector<uint32_t>>(),
                             sample["values"].get<std::vector<float>>(),
                             sample["labels"].get<std::vector<uint32_t>>());
    features_ = golden_["features"];
    labels_ = golden_["labels"];
    data_ = write_samples(folder_, "golden.mlt", samples, features_, labels_);
  }

  Experiment experiment(const json& golden_case, const json& optimizer) const {
    Experiment e;
    e.model.hidden = golden_["models"][golden_case["model"]]["hidden"].get<std::vector<uint32_t>>();
    e.model.loss = golden_case["loss_kind"] == "softmax" ? Loss::kSoftmax : Loss::kSigmoid;
    e.modelets = {.hidden_columns = 16, .output_modelets = 3};
    e.exchange.codec = CodecKind::kNone;
    // Without uniform draws the active set is the labels of the batch.
    e.sampling.mode = golden_case["active"] == "full" ? SamplingMode::kFull : SamplingMode::kUniform;
    e.sampling.uniform = 0;
    const std::map<std::string, OptimizerKind> kinds = {
        {"adam", OptimizerKind::kAdam}, {"adagrad", OptimizerKind::kAdagrad}, {"sgd", OptimizerKind::kSgd}};
    e.optimizer.kind = kinds.at(optimizer["kind"]);
    e.optimizer.row_clocks = true;
    e.optimizer.beta1 = optimizer.value("beta1", 0.0f);
    e.optimizer.beta2 = optimizer.value("beta2", 0.0f);
    e.optimizer.epsilon = optimizer.value("epsilon", 0.0f);
    e.optimizer.momentum = optimizer.value("momentum", 0.0f);
    e.optimizer.clip = optimizer["clip"];
    e.train.learning_rate = optimizer["learning_rate"];
    return e;
  }

  std::vector<std::unique_ptr<Rank>> model(const Experiment& experiment, const Tensors& initial) const {
    const DataShape shape{.features = features_, .labels = labels_};
    auto ranks = make_ranks(experiment, shape, round_robin(experiment, shape, ranks_), ranks_);
    inject(ranks, initial);
    return ranks;
  }

  // Losses of the first `steps` batches.
  std::vector<double> losses(std::vector<std::unique_ptr<Rank>>& ranks, uint64_t steps) const {
    auto groups = make_groups(ranks_);
    std::vector<std::vector<double>> losses(ranks.size());
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      Rank& rank = *ranks[static_cast<size_t>(group.rank())];
      TrainingStep step(rank.network, rank.sharding, group);
      shard::Batch batch;
      const size_t samples = golden_["batch"];
      std::vector<uint32_t> rows(samples);
      for (uint64_t s = 0; s < steps; ++s) {
        std::iota(rows.begin(), rows.end(), static_cast<uint32_t>(s * samples));
        batch.assign(data_, rows, true);
        const float rate = rank.network.experiment().train.learning_rate;
        losses[static_cast<size_t>(group.rank())].push_back(step.run(batch, s, rate, false).loss);
      }
    });
    for (const auto& of_rank : losses) EXPECT_EQ(of_rank, losses[0]);
    return losses[0];
  }

  // Logits [batch, labels] of the first batch.
  std::vector<double> logits(std::vector<std::unique_ptr<Rank>>& ranks) const {
    auto groups = make_groups(ranks_);
    std::vector<double> logits(golden_["batch"].get<size_t>() * labels_);
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      Rank& rank = *ranks[static_cast<size_t>(group.rank())];
      Evaluator evaluator(rank.network, rank.sharding, group);
      evaluator.predict(data_, shard::all_rows(data_.rows()), labels_, {},
                        [&](const shard::Batch&, const shard::TopK& best) {
                          if (group.rank() != 0) return;
                          for (size_t s = 0; s < logits.size() / labels_; ++s)
                            for (size_t i = 0; i < labels_; ++i)
                              logits[s * labels_ + best.labels(s)[i]] = best.scores(s)[i];
                        });
    });
    return logits;
  }

  // Returns the columns of the active labels, from all columns [batch, labels].
  std::vector<double> active_columns(const json& golden_case, const std::vector<double>& all) const {
    if (golden_case["active"] == "full") return all;
    std::vector<bool> active(labels_);
    for (const json& sample : golden_["batches"][0]["samples"])
      for (const size_t label : sample["labels"]) active[label] = true;
    std::vector<double> columns;
    for (size_t i = 0; i < all.size(); ++i)
      if (active[i % labels_]) columns.push_back(all[i]);
    return columns;
  }

  int ranks_;
  shard::kernels::ForcedInstructionSet forced_;
  json golden_;
  TemporaryFolder folder_;
  shard::Dataset data_;
  uint64_t features_ = 0, labels_ = 0;
};

TEST_P(GoldenTest, FirstStep) {
  // With this optimiser the change of the weights is the gradient.
  const json plain = {{"kind", "sgd"}, {"learning_rate", 1}, {"momentum", 0}, {"clip", 0}};
  for (const json& golden_case : golden_["cases"]) {
    SCOPED_TRACE(golden_case["model"].dump() + golden_case["loss_kind"].dump() +
                 golden_case["active"].dump());
    const Tensors initial = tensors(golden_["models"][golden_case["model"]]["initial"]);
    auto ranks = model(experiment(golden_case, plain), initial);
    expect_near(active_columns(golden_case, logits(ranks)), flat(golden_case["logits"]), "logits");
    expect_near(losses(ranks, 1), {golden_case["loss"].get<double>()}, "loss");
    Tensors gradients = extract(ranks, initial);
    for (auto& [name, values] : gradients)
      for (size_t i = 0; i < values.size(); ++i) values[i] = initial.at(name)[i] - values[i];
    expect_near(gradients, tensors(golden_case["gradients"]), "gradient");
  }
}

TEST_P(GoldenTest, TenSteps) {
  for (const json& golden_case : golden_["cases"])
    for (const json& run : golden_case["runs"]) {
      SCOPED_TRACE(golden_case["model"].dump() + golden_case["loss_kind"].dump() +
                   golden_case["active"].dump() + run["optimizer"].dump());
      const Tensors initial = tensors(golden_["models"][golden_case["model"]]["initial"]);
      auto ranks = model(experiment(golden_case, run["optimizer"]), initial);
      expect_near(losses(ranks, golden_["steps"]), flat(run["losses"]), "losses");
      expect_near(extract(ranks, initial), tensors(run["final"]), "final");
    }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, GoldenTest,
    ::testing::Combine(::testing::Values(1, 2, 3),
                       ::testing::ValuesIn(shard::kernels::available_instruction_sets())),
    [](const auto& test) { return std::get<1>(test.param) + "_" + std::to_string(std::get<0>(test.param)); });

}  // namespace
}  // namespace modelet::agent::testing
