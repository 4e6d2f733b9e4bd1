#include "shard/parameters.h"

#include "base/error.h"
#include "base/rng.h"
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

Parameters::Parameters(const Shape& shape, Precision precision, std::optional<OptimizerKind> optimizer,
                       uint64_t seed)
    : shape_(shape), optimizer_(optimizer), seed_(seed), bias_(shape.with_bias ? shape.rows : 0) {
  if (precision == Precision::kBf16) stored_.emplace<Stored<Bf16>>();
  const bool adam = optimizer == OptimizerKind::kAdam;
  std::visit(
      [&](auto& stored) {
        stored.weights.resize(rows() * cols());
        stored.first.resize(optimizer ? rows() * cols() : 0);
        stored.second.resize(adam ? rows() * cols() : 0);
      },
      stored_);
  if (!optimizer) return;
  bias_first_.resize(bias_.size());
  bias_second_.resize(adam ? bias_.size() : 0);
  clock_.resize(rows());
}

ConstRows Parameters::weights() const {
  if (precision() == Precision::kFp32) return floats();
  return {std::get<Stored<Bf16>>(stored_).weights.data(), rows(), cols(), cols()};
}

Matrix Parameters::floats() {
  MODELET_CHECK(precision() == Precision::kFp32);
  return {std::get<Stored<float>>(stored_).weights.data(), rows(), cols(), cols()};
}

ConstMatrix Parameters::floats() const {
  MODELET_CHECK(precision() == Precision::kFp32);
  return {std::get<Stored<float>>(stored_).weights.data(), rows(), cols(), cols()};
}

float Parameters::logit(size_t r, const float* x) const {
  const float product =
      with_weights([&](const auto* weights) { return kernels::dot(x, weights + r * cols(), cols()); });
  return has_bias() ? product + bias_[r] : product;
}

void Parameters::add_row(size_t r, float factor, float* out) const {
  with_weights([&](const auto* weights) { kernels::axpy(factor, weights + r * cols(), out, cols()); });
}

void Parameters::set_row(size_t r, const float* values) {
  if (precision() == Precision::kFp32) {
    std::copy_n(values, cols(), floats().row(r));
  } else {
    kernels::narrow(values, std::get<Stored<Bf16>>(stored_).weights.data() + r * cols(), cols());
  }
}

void Parameters::update(size_t r, float* gradient, float bias_gradient, const UpdateRule& rule) {
  MODELET_CHECK(optimizer_.has_value(), "update() of a model for inference");
  const uint32_t clock = ++clock_[r];
  const auto noise = static_cast<uint32_t>(mix64(seed_ ^ (uint64_t{clock} << 32 | r)));
  if (rule.gradient_scale != 1) kernels::scale(rule.gradient_scale, gradient, cols());
  std::visit(
      [&](auto& s) {
        const size_t at = r * cols();
        auto* second = s.second.empty() ? nullptr : s.second.data() + at;
        update_values(gradient, s.weights.data() + at, s.first.data() + at, second, cols(), clock, noise,
                      rule);
      },
      stored_);
  if (bias_.empty()) return;
  bias_gradient *= rule.gradient_scale;
  float* bias_second = bias_second_.empty() ? nullptr : &bias_second_[r];
  update_values(&bias_gradient, &bias_[r], &bias_first_[r], bias_second, 1, clock, noise, rule);
}

void Parameters::prefetch(size_t r) const {
  const auto fetch = [&](const auto& array) {
    if (array.empty()) return;
    const auto* row = array.data() + r * cols();
    for (size_t c = 0; c < cols(); c += kCacheLine / sizeof(*row)) __builtin_prefetch(row + c, 1);
  };
  std::visit(
      [&](const auto& stored) {
        fetch(stored.weights);
        fetch(stored.first);
        fetch(stored.second);
      },
      stored_);
}

template <class T>
void Parameters::update_values(const float* gradient, T* weights, T* first, T* second, size_t n,
                               uint32_t clock, uint32_t noise, const UpdateRule& rule) const {
  const Experiment::Optimizer& o = rule.optimizer;
  switch (*optimizer_) {
    case OptimizerKind::kAdam:
      kernels::adam({o.beta1, o.beta2, o.epsilon, rule.learning_rate / rule.corrections.first(clock),
                     1 / rule.corrections.second(clock), noise},
                    gradient, weights, first, second, n);
      return;
    case OptimizerKind::kAdagrad:
      kernels::adagrad({rule.learning_rate, o.epsilon, noise}, gradient, weights, first, n);
      return;
    case OptimizerKind::kSgd:
      kernels::sgd_momentum({rule.learning_rate, o.momentum, noise}, gradient, weights, first, n);
      return;
  }
}

std::vector<Parameters::Array> Parameters::arrays() {
  const std::vector<uint64_t> matrix = {rows(), cols()}, column = {rows()};
  std::vector<Array> arrays;
  const auto add = [&](const char* name, DType dtype, auto& values, const std::vector<uint64_t>& shape) {
    if (!values.empty()) arrays.push_back({name, dtype, shape, std::as_writable_bytes(std::span(values))});
  };
  const DType stored_as = precision() == Precision::kFp32 ? DType::kF32 : DType::kBF16;
  std::visit(
      [&](auto& stored) {
        add("weight", stored_as, stored.weights, matrix);
        add("optimizer.first", stored_as, stored.first, matrix);
        add("optimizer.second", stored_as, stored.second, matrix);
      },
      stored_);
  add("bias", DType::kF32, bias_, column);
  add("optimizer.bias_first", DType::kF32, bias_first_, column);
  add("optimizer.bias_second", DType::kF32, bias_second_, column);
  add("optimizer.clock", DType::kU32, clock_, column);
  return arrays;
}

size_t Parameters::memory_bytes() const {
  const size_t matrices = std::visit(
      [](const auto& stored) {
        return (stored.weights.size() + stored.first.size() + stored.second.size()) *
               sizeof(stored.weights.front());
      },
      stored_);
  return matrices + sizeof(float) * (bias_.size() + bias_first_.size() + bias_second_.size()) +
         sizeof(uint32_t) * clock_.size();
}

}  // namespace modelet::shard
