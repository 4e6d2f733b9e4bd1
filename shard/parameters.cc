#include "shard/parameters.h"

#include "base/error.h"
#include "shard/kernels/kernels.h"

namespace modelet::shard {

std::vector<float> AdamCorrections::table(float beta) {
  constexpr size_t kLongest = size_t{1}
                              << 20;  // a beta so close to 1 that more are needed is taken as converged there
  std::vector<float> values = {0};
  double power = 1;
  while (values.back() != 1 && values.size() < kLongest)
    values.push_back(static_cast<float>(1 - (power *= beta)));
  return values;
}

Parameters::Parameters(std::optional<OptimizerKind> optimizer, size_t rows, size_t cols, bool with_bias)
    : optimizer_(optimizer), rows_(rows), cols_(cols), weights_(rows * cols), bias_(with_bias ? rows : 0) {
  if (!optimizer) return;
  const bool adam = optimizer == OptimizerKind::kAdam;
  first_.resize(weights_.size());
  second_.resize(adam ? weights_.size() : 0);
  bias_first_.resize(bias_.size());
  bias_second_.resize(adam ? bias_.size() : 0);
  clock_.resize(rows);
}

void Parameters::update(size_t r, float* gradient, float bias_gradient, const UpdateRule& rule) {
  MODELET_CHECK(optimizer_.has_value(), "update() of a model for inference");
  const uint32_t clock = ++clock_[r];
  if (rule.gradient_scale != 1) kernels::scale(rule.gradient_scale, gradient, cols_);
  float* second = second_.empty() ? nullptr : second_.data() + r * cols_;
  update_values(gradient, weights_.data() + r * cols_, first_.data() + r * cols_, second, cols_, clock, rule);
  if (bias_.empty()) return;
  bias_gradient *= rule.gradient_scale;
  float* bias_second = bias_second_.empty() ? nullptr : &bias_second_[r];
  update_values(&bias_gradient, &bias_[r], &bias_first_[r], bias_second, 1, clock, rule);
}

void Parameters::prefetch(size_t r) const {
  constexpr size_t kLine = kCacheLine / sizeof(float);
  for (const AlignedVector<float>* array : {&weights_, &first_, &second_}) {
    if (array->empty()) continue;
    const float* row = array->data() + r * cols_;
    for (size_t c = 0; c < cols_; c += kLine) __builtin_prefetch(row + c, 1);
  }
}

void Parameters::update_values(const float* gradient, float* weights, float* first, float* second, size_t n,
                               uint32_t clock, const UpdateRule& rule) const {
  const Experiment::Optimizer& o = rule.optimizer;
  switch (*optimizer_) {
    case OptimizerKind::kAdam: {
      kernels::adam({o.beta1, o.beta2, o.epsilon, rule.learning_rate / rule.corrections.first(clock),
                     1 / rule.corrections.second(clock)},
                    gradient, weights, first, second, n);
      return;
    }
    case OptimizerKind::kAdagrad:
      kernels::adagrad(rule.learning_rate, o.epsilon, gradient, weights, first, n);
      return;
    case OptimizerKind::kSgd:
      kernels::sgd_momentum(rule.learning_rate, o.momentum, gradient, weights, first, n);
      return;
  }
}

std::vector<Parameters::Array> Parameters::arrays() {
  const std::vector<uint64_t> matrix = {rows_, cols_}, column = {rows_};
  std::vector<Array> arrays;
  const auto add = [&](const char* name, auto& values, const std::vector<uint64_t>& shape, bool is_float) {
    if (!values.empty()) arrays.push_back({name, shape, std::as_writable_bytes(std::span(values)), is_float});
  };
  add("weight", weights_, matrix, true);
  add("bias", bias_, column, true);
  add("optimizer.first", first_, matrix, true);
  add("optimizer.second", second_, matrix, true);
  add("optimizer.bias_first", bias_first_, column, true);
  add("optimizer.bias_second", bias_second_, column, true);
  add("optimizer.clock", clock_, column, false);
  return arrays;
}

size_t Parameters::memory_bytes() const {
  return sizeof(float) * (weights_.size() + first_.size() + second_.size() + bias_.size() +
                          bias_first_.size() + bias_second_.size() + clock_.size());
}

}  // namespace modelet::shard
