#include "shard/inference/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/system/file.h"
#include "base/text/strict_json.h"

namespace modelet::shard {
namespace {

constexpr int kCalibrationVersion = 1;
constexpr double kLeastLog = -20.7;  // ln 1e-9
constexpr size_t kParameters = 3;

using Vector = std::array<double, kParameters>;
constexpr Vector kIdentity = {1, 1, 0};

// What the parameters are multiplied with.
Vector inputs_of(const LogOdds& odds) { return {odds.log_p, -odds.log_rest, 1}; }

double dot(const Vector& a, const Vector& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// Negative log-likelihood and prior.
double cost(const Vector& parameters, std::span<const Outcome> outcomes) {
  double sum = 0;
  for (size_t i = 0; i < kParameters; ++i)
    sum += 0.5 * (parameters[i] - kIdentity[i]) * (parameters[i] - kIdentity[i]);
  for (const Outcome& outcome : outcomes) {
    const double x = dot(parameters, inputs_of(outcome.odds));
    sum += std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))) - (outcome.right ? x : 0);
  }
  return sum;
}

// Solves a x = y by elimination; `a` is symmetric and positive definite.
Vector solve(std::array<Vector, kParameters> a, Vector y) {
  for (size_t i = 0; i < kParameters; ++i)
    for (size_t row = i + 1; row < kParameters; ++row) {
      const double factor = a[row][i] / a[i][i];
      for (size_t col = i; col < kParameters; ++col) a[row][col] -= factor * a[i][col];
      y[row] -= factor * y[i];
    }
  for (size_t i = kParameters; i-- > 0;) {
    for (size_t col = i + 1; col < kParameters; ++col) y[i] -= a[i][col] * y[col];
    y[i] /= a[i][i];
  }
  return y;
}

// Newton's method over the parameters that are not `fixed` (at zero).
Vector minimise(std::span<const Outcome> outcomes, const std::array<bool, kParameters>& fixed) {
  constexpr int kMostSteps = 100, kMostHalvings = 30;
  constexpr double kConverged = 1e-9;
  Vector parameters = kIdentity;
  for (size_t i = 0; i < kParameters; ++i)
    if (fixed[i]) parameters[i] = 0;
  double now = cost(parameters, outcomes);
  for (int step = 0; step < kMostSteps; ++step) {
    std::array<Vector, kParameters> curvature{};
    Vector gradient{};
    for (size_t i = 0; i < kParameters; ++i) {
      curvature[i][i] = 1;
      gradient[i] = parameters[i] - kIdentity[i];
    }
    for (const Outcome& outcome : outcomes) {
      const Vector x = inputs_of(outcome.odds);
      const double p = logistic(dot(parameters, x));
      for (size_t i = 0; i < kParameters; ++i) {
        gradient[i] += (p - (outcome.right ? 1 : 0)) * x[i];
        for (size_t j = 0; j < kParameters; ++j) curvature[i][j] += p * (1 - p) * x[i] * x[j];
      }
    }
    for (size_t i = 0; i < kParameters; ++i) {
      if (!fixed[i]) continue;
      gradient[i] = 0;
      for (size_t j = 0; j < kParameters; ++j) curvature[i][j] = curvature[j][i] = i == j ? 1 : 0;
    }
    const Vector direction = solve(curvature, gradient);
    double length = 1, next = now;
    Vector moved = parameters;
    for (int halving = 0; halving < kMostHalvings; ++halving, length /= 2) {
      for (size_t i = 0; i < kParameters; ++i) moved[i] = parameters[i] - length * direction[i];
      next = cost(moved, outcomes);
      if (next <= now) break;
    }
    if (!(now - next > kConverged * (1 + now))) break;
    parameters = moved;
    now = next;
  }
  return parameters;
}

}  // namespace

