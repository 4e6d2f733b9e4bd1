#include "shard/inference/sparse_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "shard/format/safetensors.h"

namespace modelet::shard {
namespace {

constexpr const char* kPlanVersion = "1";
constexpr size_t kNumbers = 8;  // settings, recall, cost

std::array<uint64_t, kNumbers> numbers_of(const TunedSparse& tuned) {
  const SparseSettings& s = tuned.settings;
  return {s.rows,
          s.head,
          s.tables,
          s.bits,
          s.bucket,
          s.candidates,
          std::bit_cast<uint64_t>(tuned.recall),
          std::bit_cast<uint64_t>(tuned.cost)};
}

TunedSparse tuned_of(std::span<const uint64_t> numbers) {
  return {{.rows = numbers[0],
           .head = numbers[1],
           .tables = static_cast<uint32_t>(numbers[2]),
           .bits = static_cast<uint32_t>(numbers[3]),
           .bucket = static_cast<uint32_t>(numbers[4]),
           .candidates = numbers[5]},
          std::bit_cast<double>(numbers[6]),
          std::bit_cast<double>(numbers[7])};
}

// The range of what a tuner would choose, so that a file from elsewhere cannot ask for more memory than the
// model has.
bool plausible(const SparseSettings& settings, size_t neurons) {
  constexpr size_t kMostCandidates = 1 << 20;
  return settings.rows <= neurons && settings.head <= settings.rows && settings.tables <= kMostSparseTables &&
         settings.bits < 32 && (settings.bits <= 1 || size_t{1} << settings.bits <= settings.rows) &&
         settings.candidates <= kMostCandidates;
}

// The checksum of the key and of everything in the file.
std::string checksum(uint64_t key, std::span<const Tensor> tensors) {
  std::vector<uint64_t> sums = {key};
  for (const Tensor& tensor : tensors) sums.push_back(xxh3_of(tensor.bytes));
  return std::to_string(xxh3_of(std::as_bytes(std::span(sums))));
}

std::vector<Tensor> tensors_of(std::span<const uint64_t> numbers, std::span<const uint32_t> neurons,
                               std::span<const float> row_mean, std::span<const float> query_mean) {
  return {tensor("numbers", {numbers.size()}, numbers), tensor("neurons", {neurons.size()}, neurons),
          tensor("row_mean", {row_mean.size()}, row_mean),
          tensor("query_mean", {query_mean.size()}, query_mean)};
}

}  // namespace

std::optional<SparsePlan> read_sparse_plan(const std::filesystem::path& file, uint64_t key, size_t neurons,
                                           size_t width) {
  try {
    const SafetensorsFile stored(file);
    const auto numbers = stored.values<uint64_t>("numbers", {kNumbers});
    SparsePlan plan{tuned_of(numbers), {}};
    const auto order = stored.values<uint32_t>("neurons", {plan.tuned.settings.rows});
    const auto row_mean = stored.values<float>("row_mean", {width});
    const auto query_mean = stored.values<float>("query_mean", {width});
    const Metadata expected = {{"version", kPlanVersion},
                               {"checksum", checksum(key, tensors_of(numbers, order, row_mean, query_mean))}};
    if (stored.metadata() != expected || !plausible(plan.tuned.settings, neurons) ||
        !std::ranges::all_of(order, [&](uint32_t neuron) { return neuron < neurons; }))
      return std::nullopt;
    plan.order.neurons.assign(order.begin(), order.end());
    plan.order.row_mean.assign(row_mean.begin(), row_mean.end());
    plan.order.query_mean.assign(query_mean.begin(), query_mean.end());
    return plan;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void write_sparse_plan(const std::filesystem::path& file, uint64_t key, const SparsePlan& plan) {
  const auto numbers = numbers_of(plan.tuned);
  const std::vector<Tensor> tensors =
      tensors_of(numbers, std::span(plan.order.neurons).first(plan.tuned.settings.rows), plan.order.row_mean,
                 plan.order.query_mean);
  try {
    write_safetensors(file, tensors, {{"version", kPlanVersion}, {"checksum", checksum(key, tensors)}});
  } catch (const Error&) {
    // The folder may belong to somebody else, or the disk may be full: the next program then makes the plan
    // anew.
  }
}

}  // namespace modelet::shard
