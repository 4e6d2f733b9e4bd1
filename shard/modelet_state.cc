#include "shard/modelet_state.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace modelet::shard {
namespace {

void restore_tables(Modelet& modelet, const SafetensorsFile& file) {
  Retrieval& retrieval = *modelet.retrieval();
  const hashing::LshIndex& index = retrieval.index;
  const uint64_t rows = index.rows(), tables = index.options().hash.tables, centre = index.centre().size();
  // A checkpoint without common rows is from before there were any: its tables may lack the mean query too.
  if (!file.contains("tables.common")) {
    retrieval.index.build(modelet.parameters().weights());
    modelet.choose_common();
    return;
  }
  const auto codes = [&](const char* name) { return file.values<uint32_t>(name, {rows, tables}); };
  retrieval.index.restore(codes("tables.codes"), file.values<float>("tables.centre", {centre}));
  const auto mean = file.values<float>("tables.query_mean", {retrieval.query_mean.size()});
  const auto changed = file.values<uint8_t>("tables.changed", {rows});
  std::copy(mean.begin(), mean.end(), retrieval.query_mean.begin());
  std::copy(changed.begin(), changed.end(), retrieval.changed.begin());
  modelet.choose_common();
  const auto common = file.values<uint32_t>("tables.common", {retrieval.common.size()});
  for (const uint32_t row : common)
    if (row >= rows)
      throw FormatError(file.path().string() + ": tables.common names row " + std::to_string(row) +
                        " of a modelet with " + std::to_string(rows));
  retrieval.common.assign(common.begin(), common.end());
  retrieval.rehash_running = file.contains("tables.next_codes");
  if (retrieval.rehash_running)
    retrieval.index.restore_rehash(codes("tables.next_codes"),
                                   file.values<float>("tables.next_centre", {centre}));
}

}  // namespace

CheckpointEntry save_modelet(Modelet& modelet, const CheckpointWriter& writer) {
  std::vector<Tensor> tensors;
  std::vector<std::vector<std::byte>> packed;  // tensors refer to it
  for (const Parameters::Array& array : modelet.parameters().arrays()) {
    packed.push_back(array.packed());
    tensors.push_back({array.name, array.dtype, array.shape, packed.back()});
  }
  std::vector<uint32_t> next_codes;
  if (const Retrieval* retrieval = modelet.retrieval()) {
    const hashing::LshIndex& index = retrieval->index;
    const uint64_t rows = index.rows(), tables = index.options().hash.tables;
    tensors.push_back(tensor("tables.codes", {rows, tables}, index.codes()));
    tensors.push_back(tensor("tables.centre", {index.centre().size()}, index.centre()));
    tensors.push_back(tensor("tables.query_mean", {retrieval->query_mean.size()}, retrieval->query_mean));
    tensors.push_back(tensor("tables.changed", {rows}, retrieval->changed));
    tensors.push_back(tensor("tables.common", {retrieval->common.size()}, retrieval->common));
    if (retrieval->rehash_running) {
      next_codes = index.next_codes();
      tensors.push_back(tensor("tables.next_codes", {rows, tables}, next_codes));
      tensors.push_back(tensor("tables.next_centre", {index.next_centre().size()}, index.next_centre()));
    }
  }
  if (!modelet.label_counts().empty())
    tensors.push_back(tensor("label_counts", {modelet.label_counts().size()}, modelet.label_counts()));
  return writer.write_modelet(modelet.spec(), tensors);
}

void restore_modelet(Modelet& modelet, const Checkpoint& checkpoint) {
  const SafetensorsFile file = checkpoint.open_modelet(modelet.spec());
  for (const Parameters::Array& array : modelet.parameters().arrays())
    array.unpack(file.at(array.name, array.dtype, array.shape).bytes);
  if (modelet.retrieval() != nullptr) restore_tables(modelet, file);
  if (file.contains("label_counts")) {
    const auto counts = file.values<uint32_t>("label_counts", {modelet.spec().neurons()});
    modelet.label_counts().assign(counts.begin(), counts.end());
  }
}

}  // namespace modelet::shard