void uncalibrated(Loss loss, std::span<const float> scores, std::span<LogOdds> odds) {
  MODELET_CHECK(odds.size() <= scores.size());
  double others = 0;  // of the softmax's sum: all but the best, which is 1
  for (size_t i = 1; i < std::min(scores.size(), kNormalisedOver) && loss == Loss::kSoftmax; ++i)
    others += std::exp(double{scores[i]} - double{scores[0]});
  for (size_t i = 0; i < odds.size(); ++i) {
    LogOdds& o = odds[i];
    if (loss == Loss::kSoftmax) {
      const double score = double{scores[i]} - double{scores[0]}, log_sum = std::log1p(others);
      o = {score - log_sum, std::log(i == 0 ? others : 1 + others - std::exp(score)) - log_sum};
    } else {
      const double score = scores[i];
      o = {std::min(score, 0.0) - std::log1p(std::exp(-std::abs(score))),
           std::min(-score, 0.0) - std::log1p(std::exp(-std::abs(score)))};
    }
    o.log_p =
        std::max(kLeastLog, o.log_p);  // in this order: NaN, of scores that are infinite, is replaced too
    o.log_rest = std::max(kLeastLog, o.log_rest);
  }
}

double probability(const Calibration& calibration, const LogOdds& odds) {
  return logistic(dot({calibration.a, calibration.b, calibration.c}, inputs_of(odds)));
}

void add_outcomes(Loss loss, const Batch& batch, const TopK& best, std::vector<Outcome>& outcomes) {
  std::array<LogOdds, kOutcomesOfSample> odds;
  for (size_t s = 0; s < batch.size(); ++s) {
    const auto labels = best.labels(s).first(std::min(best.k(), kOutcomesOfSample));
    const std::span<const uint32_t> truth(batch.labels.data() + batch.label_offsets[s],
                                          batch.labels.data() + batch.label_offsets[s + 1]);
    uncalibrated(loss, best.scores(s), std::span(odds).first(labels.size()));
    for (size_t i = 0; i < labels.size() && labels[i] != TopK::kNoLabel; ++i)
      outcomes.push_back({odds[i], std::ranges::binary_search(truth, labels[i])});
  }
}

// Kull et al., section 3: a parameter that would be negative is left out, and the others are fitted again.
Calibration fit_calibration(std::span<const Outcome> outcomes) {
  std::array<bool, kParameters> fixed{};
  Vector found = minimise(outcomes, fixed);
  while (found[0] < 0 || found[1] < 0) {
    fixed[found[0] <= found[1] ? 0 : 1] = true;
    found = minimise(outcomes, fixed);
  }
  return {.a = found[0], .b = found[1], .c = found[2]};
}

double calibration_error(const Calibration& calibration, std::span<const Outcome> outcomes) {
  constexpr size_t kBins = 15;
  std::array<double, kBins> difference{};
  for (const Outcome& outcome : outcomes) {
    const double p = probability(calibration, outcome.odds);
    const auto bin = std::min(static_cast<size_t>(p * kBins), kBins - 1);
    difference[bin] += p - (outcome.right ? 1 : 0);
  }
  double sum = 0;
  for (const double d : difference) sum += std::abs(d);
  return outcomes.empty() ? 0 : sum / static_cast<double>(outcomes.size());
}

std::optional<Calibration> read_calibration(const std::filesystem::path& file, uint64_t key) {
  constexpr size_t kMostBytes = 4096;
  try {
    const std::string origin = file.string();
    const nlohmann::json json = parse_strict_json(read_text_file(file, kMostBytes), origin, 2);
    if (unsigned_at(json, "version", origin) != kCalibrationVersion ||
        unsigned_at(json, "model", origin) != key)
      return {};
    const Calibration found{.a = number_at(json, "a", origin),
                            .b = number_at(json, "b", origin),
                            .c = number_at(json, "c", origin),
                            .rows = unsigned_at(json, "rows", origin)};
    if (!std::isfinite(found.a + found.b + found.c) || found.a < 0 || found.b < 0) return {};
    return found;
  } catch (const Error&) {
    return {};
  }
}

bool write_calibration(const std::filesystem::path& file, uint64_t key, const Calibration& calibration) {
  const nlohmann::ordered_json json = {{"version", kCalibrationVersion},
                                       {"model", key},
                                       {"rows", calibration.rows},
                                       {"a", calibration.a},
                                       {"b", calibration.b},
                                       {"c", calibration.c}};
  try {
    AtomicFile written(file);
    written.write(json.dump() + "\n");
    written.commit(Sync::kNo);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace modelet::shard
