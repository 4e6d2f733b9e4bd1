#include "shard/modelet/parameters.h"

#include <array>
#include <concepts>
#include <cstring>

#include "base/array/prefetch.h"
#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/experiment/partition.h"
#include "base/rng.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/gemm.h"
#include "shard/kernels/optimizers.h"
#include "shard/kernels/row_dots.h"

namespace modelet::shard {
namespace {

// The step that each optimiser makes with rows that are stored as T.
template <class T>
using OptimizerStep = void (*)(const Experiment::Optimizer&, std::span<const kernels::RowUpdate<T>>,
                               kernels::RowLayout);
template <class T>
constexpr ByChoice<OptimizerKind, OptimizerStep<T>> kOptimizerSteps({
    {OptimizerKind::kAdam,
     [](const auto& o, auto rows, auto layout) {
       kernels::adam({o.beta1, o.beta2, o.epsilon}, rows, layout);
     }},
    {OptimizerKind::kAdagrad,
     [](const auto& o, auto rows, auto layout) { kernels::adagrad({o.epsilon}, rows, layout); }},
    {OptimizerKind::kSgd,
     [](const auto& o, auto rows, auto layout) { kernels::sgd_momentum({o.momentum}, rows, layout); }},
    {OptimizerKind::kRmsprop,
     [](const auto& o, auto rows, auto layout) {
       kernels::rmsprop({o.beta2, o.epsilon}, rows, layout);
     }},
});

}  // namespace

std::vector<float> AdamCorrections::table(float beta) {
  // A beta so close to 1 that it needs more steps is taken as converged there.
  constexpr size_t kLongest = size_t{1} << 20;
  std::vector<float> values = {0};
  double power = 1;
  while (values.back() != 1 && values.size() < kLongest)
    values.push_back(static_cast<float>(1 / (1 - (power *= beta))));
  return values;
}

Parameters::Parameters(const Shape& shape, Precision precision, std::optional<OptimizerKind> optimizer,
                       uint64_t seed)
    : shape_(shape), optimizer_(optimizer), seed_(seed), memory_(std::make_shared<Memory>()) {
  memory_->vector = shape.cols;
  memory_->stride = shape.cols * (1 + (optimizer ? optimizer_values_per_parameter(*optimizer) : 0));
  if (shape.with_bias)
    memory_->states.resize(shape.rows);
  else
    memory_->clocks.resize(shape.rows);
  if (precision == Precision::kBf16) memory_->values.emplace<AlignedVector<Bf16>>();
  std::visit([&](auto& values) { values.resize(shape.rows * memory_->stride); }, memory_->values);
}

Parameters Parameters::columns(size_t first, size_t count) const {
  MODELET_CHECK(first + count <= cols() && !has_bias());
  Parameters view = *this;
  view.first_ += first;
  view.shape_.first_column += first;
  view.shape_.cols = count;
  return view;
}

ConstRows Parameters::weights() const {
  if (precision() == Precision::kFp32) return floats();
  return {stored_row<Bf16>(0), rows(), cols(), memory_->stride};
}

Matrix Parameters::floats() {
  MODELET_CHECK(precision() == Precision::kFp32);
  return {std::get<AlignedVector<float>>(memory_->values).data() + first_, rows(), cols(), memory_->stride};
}

ConstMatrix Parameters::floats() const {
  MODELET_CHECK(precision() == Precision::kFp32);
  return {std::get<AlignedVector<float>>(memory_->values).data() + first_, rows(), cols(), memory_->stride};
}

void Parameters::copy_biases(size_t first, size_t count, float* out) const {
  for (size_t i = 0; i < count; ++i) out[i] = bias(first + i);
}

float Parameters::logit(size_t r, const float* x) const {
  const float product = with_weights(
      [&](const auto* weights, size_t stride) { return kernels::dot(x, weights + r * stride, cols()); });
  return product + bias(r);
}

void Parameters::logits(std::span<const uint32_t> rows, const float* x, float* out) const {
  with_weights([&](const auto* weights, size_t stride) {
    kernels::scattered_row_dots(weights, stride, rows.data(), rows.size(), x, cols(), out);
  });
  for (size_t i = 0; i < rows.size(); ++i) out[i] += bias(rows[i]);
}

void Parameters::add_row(size_t r, float factor, float* out) const {
  with_weights(
      [&](const auto* weights, size_t stride) { kernels::axpy(factor, weights + r * stride, out, cols()); });
}

void Parameters::set_row(size_t r, const float* values) {
  if (precision() == Precision::kFp32) {
    std::copy_n(values, cols(), floats().row(r));
  } else {
    kernels::narrow(
        values, std::get<AlignedVector<Bf16>>(memory_->values).data() + r * memory_->stride + first_, cols());
  }
}

void Parameters::set_row(size_t r, const float* values, Rng rng) {
  if (precision() == Precision::kFp32) return set_row(r, values);
  Bf16* row = std::get<AlignedVector<Bf16>>(memory_->values).data() + r * memory_->stride + first_;
  for (size_t c = 0; c < cols(); ++c)
    row[c] = stochastic_bf16(values[c], static_cast<uint32_t>(rng.next() >> 48));
}

void Parameters::update(std::span<const RowStep> steps, const UpdateRule& rule) {
  if (steps.empty()) return;
  MODELET_CHECK(steps.size() <= kRowsAtOnce);
  const Parameters& first = *steps.front().parameters;
  MODELET_CHECK(first.optimizer_.has_value(), "update() of a model for inference");
  if (first.precision() == Precision::kFp32)
    update_stored<float>(steps, rule);
  else
    update_stored<Bf16>(steps, rule);
}

template <class T>
void Parameters::update_stored(std::span<const RowStep> steps, const UpdateRule& rule) {
  const Experiment::Optimizer& o = rule.optimizer;
  const Parameters& like = *steps.front().parameters;
  const OptimizerKind kind = *like.optimizer_;
  std::array<kernels::RowUpdate<T>, kRowsAtOnce> rows;
  std::array<kernels::RowUpdate<float>, kRowsAtOnce> biases;
  std::array<float, kRowsAtOnce> bias_gradients;
  for (size_t i = 0; i < steps.size(); ++i) {
    const RowStep& step = steps[i];
    Memory& memory = *step.parameters->memory_;
    const uint32_t clock = ++step.parameters->clock(step.row);
    if (rule.gradient_scale != 1) kernels::scale(rule.gradient_scale, step.gradient, like.cols());
    float rate = rule.learning_rate, second_scale = 1;
    const uint64_t t = o.row_clocks ? clock : rule.step + 1;
    if (kind == OptimizerKind::kAdam) rate *= rule.corrections.first(t);
    if (kind == OptimizerKind::kAdam || kind == OptimizerKind::kRmsprop)
      second_scale = rule.corrections.second(t);
    // One number of 32 bits serves two neighbouring columns (kernels/optimizers.cc). A column has the same
    // number in any view.
    const uint64_t of_model = step.parameters->seed_;
    const uint64_t seed = rule.first_sample == 0 ? of_model : mix64(of_model ^ rule.first_sample);
    const auto noise = static_cast<uint32_t>(mix64(seed ^ (uint64_t{clock} << 32 | like.number(step.row))) +
                                             like.shape_.first_column / 2);
    T* const row =
        std::get<AlignedVector<T>>(memory.values).data() + step.row * memory.stride + step.parameters->first_;
    rows[i] = {step.gradient, row, rate, second_scale, noise, step.ahead};
    bias_gradients[i] = step.bias_gradient * rule.gradient_scale;
    if (like.has_bias())
      biases[i] = {&bias_gradients[i], memory.states[step.row].bias.data(), rate, second_scale, 0, nullptr};
  }
  kOptimizerSteps<T>[kind](o, std::span(rows).first(steps.size()), {like.cols(), like.memory_->vector});
  if (like.has_bias()) kOptimizerSteps<float>[kind](o, std::span(biases).first(steps.size()), {1, 1});
}

void Parameters::prefetch_beside(size_t r) const {
  if (has_bias())
    prefetch_bytes(&memory_->states[r], sizeof(RowState));
  else
    prefetch_bytes(&memory_->clocks[r], sizeof(uint32_t));
}

void Parameters::prefetch_weights(size_t r) const {
  prefetch_beside(r);
  with_weights([&](const auto* weights, size_t stride) {
    prefetch_bytes(weights + r * stride, cols() * sizeof(*weights));
  });
}

void Parameters::prefetch(size_t r) const {
  prefetch_bytes(announce(r),
                 memory_->stride * (precision() == Precision::kFp32 ? sizeof(float) : sizeof(Bf16)));
}

const void* Parameters::announce(size_t r) const {
  prefetch_beside(r);
  return with_weights(
      [&](const auto* weights, size_t stride) -> const void* { return weights + r * stride; });
}

size_t Parameters::cache_lines_of_row() const {
  return 1 + cache_lines(memory_->stride * (precision() == Precision::kFp32 ? sizeof(float) : sizeof(Bf16)));
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

Tensor Parameters::Array::tensor(std::string as) const {
  return {std::move(as), dtype, shape, {first, shape[0] == 0 ? 0 : row_bytes}, stride_bytes};
}

std::vector<Parameters::Array> Parameters::arrays() {
  std::vector<Array> arrays;
  std::visit(
      [&](auto& values) {
        using T = std::decay_t<decltype(values[0])>;
        const char* names[] = {"weight", "optimizer.first", "optimizer.second"};
        for (size_t vector = 0; vector * memory_->vector < memory_->stride; ++vector)
          arrays.push_back({names[vector],
                            std::same_as<T, float> ? DType::kF32 : DType::kBF16,
                            {rows(), cols()},
                            reinterpret_cast<std::byte*>(values.data() + vector * memory_->vector + first_),
                            cols() * sizeof(T),
                            memory_->stride * sizeof(T)});
      },
      memory_->values);
  const size_t vectors = arrays.size();
  // One number of each row, `offset` bytes from the beginning of the row's data.
  const auto add = [&](const char* name, DType dtype, auto* of_rows, size_t offset) {
    constexpr size_t kBytes = sizeof(uint32_t);  // of each of them
    arrays.push_back(
        {name, dtype, {rows()}, reinterpret_cast<std::byte*>(of_rows) + offset, kBytes, sizeof(*of_rows)});
  };
  if (has_bias()) {
    RowState* const states = memory_->states.data();
    constexpr size_t kBias = offsetof(RowState, bias);
    add("bias", DType::kF32, states, kBias);
    if (vectors > 1) add("optimizer.bias_first", DType::kF32, states, kBias + sizeof(float));
    if (vectors > 2) add("optimizer.bias_second", DType::kF32, states, kBias + 2 * sizeof(float));
    if (optimizer_) add("optimizer.clock", DType::kU32, states, offsetof(RowState, clock));
  } else if (optimizer_) {
    add("optimizer.clock", DType::kU32, memory_->clocks.data(), 0);
  }
  return arrays;
}

size_t Parameters::memory_bytes() const {
  const size_t vectors = memory_->stride / memory_->vector;
  return rows() * vectors * cols() * (precision() == Precision::kFp32 ? sizeof(float) : sizeof(Bf16)) +
         (first_ == 0 ? memory_->states.size() * sizeof(RowState) + memory_->clocks.size() * sizeof(uint32_t)
                      : 0);
}

}  // namespace modelet::shard
