#include "shard/parameters.h"

#include <concepts>
#include <cstring>

#include "base/cut.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/kernels/kernels.h"
#include "shard/prefetch.h"

namespace modelet::shard {

std::vector<float> AdamCorrections::table(float beta) {
  constexpr size_t kLongest = size_t{1}
                              << 20;  // a beta so close to 1 that more are needed is taken as converged there
  std::vector<float> values = {0};
  double power = 1;
  while (values.back() != 1 && values.size() < kLongest)
    values.push_back(static_cast<float>(1 / (1 - (power *= beta))));
  return values;
}

Parameters::Parameters(const Shape& shape, Precision precision, std::optional<OptimizerKind> optimizer,
                       uint64_t seed)
    : shape_(shape),
      optimizer_(optimizer),
      seed_(seed),
      stride_(shape.cols * (1 + (optimizer ? optimizer_values_per_parameter(*optimizer) : 0))),
      states_(shape.rows) {
  if (precision == Precision::kBf16) values_.emplace<AlignedVector<Bf16>>();
  std::visit([&](auto& values) { values.resize(rows() * stride_); }, values_);
}

ConstRows Parameters::weights() const {
  if (precision() == Precision::kFp32) return floats();
  return {std::get<AlignedVector<Bf16>>(values_).data(), rows(), cols(), stride_};
}

Matrix Parameters::floats() {
  MODELET_CHECK(precision() == Precision::kFp32);
  return {std::get<AlignedVector<float>>(values_).data(), rows(), cols(), stride_};
}

ConstMatrix Parameters::floats() const {
  MODELET_CHECK(precision() == Precision::kFp32);
  return {std::get<AlignedVector<float>>(values_).data(), rows(), cols(), stride_};
}

void Parameters::copy_biases(size_t first, size_t count, float* out) const {
  for (size_t i = 0; i < count; ++i) out[i] = states_[first + i].bias;
}

float Parameters::logit(size_t r, const float* x) const {
  const float product = with_weights(
      [&](const auto* weights, size_t stride) { return kernels::dot(x, weights + r * stride, cols()); });
  return product + states_[r].bias;
}

void Parameters::logits(std::span<const uint32_t> rows, const float* x, float* out) const {
  with_weights([&](const auto* weights, size_t stride) {
    kernels::scattered_row_dots(weights, stride, rows.data(), rows.size(), x, cols(), out);
  });
  for (size_t i = 0; i < rows.size(); ++i) out[i] += states_[rows[i]].bias;
}

void Parameters::add_row(size_t r, float factor, float* out) const {
  with_weights(
      [&](const auto* weights, size_t stride) { kernels::axpy(factor, weights + r * stride, out, cols()); });
}

void Parameters::set_row(size_t r, const float* values) {
  if (precision() == Precision::kFp32) {
    std::copy_n(values, cols(), floats().row(r));
  } else {
    kernels::narrow(values, std::get<AlignedVector<Bf16>>(values_).data() + r * stride_, cols());
  }
}

void Parameters::update(size_t r, float* gradient, float bias_gradient, const UpdateRule& rule,
                        const void* ahead) {
  MODELET_CHECK(optimizer_.has_value(), "update() of a model for inference");
  const uint32_t clock = ++states_[r].clock;
  const auto noise = static_cast<uint32_t>(mix64(seed_ ^ (uint64_t{clock} << 32 | r)));
  if (rule.gradient_scale != 1) {
    kernels::scale(rule.gradient_scale, gradient, cols());
    bias_gradient *= rule.gradient_scale;
  }
  const Experiment::Optimizer& o = rule.optimizer;
  switch (*optimizer_) {
    case OptimizerKind::kAdam: {
      const uint64_t t = o.row_clocks ? clock : rule.step + 1;
      const kernels::AdamArgs args{o.beta1,
                                   o.beta2,
                                   o.epsilon,
                                   rule.learning_rate * rule.corrections.first(t),
                                   rule.corrections.second(t),
                                   noise,
                                   ahead};
      return update_row(r, gradient, bias_gradient, [&](const float* g, auto* w, auto* m, auto* v, size_t n) {
        kernels::adam(args, g, w, m, v, n);
      });
    }
    case OptimizerKind::kAdagrad: {
      const kernels::AdagradArgs args{rule.learning_rate, o.epsilon, noise, ahead};
      return update_row(r, gradient, bias_gradient, [&](const float* g, auto* w, auto* s, auto*, size_t n) {
        kernels::adagrad(args, g, w, s, n);
      });
    }
    case OptimizerKind::kSgd: {
      const kernels::MomentumArgs args{rule.learning_rate, o.momentum, noise, ahead};
      return update_row(r, gradient, bias_gradient, [&](const float* g, auto* w, auto* u, auto*, size_t n) {
        kernels::sgd_momentum(args, g, w, u, n);
      });
    }
  }
}

// Calls optimizer(gradient, weights, first, second, n) for the row and for its bias.
template <class Optimizer>
void Parameters::update_row(size_t r, const float* gradient, float bias_gradient,
                            const Optimizer& optimizer) {
  std::visit(
      [&](auto& values) {
        auto* row = values.data() + r * stride_;
        optimizer(gradient, row, row + cols(), row + 2 * cols(), cols());
      },
      values_);
  RowState& state = states_[r];
  if (has_bias()) optimizer(&bias_gradient, &state.bias, &state.bias_first, &state.bias_second, size_t{1});
}

void Parameters::prefetch_weights(size_t r) const {
  prefetch_bytes(&states_[r], sizeof(RowState));
  std::visit([&](const auto& values) { prefetch_bytes(&values[r * stride_], cols() * sizeof(values[0])); },
             values_);
}

void Parameters::prefetch(size_t r) const {
  prefetch_bytes(announce(r), stride_ * (precision() == Precision::kFp32 ? sizeof(float) : sizeof(Bf16)));
}

const void* Parameters::announce(size_t r) const {
  prefetch_bytes(&states_[r], sizeof(RowState));
  return std::visit([&](const auto& values) -> const void* { return &values[r * stride_]; }, values_);
}

size_t Parameters::cache_lines_of_row() const {
  return 1 + cache_lines(stride_ * (precision() == Precision::kFp32 ? sizeof(float) : sizeof(Bf16)));
}

std::vector<std::byte> Parameters::Array::packed() const {
  std::vector<std::byte> bytes(shape[0] * row_bytes);
  for (size_t r = 0; r < shape[0]; ++r)
    std::memcpy(&bytes[r * row_bytes], first + r * stride_bytes, row_bytes);
  return bytes;
}

void Parameters::Array::unpack(std::span<const std::byte> bytes) const {
  MODELET_CHECK(bytes.size() == shape[0] * row_bytes);
  for (size_t r = 0; r < shape[0]; ++r)
    std::memcpy(first + r * stride_bytes, &bytes[r * row_bytes], row_bytes);
}

std::vector<Parameters::Array> Parameters::arrays() {
  std::vector<Array> arrays;
  std::visit(
      [&](auto& values) {
        using T = std::decay_t<decltype(values[0])>;
        const char* names[] = {"weight", "optimizer.first", "optimizer.second"};
        for (size_t vector = 0; vector * cols() < stride_; ++vector)
          arrays.push_back({names[vector],
                            std::same_as<T, float> ? DType::kF32 : DType::kBF16,
                            {rows(), cols()},
                            reinterpret_cast<std::byte*>(values.data() + vector * cols()),
                            cols() * sizeof(T),
                            stride_ * sizeof(T)});
      },
      values_);
  const auto add = [&](const char* name, DType dtype, auto RowState::*member) {
    auto* first = reinterpret_cast<std::byte*>(&(states_.data()->*member));
    arrays.push_back({name, dtype, {rows()}, first, sizeof(states_.data()->*member), sizeof(RowState)});
  };
  const size_t vectors = arrays.size();
  if (has_bias()) {
    add("bias", DType::kF32, &RowState::bias);
    if (vectors > 1) add("optimizer.bias_first", DType::kF32, &RowState::bias_first);
    if (vectors > 2) add("optimizer.bias_second", DType::kF32, &RowState::bias_second);
  }
  if (optimizer_) add("optimizer.clock", DType::kU32, &RowState::clock);
  return arrays;
}

size_t Parameters::memory_bytes() const {
  const size_t vectors =
      std::visit([](const auto& values) { return values.size() * sizeof(values[0]); }, values_);
  return vectors + states_.size() * sizeof(RowState);
}

}  // namespace modelet::shard
