#include "shard/inference/sparse_index.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "shard/kernels/elementwise.h"
#include "shard/kernels/gemm.h"
#include "shard/kernels/ids.h"
#include "shard/kernels/row_dots.h"

namespace modelet::shard {
namespace {

constexpr size_t kRowsTogether = 96;  // rows worked on together

// out [width] = the weights of a neuron, multiplied by the factor of its score.
void copy_scored_row(const Scoring& scoring, LabelRow label, size_t width, float* out) {
  const float* const weights = scoring.modelets()[label.modelet]->parameters().weights().row(label.row, out);
  if (weights != out) std::copy_n(weights, width, out);
  if (const float factor = scoring.factor(label); factor != 1) kernels::scale(factor, out, width);
}

std::vector<float> mean_of(ConstMatrix rows) {
  std::vector<double> sums(rows.cols);
  for (size_t r = 0; r < rows.rows; ++r)
    for (size_t c = 0; c < rows.cols; ++c) sums[c] += rows.row(r)[c];
  std::vector<float> mean(rows.cols);
  for (size_t c = 0; c < rows.cols; ++c)
    mean[c] = static_cast<float>(sums[c] / static_cast<double>(std::max<size_t>(rows.rows, 1)));
  return mean;
}

std::vector<float> mean_row(const Scoring& scoring, size_t width) {
  std::vector<double> sums(width);
  std::vector<float> row(width);
  size_t rows = 0;
  for (size_t m = 0; m < scoring.modelets().size(); ++m) {
    const size_t of_modelet = scoring.modelets()[m]->parameters().rows();
    rows += of_modelet;
    for (size_t r = 0; r < of_modelet; ++r) {
      copy_scored_row(scoring, {m, r}, width, row.data());
      for (size_t c = 0; c < width; ++c) sums[c] += row[c];
    }
  }
  std::vector<float> mean(width);
  for (size_t c = 0; c < width; ++c) mean[c] = static_cast<float>(sums[c] / static_cast<double>(rows));
  return mean;
}

// [d, d]
AlignedVector<float> covariance(ConstMatrix queries, std::span<const float> mean) {
  const size_t width = queries.cols;
  AlignedVector<float> centred(queries.rows * width), result(width * width);
  for (size_t q = 0; q < queries.rows; ++q)
    for (size_t c = 0; c < width; ++c) centred[q * width + c] = queries.row(q)[c] - mean[c];
  kernels::gemm({.m = width,
                 .n = width,
                 .k = queries.rows,
                 .a = centred.data(),
                 .a_row = 1,
                 .a_col = width,
                 .b = centred.data(),
                 .b_row = width,
                 .c = result.data(),
                 .c_row = width});
  kernels::scale(1.0f / static_cast<float>(std::max<size_t>(queries.rows, 1)), result.data(), result.size());
  return result;
}

// Median over the queries of the best score, minus what the mean row adds to every score.
float threshold(const QuerySample& queries, const RowOrder& order) {
  std::vector<float> scores;
  for (size_t q = 0; q < queries.best.size(); ++q) {
    float common = 0;
    for (size_t c = 0; c < order.row_mean.size(); ++c)
      common += order.row_mean[c] * (queries.hidden.row(q)[c] - order.query_mean[c]);
    scores.push_back(queries.scores[q] - common);
  }
  const auto middle = scores.begin() + static_cast<std::ptrdiff_t>(scores.size() / 2);
  std::nth_element(scores.begin(), middle, scores.end(),
                   [](float x, float y) { return kernels::comes_before(x, 0, y, 0); });
  return *middle;
}

}  // namespace

RowOrder order_rows(const Scoring& scoring, const QuerySample& queries, ThreadPool& pool) {
  MODELET_CHECK(!queries.best.empty() && queries.best.size() == queries.hidden.rows);
  const size_t width = queries.hidden.cols;
  RowOrder order;
  order.row_mean = mean_row(scoring, width);
  order.query_mean = mean_of(queries.hidden);
  const AlignedVector<float> spread = covariance(queries.hidden, order.query_mean);
  const float typical_best = threshold(queries, order);

  std::vector<float> distances(scoring.modelets().back()->spec().end);  // in deviations, to the threshold
  for (size_t m = 0; m < scoring.modelets().size(); ++m) {
    const Modelet& modelet = *scoring.modelets()[m];
    const Parameters& p = modelet.parameters();
    pool.for_pieces(p.rows(), kRowsTogether, [&](size_t begin, size_t end) {
      AlignedVector<float> row(width), centred((end - begin) * width), spreads((end - begin) * width);
      for (size_t r = begin; r < end; ++r) {
        copy_scored_row(scoring, {m, r}, width, row.data());
        for (size_t c = 0; c < width; ++c) centred[(r - begin) * width + c] = row[c] - order.row_mean[c];
      }
      kernels::gemm({.m = end - begin,
                     .n = width,
                     .k = width,
                     .a = centred.data(),
                     .a_row = width,
                     .a_col = 1,
                     .b = spread.data(),
                     .b_row = width,
                     .c = spreads.data(),
                     .c_row = width});
      for (size_t r = begin; r < end; ++r) {
        const size_t at = (r - begin) * width;
        const float variance = kernels::dot(&centred[at], &spreads[at], width);
        const float mean = scoring.factor({m, r}) * (p.logit(r, order.query_mean.data()) - p.bias(r)) +
                           scoring.constant({m, r});
        const float deviation = std::sqrt(std::max(variance, 1e-12f));
        distances[modelet.spec().begin + r] = (typical_best - mean) / deviation;
      }
    });
  }
  order.neurons.resize(distances.size());
  std::iota(order.neurons.begin(), order.neurons.end(), 0u);
  std::sort(order.neurons.begin(), order.neurons.end(),
            [&](uint32_t a, uint32_t b) { return kernels::comes_before(distances[a], a, distances[b], b); });
  return order;
}

PackedRows::PackedRows(const Scoring& scoring, const RowOrder& order, size_t count)
    : width(order.row_mean.size()),
      values(count * width),
      factors(count),
      biases(count),
      neurons(count),
      labels(count) {
  const std::vector<Modelet*>& output = scoring.modelets();
  for (size_t i = 0; i < count; ++i) {
    const uint32_t neuron = order.neurons[i];
    const auto modelet =
        std::ranges::partition_point(output, [&](const Modelet* m) { return m->spec().end <= neuron; });
    const LabelRow label{static_cast<size_t>(modelet - output.begin()), neuron - (*modelet)->spec().begin};
    copy_scored_row(scoring, label, width, &values[i * width]);
    factors[i] = scoring.factor(label);
    biases[i] = scoring.constant(label);
    neurons[i] = neuron;
    labels[i] = scoring.spread().label(neuron);
  }
}

std::unique_ptr<hashing::HashFamily> make_sparse_family(size_t width, uint32_t tables, uint32_t bits,
                                                        uint64_t seed) {
  return hashing::make_hash_family(
      {.kind = HashFamilyKind::kSimHash, .dim = width, .tables = tables, .bits = bits, .seed = seed});
}

std::vector<uint32_t> hash_rows(const hashing::HashFamily& family, ConstMatrix rows,
                                std::span<const float> mean, ThreadPool& pool) {
  const uint32_t tables = family.options().tables;
  std::vector<uint32_t> codes(rows.rows * tables);
  pool.for_pieces(rows.rows, kRowsTogether, [&](size_t begin, size_t end) {
    hashing::HashMemory scratch;
    std::vector<float> centred(rows.cols);
    for (size_t r = begin; r < end; ++r) {
      std::transform(rows.row(r), rows.row(r) + rows.cols, mean.begin(), centred.begin(), std::minus<>());
      family.hash(centred, std::span(codes).subspan(r * tables, tables), scratch);
    }
  });
  return codes;
}

CollisionTables::CollisionTables(std::span<const uint32_t> codes, uint32_t tables_of_codes, uint32_t tables,
                                 uint32_t bits, size_t first_row)
    : rows_(codes.size() / tables_of_codes - first_row),
      // No bucket is shortened here: rows of a bucket ascend, so that the best come first, and count() stops
      // early.
      tables_({.tables = tables,
               .bits = bits,
               .capacity = static_cast<uint32_t>(std::max<size_t>(rows_, 1)),
               .seed = 0},
              rows_) {
  MODELET_CHECK(tables <= kMostSparseTables);
  std::vector<uint32_t> column(rows_);
  for (uint32_t t = 0; t < tables; ++t) {
    for (size_t r = 0; r < rows_; ++r) column[r] = codes[(first_row + r) * tables_of_codes + t];
    tables_.build_table(t, column);
  }
}

void CollisionTables::count(std::span<const uint32_t> codes, uint32_t tables, uint32_t bucket,
                            Memory& scratch) const {
  constexpr size_t kEntriesPerLine = kCacheLine / sizeof(uint32_t);
  scratch.counts.resize(rows_);
  scratch.touched.clear();
  scratch.buckets.clear();
  scratch.reached.assign(tables + 1, 0);
  for (uint32_t t = 0; t < tables; ++t) {
    const std::span<const uint32_t> all = tables_.bucket(t, codes[t]);
    scratch.buckets.push_back(all.first(std::min<size_t>(all.size(), bucket)));
    for (size_t i = 0; i < scratch.buckets.back().size(); i += kEntriesPerLine)
      __builtin_prefetch(&scratch.buckets.back()[i]);
  }
  for (const std::span<const uint32_t> rows : scratch.buckets)
    for (const uint32_t row : rows) {
      const uint32_t count = ++scratch.counts[row];
      if (count == 1) scratch.touched.push_back(row);
      ++scratch.reached[count];
    }
}

size_t CollisionTables::choose(size_t limit, Memory& scratch, uint32_t* out) {
  // The lowest count with which a row is among the `limit` best.
  uint32_t lowest = static_cast<uint32_t>(scratch.reached.size()) - 1;
  while (lowest > 1 && scratch.reached[lowest] < limit) --lowest;
  const size_t above = lowest + 1 < scratch.reached.size() ? scratch.reached[lowest + 1] : 0;
  size_t ties = limit > above ? limit - above : 0, chosen = 0;
  for (const uint32_t row : scratch.touched) {
    const uint32_t count = scratch.counts[row];
    scratch.counts[row] = 0;
    if (count < lowest || (count == lowest && ties == 0)) continue;
    ties -= count == lowest ? 1 : 0;
    out[chosen++] = row;
  }
  return chosen;
}

SparseIndex::SparseIndex(const Scoring& scoring, const RowOrder& order, const SparseSettings& settings,
                         uint64_t seed, ThreadPool& pool)
    : settings_(settings), rows_(scoring, order, settings.rows), query_mean_(order.query_mean) {
  MODELET_CHECK(settings.head <= settings.rows);
  if (settings.tables == 0) return;
  family_ = make_sparse_family(rows_.width, settings.tables, settings.bits, seed);
  const std::vector<uint32_t> codes = hash_rows(
      *family_, {rows_.values.data(), rows_.count(), rows_.width, rows_.width}, order.row_mean, pool);
  tables_ = std::make_unique<CollisionTables>(codes, settings.tables, settings.tables, settings.bits,
                                              settings.head);
}

size_t SparseIndex::find_candidates(const float* query, Memory& scratch) const {
  if (tables_ == nullptr) return 0;
  scratch.centred.resize(rows_.width);
  scratch.codes.resize(settings_.tables);
  scratch.candidates.resize(settings_.candidates);
  std::transform(query, query + rows_.width, query_mean_.begin(), scratch.centred.begin(), std::minus<>());
  family_->hash(scratch.centred, scratch.codes, scratch.hash);
  tables_->count(scratch.codes, settings_.tables, settings_.bucket, scratch.collisions);
  const size_t found =
      CollisionTables::choose(settings_.candidates, scratch.collisions, scratch.candidates.data());
  for (size_t i = 0; i < found; ++i) scratch.candidates[i] += static_cast<uint32_t>(settings_.head);
  return found;
}

void SparseIndex::rank(const float* query, const float* direct, Memory& scratch, size_t sample,
                       TopK& best) const {
  const auto score = [&](float logit, size_t row) {
    const float added = direct != nullptr ? rows_.factors[row] * direct[rows_.neurons[row]] : 0.0f;
    return logit + rows_.biases[row] + added;
  };
  scratch.scores.resize(std::max(settings_.head, settings_.candidates));
  float* scores = scratch.scores.data();
  kernels::row_dots(rows_.values.data(), rows_.width, settings_.head, query, rows_.width, scores);
  for (size_t i = 0; i < settings_.head; ++i) best.insert(sample, score(scores[i], i), rows_.labels[i]);
  const size_t found = find_candidates(query, scratch);
  const uint32_t* candidates = scratch.candidates.data();
  kernels::scattered_row_dots(rows_.values.data(), rows_.width, candidates, found, query, rows_.width,
                              scores);
  for (size_t i = 0; i < found; ++i)
    best.insert(sample, score(scores[i], candidates[i]), rows_.labels[candidates[i]]);
}

size_t SparseIndex::memory_bytes() const {
  return rows_.values.size() * sizeof(float) + rows_.count() * (2 * sizeof(float) + 2 * sizeof(uint32_t)) +
         (tables_ != nullptr ? tables_->memory_bytes() + family_->memory_bytes() : 0);
}

}  // namespace modelet::shard
