#include "node_agent/replicas/optimizer_state.h"

#include <cstring>
#include <string_view>

#include "base/array/bf16.h"

namespace modelet::agent {

bool steps_follow_gradients(OptimizerKind kind) { return kind == OptimizerKind::kSgd; }

std::vector<shard::Parameters::Array> state_arrays(shard::Parameters& parameters) {
  std::vector<shard::Parameters::Array> arrays = parameters.arrays();
  std::erase_if(arrays,
                [](const auto& array) { return !std::string_view(array.name).starts_with("optimizer."); });
  return arrays;
}

size_t width(const shard::Parameters::Array& array) { return array.shape.size() == 2 ? array.shape[1] : 1; }

const comm::Codec* codec_of(const shard::Parameters::Array& array) {
  switch (array.dtype) {
    case shard::DType::kF32:
      return &comm::codec_of(CodecKind::kNone);
    case shard::DType::kBF16:
      return &comm::codec_of(CodecKind::kBf16);
    default:
      return nullptr;
  }
}

void read_row(const shard::Parameters::Array& array, size_t r, float* out) {
  const std::byte* row = array.first + r * array.stride_bytes;
  if (array.dtype != shard::DType::kBF16) {
    std::memcpy(out, row, array.row_bytes);
    return;
  }
  for (size_t c = 0; c < width(array); ++c) {
    Bf16 value;
    std::memcpy(&value, row + c * sizeof value, sizeof value);
    out[c] = to_float(value);
  }
}

void write_row(const shard::Parameters::Array& array, size_t r, const float* values) {
  std::byte* row = array.first + r * array.stride_bytes;
  if (array.dtype != shard::DType::kBF16) {
    std::memcpy(row, values, array.row_bytes);
    return;
  }
  for (size_t c = 0; c < width(array); ++c) {
    const Bf16 value = nearest_bf16(values[c]);
    std::memcpy(row + c * sizeof value, &value, sizeof value);
  }
}

void clear_row(const shard::Parameters::Array& array, size_t r) {
  std::memset(array.first + r * array.stride_bytes, 0, array.row_bytes);
}

bool holds_squares(const shard::Parameters::Array& array, OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdam:
      return std::string_view(array.name).ends_with("second");
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kRmsprop:
      return true;
    case OptimizerKind::kSgd:
      return false;
  }
  return false;
}

}  // namespace modelet::agent
