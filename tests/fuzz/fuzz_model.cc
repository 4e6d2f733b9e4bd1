// A good modelet's file with some numbers changed, of any type. It must be refused, or all that a prediction does
// with the model must stay inside its arrays. Numbers that are not finite must be refused.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/array/padding.h"
#include "base/error.h"
#include "base/experiment/partition.h"
#include "shard/format/safetensors.h"
#include "shard/inference/evaluation.h"
#include "shard/inference/sparse_index.h"
#include "shard/inference/sparse_tuner.h"

namespace {

namespace shard = modelet::shard;

constexpr size_t kLabels = 40, kWidth = 16, kSamples = 5;

modelet::Experiment experiment() {
  modelet::Experiment e;
  e.model.hidden = {kWidth};
  e.modelets.output_modelets = 1;
  e.sampling.mode = modelet::SamplingMode::kLsh;
  return e;
}

modelet::ModeletSpec output_spec() {
  return modelet::partition_model(experiment(), {.features = 8, .labels = kLabels}).back();
}

std::vector<std::byte> good_file() {
  shard::Modelet modelet(output_spec(), shard::modelet_options(experiment(), true));
  modelet.initialise(0);
  std::vector<shard::Tensor> tensors;
  std::vector<std::vector<std::byte>> packed;
  for (const auto& array : modelet.parameters().arrays()) packed.push_back(array.packed());
  for (size_t i = 0; const auto& array : modelet.parameters().arrays())
    tensors.push_back({array.name, array.dtype, array.shape, packed[i++]});
  return shard::safetensors_bytes(tensors);
}

void use(const shard::SafetensorsFile& file) {
  static modelet::ThreadPool pool(1);
  shard::Modelet modelet(output_spec(), shard::modelet_options(experiment(), false));
  for (const auto& array : modelet.parameters().arrays())
    array.unpack(file.at(array.name, array.dtype, array.shape).bytes);
  modelet.choose_common();
  const shard::LabelSpread spread(kLabels);
  const size_t columns = modelet::padded(kSamples);
  modelet::AlignedVector<float> hidden(kWidth * columns, 3), queries(kSamples * kWidth, 3);
  const shard::Scoring scoring({&modelet}, spread, shard::scoring_settings(experiment()));
  shard::LabelRanker ranker(scoring, pool);
  shard::TopK best;
  ranker.rank_dense({hidden.data(), kWidth, columns, columns}, kSamples, 3, best);
  shard::QuerySample sample{{queries.data(), kSamples, kWidth, kWidth}, {}, {}};
  for (size_t s = 0; s < kSamples; ++s) {
    if (best.labels(s)[0] == shard::TopK::kNoLabel) return;
    sample.best.push_back(spread.neuron(best.labels(s)[0]));
    sample.scores.push_back(best.scores(s)[0]);
  }
  const shard::RowOrder order = shard::order_rows(scoring, sample, pool);
  shard::tune_sparse(scoring, order, sample, 1, 0.9, pool);
}

}  // namespace

// Input: (position, position, four bytes) for each change.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::byte> good = good_file();
  std::vector<std::byte> bytes = good;
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const size_t first = sizeof header + header, numbers = (bytes.size() - first) / sizeof(float);
  bool finite = true;
  for (size_t i = 0; i + 6 <= size; i += 6) {
    const size_t at = (size_t{data[i]} << 8 | data[i + 1]) % numbers;
    std::memcpy(bytes.data() + first + at * sizeof(float), data + i + 2, sizeof(float));
  }
  try {
    const shard::SafetensorsFile file(bytes, "fuzz");
    for (const shard::Tensor& tensor : file.tensors())
      for (size_t i = 0; tensor.dtype == shard::DType::kF32 && i < tensor.bytes.size(); i += sizeof(float)) {
        float value = 0;
        std::memcpy(&value, tensor.bytes.data() + i, sizeof value);
        finite = finite && std::isfinite(value);
      }
    if (!finite) __builtin_trap();
    use(file);
  } catch (const modelet::FormatError&) {
  }
  return 0;
}
