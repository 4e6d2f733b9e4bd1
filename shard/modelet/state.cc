#include "shard/modelet/state.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "base/error.h"

namespace modelet::shard {
namespace {

constexpr const char* kFeatures = "features";  // of the rows of an input modelet, if not all have one

void restore_tables(Modelet& modelet, const SafetensorsFile& file) {
  Retrieval& retrieval = *modelet.retrieval();
  hashing::LshIndex& index = *retrieval.tables;
  const uint64_t rows = index.rows(), tables = index.options().hash.tables, centre = index.centre().size();
  // A checkpoint without common rows was written before there were any; its tables may lack the mean query
  // too.
  if (!file.contains("tables.common")) {
    index.build(modelet.parameters().weights());
    return;
  }
  const auto codes = [&](const char* name) { return file.values<uint32_t>(name, {rows, tables}); };
  index.restore(codes("tables.codes"), file.values<float>("tables.centre", {centre}));
  const auto changed = file.values<uint8_t>("tables.changed", {rows});
  std::copy(changed.begin(), changed.end(), retrieval.changed.begin());
  retrieval.rehash_running = file.contains("tables.next_codes");
  if (retrieval.rehash_running)
    index.restore_rehash(codes("tables.next_codes"), file.values<float>("tables.next_centre", {centre}));
}

// Without projections in the file the next step makes them.
void restore_projections(LowRankIndex& low_rank, const SafetensorsFile& file, uint64_t dim) {
  if (!file.contains("preview.rows")) return;
  const auto mean = file.values<float>("preview.mean", {dim});
  const auto directions = file.values<float>("preview.directions", {low_rank.rank(), dim});
  low_rank.restore({.mean = {mean.begin(), mean.end()}, .directions = {directions.begin(), directions.end()}},
                   file.values<Bf16>("preview.rows", {low_rank.rows(), low_rank.rank()}),
                   file.values<float>("preview.centres", {low_rank.rows()}),
                   file.values<float>("preview.missed", {1})[0]);
}

void restore_retrieval(Modelet& modelet, const SafetensorsFile& file) {
  Retrieval& retrieval = *modelet.retrieval();
  if (retrieval.low_rank) restore_projections(*retrieval.low_rank, file, retrieval.query_mean.size());
  if (retrieval.tables) restore_tables(modelet, file);
  if (file.contains("tables.query_mean")) {
    const auto mean = file.values<float>("tables.query_mean", {retrieval.query_mean.size()});
    std::copy(mean.begin(), mean.end(), retrieval.query_mean.begin());
  }
  modelet.choose_common();
  if (!file.contains("tables.common")) return;
  const uint64_t rows = modelet.spec().neurons();
  const auto common = file.values<uint32_t>("tables.common", {retrieval.common.size()});
  for (const uint32_t row : common)
    if (row >= rows)
      throw FormatError(file.path().string() + ": tables.common names row " + std::to_string(row) +
                        " of a modelet with " + std::to_string(rows));
  retrieval.common.assign(common.begin(), common.end());
}

// The arrays of the direct path, beside its scales.
void add_direct(const Direct& direct, std::vector<Tensor>& tensors) {
  const Pairs& pairs = direct.pairs;
  tensors.push_back(tensor("pairs.offsets", {pairs.offsets().size()}, pairs.offsets()));
  tensors.push_back(tensor("pairs.features", {pairs.size()}, pairs.features()));
  tensors.push_back(tensor("pairs.positives", {pairs.neurons()}, pairs.positives()));
  tensors.push_back(tensor("pairs.sums", {pairs.size()}, pairs.sums()));
  if (!direct.classifiers) return;
  tensors.push_back(tensor("pairs.classifiers", {pairs.size()}, direct.classifiers->weights));
  tensors.push_back(tensor("pairs.classifier_bias", {pairs.neurons()}, direct.classifiers->biases));
}

void restore_direct(Direct& direct, const SafetensorsFile& file, uint64_t features) {
  const Tensor& stored_features = file.at("pairs.features");
  const uint64_t count = stored_features.shape.empty() ? 0 : stored_features.shape[0],
                 rows = direct.pairs.neurons();
  const bool fits = direct.pairs.restore({.offsets = file.values<uint64_t>("pairs.offsets", {rows + 1}),
                                          .features = file.values<uint32_t>("pairs.features", {count}),
                                          .positives = file.values<uint32_t>("pairs.positives", {rows}),
                                          .sums = file.values<float>("pairs.sums", {count})},
                                         features);
  if (!fits)
    throw FormatError(file.path().string() + ": its pairs are not of " + std::to_string(rows) +
                      " labels and " + std::to_string(features) + " features");
  if (!direct.classifiers) return;
  const auto weights = file.values<float>("pairs.classifiers", {count}),
             biases = file.values<float>("pairs.classifier_bias", {rows});
  direct.classifiers = {{weights.begin(), weights.end()}, {biases.begin(), biases.end()}};
}

// The features of the file's rows; empty: all have rows.
std::span<const uint32_t> features_of(const SafetensorsFile& file, const DataShape& shape) {
  if (shape.occurring_features == 0) return {};
  const auto ids = file.values<uint32_t>(kFeatures, {shape.occurring_features});
  if (std::ranges::adjacent_find(ids, std::greater_equal()) != ids.end() || ids.back() >= shape.features)
    throw FormatError(file.path().string() + ": its features do not ascend, or are more than the model's " +
                      std::to_string(shape.features));
  return ids;
}

// The moments of the replicas' mean. A checkpoint of a run with another rule has none, or others.
constexpr const char* kMomentNames[] = {"mean.first.", "mean.second."};

template <class Use>
void for_each_moment(Modelet& modelet, const Use& use) {
  for (size_t i = 0; i < modelet.moments().size(); ++i)
    for (const Parameters::Array& array : modelet.moments()[i].arrays())
      use(std::string(kMomentNames[i]) + array.name, array);
}

constexpr uint64_t kNoRow = ~uint64_t{0};

// Row r of the array becomes row place(r) of the tensor; kNoRow: it stays as it is.
template <class Place>
void fill_rows(const Parameters::Array& array, const SafetensorsFile& file, const Tensor& tensor,
               const Place& place) {
  constexpr size_t kTogether = size_t{64} << 20;  // bytes of the file that are in memory
  size_t read = 0;
  for (uint64_t row = 0; row < array.shape[0]; ++row) {
    const uint64_t from = place(row);
    if (from == kNoRow) continue;
    std::memcpy(array.first + row * array.stride_bytes, &tensor.bytes[from * array.row_bytes],
                array.row_bytes);
    if ((read += array.row_bytes) < kTogether) continue;
    file.release_pages();
    read = 0;
  }
  file.release_pages();
}

// A feature has the row of the same feature in the file. Those that are not in the file keep their first weights,
// and rows of features that the modelet does not have are left out: they were never updated.
void restore_features(Modelet& modelet, const SafetensorsFile& file, const DataShape& shape) {
  const std::span<const uint32_t> then = features_of(file, shape);
  const uint64_t count = shape.input_rows(), rows = modelet.parameters().rows() - 1;
  std::vector<uint64_t> places;  // in the file, of each row
  for (uint64_t row = 0, at = 0; row < rows; ++row) {
    const uint64_t feature = modelet.features().empty() ? row : modelet.features()[row];
    if (then.empty()) {
      places.push_back(feature);
      continue;
    }
    while (at < count && then[at] < feature) ++at;
    places.push_back(at < count && then[at] == feature ? at : kNoRow);
  }
  places.push_back(count);  // the biases
  const auto fill = [&](const std::string& name, const Parameters::Array& array) {
    std::vector<uint64_t> shape_then = array.shape;
    shape_then[0] = count + 1;
    fill_rows(array, file, file.at(name, array.dtype, shape_then), [&](uint64_t row) { return places[row]; });
  };
  for (const Parameters::Array& array : modelet.parameters().arrays()) fill(array.name, array);
  for_each_moment(modelet, [&](const std::string& name, const Parameters::Array& array) {
    if (file.contains(name)) fill(name, array);
  });
}

std::string scale_name(const Parameters::Array& array) { return std::string("scales.") + array.name; }

}  // namespace

CheckpointEntry save_modelet(Modelet& modelet, const CheckpointWriter& writer) {
  std::vector<Tensor> tensors;
  for (const Parameters::Array& array : modelet.parameters().arrays())
    tensors.push_back(array.tensor(array.name));
  for_each_moment(modelet, [&](const std::string& name, const Parameters::Array& array) {
    tensors.push_back(array.tensor(name));
  });
  if (const std::span<const uint32_t> ids = modelet.features(); !ids.empty())
    tensors.push_back(tensor(kFeatures, {ids.size()}, ids));
  std::vector<uint32_t> next_codes;
  float missed = 0;
  if (const Retrieval* retrieval = modelet.retrieval()) {
    const uint64_t rows = modelet.spec().neurons(), dim = retrieval->query_mean.size();
    tensors.push_back(tensor("tables.query_mean", {dim}, retrieval->query_mean));
    tensors.push_back(tensor("tables.common", {retrieval->common.size()}, retrieval->common));
    if (retrieval->low_rank && retrieval->low_rank->ready()) {
      const LowRankIndex& low_rank = *retrieval->low_rank;
      missed = low_rank.missed_when_built();
      tensors.push_back(tensor("preview.mean", {dim}, low_rank.basis().mean));
      tensors.push_back(tensor("preview.directions", {low_rank.rank(), dim}, low_rank.basis().directions));
      tensors.push_back(tensor("preview.rows", {rows, low_rank.rank()}, low_rank.projections()));
      tensors.push_back(tensor("preview.centres", {rows}, low_rank.centres()));
      tensors.push_back(tensor("preview.missed", {1}, std::span(&missed, 1)));
    }
    if (retrieval->tables) {
      const hashing::LshIndex& index = *retrieval->tables;
      const uint64_t tables = index.options().hash.tables;
      tensors.push_back(tensor("tables.codes", {rows, tables}, index.codes()));
      tensors.push_back(tensor("tables.centre", {index.centre().size()}, index.centre()));
      tensors.push_back(tensor("tables.changed", {rows}, retrieval->changed));
      if (retrieval->rehash_running) {
        next_codes = index.next_codes();
        tensors.push_back(tensor("tables.next_codes", {rows, tables}, next_codes));
        tensors.push_back(tensor("tables.next_centre", {index.next_centre().size()}, index.next_centre()));
      }
    }
  }
  if (Direct* direct = modelet.direct()) {
    for (const Parameters::Array& array : direct->scales.arrays())
      tensors.push_back(array.tensor(scale_name(array)));
    add_direct(*direct, tensors);
  }
  if (!modelet.label_counts().empty())
    tensors.push_back(tensor("label_counts", {modelet.label_counts().size()}, modelet.label_counts()));
  return writer.write_modelet(modelet.spec(), tensors);
}

void restore_modelet(Modelet& modelet, const Checkpoint& checkpoint) {
  const SafetensorsFile file = checkpoint.open_modelet(modelet.spec());
  if (modelet.spec().kind == LayerKind::kInput) {
    restore_features(modelet, file, checkpoint.index().shape);
  } else {
    const auto fill = [&](const std::string& name, const Parameters::Array& array) {
      fill_rows(array, file, file.at(name, array.dtype, array.shape), [](uint64_t row) { return row; });
    };
    for (const Parameters::Array& array : modelet.parameters().arrays()) fill(array.name, array);
    for_each_moment(modelet, [&](const std::string& name, const Parameters::Array& array) {
      if (file.contains(name)) fill(name, array);
    });
  }
  if (modelet.retrieval() != nullptr) restore_retrieval(modelet, file);
  if (Direct* direct = modelet.direct()) {
    for (const Parameters::Array& array : direct->scales.arrays())
      array.unpack(file.at(scale_name(array), array.dtype, array.shape).bytes);
    restore_direct(*direct, file, checkpoint.index().shape.features);
  }
  if (file.contains("label_counts")) {
    const auto counts = file.values<uint32_t>("label_counts", {modelet.spec().neurons()});
    modelet.label_counts().assign(counts.begin(), counts.end());
  }
}

FeatureRows stored_feature_rows(const Checkpoint& checkpoint) {
  const DataShape& shape = checkpoint.index().shape;
  if (shape.occurring_features == 0) return FeatureRows(shape.features);
  const SafetensorsFile file = checkpoint.open_modelet(checkpoint.index().modelets.front().spec);
  return {shape.features, features_of(file, shape)};
}

}  // namespace modelet::shard
