// How much of the exact top-k by inner product do the candidates of an index contain? The rows are clustered
// and share an offset, as the neurons of a trained layer do. The queries lie around the same cluster centres
// and have an offset of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "hashing/index.h"
#include "tests/hashing/random_data.h"

namespace modelet::hashing {
namespace {

constexpr size_t kRecallDim = 64, kRows = 6000, kClusters = 300, kQueries = 100, kTop = 10, kLimit = 100;

struct Task {
  Rows rows{kRecallDim, std::vector<float>(kRows* kRecallDim)};
  Rows queries{kRecallDim, std::vector<float>(kQueries* kRecallDim)};
  std::vector<float> query_mean = std::vector<float>(kRecallDim, 0.0f);
  std::vector<std::vector<uint32_t>> top;  // [queries, kTop], exact

  explicit Task(float offset) {
    Rng rng(21);
    const std::vector<float> centres = normal_vector(kClusters * kRecallDim, rng),
                             shared = normal_vector(kRecallDim, rng);
    scatter(rows, centres, shared, offset, rng);
    scatter(queries, centres, normal_vector(kRecallDim, rng), offset, rng);
    for (size_t i = 0; i < queries.values.size(); ++i)
      query_mean[i % kRecallDim] += queries.values[i] / kQueries;
    for (size_t q = 0; q < kQueries; ++q) top.push_back(exact_top(q));
  }

  static void scatter(Rows& rows, std::span<const float> centres, std::span<const float> shared, float offset,
                      Rng& rng) {
    for (size_t r = 0; r < rows.count(); ++r) {
      const float* centre = &centres[rng.below(kClusters) * kRecallDim];
      for (size_t i = 0; i < kRecallDim; ++i)
        rows.row(r)[i] = centre[i] + 0.7f * rng.normal() + offset * shared[i];
    }
  }

  // Ranks by the inner product with the centred query, which distinguishes the best rows of one query from
  // those of another.
  std::vector<uint32_t> exact_top(size_t q) const {
    std::vector<float> score(kRows, 0.0f);
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t i = 0; i < kRecallDim; ++i)
        score[r] += (queries.row(q)[i] - query_mean[i]) * rows.row(r)[i];
    }
    std::vector<uint32_t> order(kRows);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + kTop, order.end(),
                      [&](uint32_t a, uint32_t b) { return score[a] > score[b]; });
    order.resize(kTop);
    return order;
  }
};

struct Recall {
  double of_index = 0;   // fraction of the exact top-k that is among the candidates
  double of_chance = 0;  // the same, expected if the candidates were random rows
};

Recall recall(const Task& task, HashFamilyKind kind, uint32_t tables, bool centre) {
  LshIndex index({{kind, kRecallDim, tables, 7, 3}, 128, centre}, kRows);
  index.build(task.rows.matrix());
  QueryMemory scratch;
  Recall result;
  for (size_t q = 0; q < kQueries; ++q) {
    const auto found = index.query(task.queries.row(q), task.query_mean, kLimit, scratch);
    size_t hits = 0;
    for (uint32_t row : task.top[q]) hits += std::find(found.begin(), found.end(), row) != found.end();
    result.of_index += static_cast<double>(hits) / kTop / kQueries;
    result.of_chance += static_cast<double>(found.size()) / kRows / kQueries;
  }
  return result;
}

class RecallOf : public testing::TestWithParam<HashFamilyKind> {};

TEST_P(RecallOf, GrowsWithTablesAndNeedsCentring) {
  const HashFamilyKind kind = GetParam();
  const Task offset(1.5f);
  std::printf("recall of the exact top %zu among <= %zu of %zu rows, %s\n", kTop, kLimit, kRows,
              spelling(kind).data());
  std::printf("%8s %10s %14s %8s\n", "tables", "centred", "not centred", "chance");
  double last = 0;
  Recall centred, plain;
  for (uint32_t tables : {2, 4, 8, 16, 32, 64}) {
    centred = recall(offset, kind, tables, true);
    plain = recall(offset, kind, tables, false);
    std::printf("%8u %10.3f %14.3f %8.3f\n", tables, centred.of_index, plain.of_index, centred.of_chance);
    EXPECT_GT(centred.of_index, last - 0.01) << tables << " tables";
    EXPECT_GT(centred.of_index, 3 * centred.of_chance) << tables << " tables";
    last = centred.of_index;
  }
  EXPECT_GT(centred.of_index, 0.5);
  EXPECT_GT(centred.of_index, 20 * centred.of_chance);
  EXPECT_GT(centred.of_index, 1.5 * plain.of_index);
}

INSTANTIATE_TEST_SUITE_P(Families, RecallOf, testing::ValuesIn(all_values<HashFamilyKind>()),
                         [](const auto& family) { return std::string(spelling(family.param)); });

}  // namespace
}  // namespace modelet::hashing
