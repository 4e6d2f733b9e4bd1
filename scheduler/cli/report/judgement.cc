#include "scheduler/cli/report/judgement.h"

#include <algorithm>
#include <map>
#include <span>

namespace modelet::cli {
namespace {

constexpr size_t kDepth = 5, kMostJudged = 5000, kMostHard = 20;
constexpr size_t kMostTruth = 20;        // labels of a sample that are shown
constexpr size_t kFewestTrueLabels = 3;  // of an example that is to say something about a model
constexpr uint64_t kFewestSamples = 5;   // with fewer, a label's recall says little

JudgedLabel named_label(const shard::Model& model, uint32_t label) {
  JudgedLabel found{.label = label, .name = {}};
  if (!model.label_names().empty()) found.name = model.label_names()[label];
  return found;
}

std::vector<uint32_t> evenly(size_t rows) {
  std::vector<uint32_t> chosen;
  const size_t count = std::min(rows, kMostJudged);
  for (size_t i = 0; i < count; ++i) chosen.push_back(static_cast<uint32_t>(i * rows / count));
  return chosen;
}

struct Tally {
  uint64_t samples = 0, found = 0;
  double recall() const { return static_cast<double>(found) / static_cast<double>(samples); }
};

std::vector<JudgedLabel> hardest_labels(const shard::Model& model, const std::map<uint32_t, Tally>& tallies) {
  std::vector<JudgedLabel> hardest;
  for (const auto& [label, tally] : tallies) {
    if (tally.samples < kFewestSamples) continue;
    JudgedLabel one = named_label(model, label);
    one.samples = tally.samples;
    one.recall = tally.recall();
    hardest.push_back(std::move(one));
  }
  std::ranges::stable_sort(hardest, [](const JudgedLabel& a, const JudgedLabel& b) {
    return a.recall != b.recall ? a.recall < b.recall : a.samples > b.samples;
  });
  if (hardest.size() > kMostHard) hardest.resize(kMostHard);
  return hardest;
}

JudgedSample sample_shown(const shard::Model& model, uint32_t row, std::span<const uint32_t> truth,
                          std::span<const uint32_t> labels, std::span<const float> scores) {
  JudgedSample shown{.sample = row, .truth = {}, .predicted = {}};
  for (const uint32_t label : truth.first(std::min(truth.size(), kMostTruth)))
    shown.truth.push_back(named_label(model, label));
  for (size_t i = 0; i < labels.size() && labels[i] != shard::TopK::kNoLabel; ++i) {
    shown.predicted.push_back(named_label(model, labels[i]));
    shown.predicted.back().score = scores[i];
    shown.predicted.back().right = std::ranges::binary_search(truth, labels[i]);
  }
  return shown;
}

}  // namespace

Judgement judge(shard::Model& model, const shard::Dataset& data, size_t examples) {
  Judgement judgement{.depth = std::min<size_t>(kDepth, model.shape().labels),
                      .fewest_samples = kFewestSamples,
                      .hardest = {},
                      .wrong = {},
                      .first = {}};
  const std::vector<uint32_t> rows = evenly(data.rows());
  std::map<uint32_t, Tally> tallies;
  size_t next = 0;
  model.predict(data, rows, judgement.depth, shard::SearchMode::kDense,
                [&](const shard::Batch& batch, const shard::TopK& best) {
                  for (size_t s = 0; s < batch.size(); ++s) {
                    const uint32_t row = rows[next++];
                    const std::span truth(batch.labels.data() + batch.label_offsets[s],
                                          batch.labels.data() + batch.label_offsets[s + 1]);
                    const auto labels = best.labels(s);
                    if (truth.empty()) continue;
                    ++judgement.samples;
                    for (const uint32_t label : truth) {
                      Tally& tally = tallies[label];
                      ++tally.samples;
                      if (std::ranges::find(labels, label) != labels.end()) ++tally.found;
                    }
                    const bool wrong = !std::ranges::binary_search(truth, labels.front());
                    judgement.wrong_samples += wrong ? 1 : 0;
                    if (wrong && judgement.wrong.size() < examples)
                      judgement.wrong.push_back(sample_shown(model, row, truth, labels, best.scores(s)));
                    if (truth.size() >= kFewestTrueLabels && judgement.first.size() < examples)
                      judgement.first.push_back(sample_shown(model, row, truth, labels, best.scores(s)));
                  }
                });
  judgement.hardest = hardest_labels(model, tallies);
  return judgement;
}

}  // namespace modelet::cli
