#include "node_agent/replicas/mean_rule.h"

#include <cmath>

namespace modelet::agent {
namespace {

constexpr float kAdamRate = 0.01f, kMomentumRate = 0.7f;  // of cluster.rule_rate = 0

void adam_step(const Experiment::Cluster& cluster, std::span<float> change, float* first, float* second) {
  const float rate = cluster.rule_rate > 0 ? cluster.rule_rate : kAdamRate;
  const float beta1 = cluster.rule_momentum, beta2 = cluster.rule_beta2;
  for (size_t i = 0; i < change.size(); ++i) {
    first[i] = beta1 * first[i] + (1 - beta1) * change[i];
    second[i] = beta2 * second[i] + (1 - beta2) * change[i] * change[i];
    change[i] = rate * first[i] / (std::sqrt(second[i]) + cluster.rule_epsilon);
  }
}

void nesterov_step(const Experiment::Cluster& cluster, std::span<float> change, float* first, float*) {
  const float rate = cluster.rule_rate > 0 ? cluster.rule_rate : kMomentumRate;
  for (size_t i = 0; i < change.size(); ++i) {
    first[i] = cluster.rule_momentum * first[i] + change[i];
    change[i] = rate * (change[i] + cluster.rule_momentum * first[i]);
  }
}

void leave_as_it_is(const Experiment::Cluster&, std::span<float>, float*, float*) {}

constexpr ByChoice<MeanRule, void (*)(const Experiment::Cluster&, std::span<float>, float*, float*)> kRules({
    {MeanRule::kAverage, leave_as_it_is},
    {MeanRule::kProx, leave_as_it_is},
    {MeanRule::kAdam, adam_step},
    {MeanRule::kMomentum, nesterov_step},
});

}  // namespace

void apply_rule(const Experiment::Cluster& cluster, std::span<float> change, float* first, float* second) {
  kRules[cluster.rule](cluster, change, first, second);
}

float keep_of_distance(const Experiment::Cluster& cluster, float learning_rate) {
  return cluster.rule == MeanRule::kProx ? 1 / (1 + learning_rate * cluster.proximal) : 1;
}

}  // namespace modelet::agent
