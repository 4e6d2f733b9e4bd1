#include "node_agent/train/evaluation/classifiers.h"

#include <algorithm>
#include <vector>

#include "node_agent/step/exchange/rounds.h"
#include "shard/data/batch/split.h"
#include "shard/layers/scoring/classifiers.h"

namespace modelet::agent {
namespace {

// A part of the samples teaches nearly as much as all of them (docs/studies/labels.md), and scoring is the larger part
// of the work.
constexpr size_t kMostFittedRows = 32768;

// Labels of a sample that the network scores highest. Some of them are the sample's own, so there are more where
// samples have many.
constexpr size_t kLeastProposals = 40, kMostProposals = 512;
constexpr double kProposalsOfALabel = 6;
// A tower takes its share of the least number, because the proposals of all towers compete. It takes at least these.
constexpr size_t kLeastOfATower = 8;

// What ranks do alone has no common pace, and a rank counts as missing if it is silent for long. So they meet after
// each round of the fits.
constexpr size_t kFitRounds = 32;
constexpr size_t kAskingRounds = kMostFittedRows / Evaluator::kBatch * (kMaxHiddenLayers + 1);
static_assert(kAskingRounds + kFitRounds <= kClassifierRounds);

size_t proposals(const shard::Dataset& data, const shard::LabelSpread& spread) {
  const size_t least = std::max(kLeastOfATower, kLeastProposals * spread.neurons() / spread.labels());
  const double labels = static_cast<double>(data.label_entries()) / static_cast<double>(data.rows());
  return std::clamp(static_cast<size_t>(kProposalsOfALabel * labels), least, kMostProposals);
}

}  // namespace

size_t classifier_rows(size_t rows) { return std::min(rows, kMostFittedRows); }

void fit_classifiers(shard::Network& network, Evaluator& evaluator, const shard::Dataset& data,
                     std::span<const uint32_t> rows, comm::Tag tag, const Evaluator::Progress& progress) {
  const std::vector<shard::Modelet*> modelets = network.output().modelets();
  shard::clear_classifiers(network.scoring());

  const bool votes = network.scoring().settings().own_weight > 0;  // for which the network is not asked
  const std::vector<uint32_t> asked = shard::spread_out(rows, votes ? 0 : classifier_rows(rows.size()));
  std::vector<std::vector<shard::HardNegative>> negatives(modelets.size());
  size_t done = 0;
  const auto note = [&](const shard::Batch& batch, const shard::TopK& best) {
    for (size_t s = 0; s < batch.size(); ++s) {
      const uint32_t row = asked[done + s];
      const std::span<const uint32_t> own = data.sample(row).labels;
      for (const uint32_t label : best.labels(s)) {
        if (label == shard::TopK::kNoLabel || std::ranges::find(own, label) != own.end()) continue;
        const uint32_t neuron = network.spread().neuron(label);
        for (size_t m = 0; m < modelets.size(); ++m)
          if (const ModeletSpec& spec = modelets[m]->spec(); spec.begin <= neuron && neuron < spec.end)
            negatives[m].push_back({static_cast<uint32_t>(neuron - spec.begin), row});
      }
    }
    done += batch.size();
    if (progress) progress(done, asked.size());
  };
  if (!votes) evaluator.predict(data, asked, proposals(data, network.spread()), tag, note, shard::Ranking::kProposals);
  const std::vector<float> vote_weights = votes ? shard::vote_weights(data, rows) : std::vector<float>();

  std::vector<shard::ClassifierFit> fits;
  for (size_t m = 0; m < modelets.size(); ++m)
    fits.emplace_back(network.scoring(), m, data, rows, negatives[m]);
  shard::ClassifierSolvers solvers(data, network.pool());
  tag = tag.later(kAskingRounds);
  for (size_t round = 0; round < kFitRounds; ++round) {
    for (size_t m = 0; m < modelets.size(); ++m) {
      const size_t neurons = modelets[m]->spec().neurons();
      const size_t begin = neurons * round / kFitRounds, end = neurons * (round + 1) / kFitRounds;
      if (votes)
        fits[m].vote(begin, end, vote_weights, solvers);
      else
        fits[m].fit(begin, end, solvers);
    }
    evaluator.meet(tag.later(round));
  }
}

}  // namespace modelet::agent
