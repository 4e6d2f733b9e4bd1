// A good prepared file with some bytes changed and the checksum of its header corrected. It must be opened
// without access outside its bytes, or refused with FormatError.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/array/aligned.h"
#include "base/error.h"
#include "tests/shard/data_testing.h"

namespace {

namespace shard = modelet::shard;

const std::string& good_file() {
  static const std::string bytes = [] {
    const shard::testing::TemporaryFolder folder;
    shard::testing::prepare_xmc(
        folder.write("good.txt", "3 40 30\n0,29 1:0.5 39:2\n 3:1.25\n7,8 0:1 5:-3.5 17:4\n"),
        folder / "good.mlt", modelet::Normalize::kNone);
    return shard::testing::bytes_of(folder / "good.mlt");
  }();
  return bytes;
}

}  // namespace

// Input: (position, position, value) triples; a position past the end cuts the file. What is left over of the
// input, a float, becomes a value of a sample.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes = good_file();
  for (size_t i = 0; i + 3 <= size; i += 3) {
    const size_t at = size_t{data[i]} << 8 | data[i + 1];
    if (at < bytes.size())
      bytes[at] = static_cast<char>(data[i + 2]);
    else
      bytes.resize(std::min(bytes.size(), at % (good_file().size() + 1)));
  }
  constexpr size_t kFirstValue = 640;  // where the values begin in the good file
  if (size > sizeof(float) && bytes.size() >= kFirstValue + sizeof(float))
    std::memcpy(bytes.data() + kFirstValue, data + size - sizeof(float), sizeof(float));
  const auto source = std::as_bytes(std::span(bytes));
  modelet::AlignedVector<std::byte> file(source.begin(), source.end());
  shard::testing::seal_header(file);
  try {
    const shard::PreparedView view = shard::parse_prepared(file, "fuzz", size % 2 == 1);
    const std::vector<shard::NeuronRange> some = {{view.labels / 3, view.labels / 2}};
    shard::bytes_of_labels(file, some, "fuzz");
    for (const auto& neurons : {some, std::vector<shard::NeuronRange>{{0, view.labels}}}) {
      const shard::SampleLabels labels(view, neurons, "fuzz");
      for (size_t row = 0; row < view.rows; ++row)
        for (const uint32_t label : labels.of(row))
          if (label >= view.labels) __builtin_trap();
    }
    for (size_t row = 0; row < view.rows; ++row)
      for (uint64_t i = view.feature_offsets[row]; i < view.feature_offsets[row + 1]; ++i)
        if (view.feature_ids[i] >= view.features || !std::isfinite(view.values[i])) __builtin_trap();
  } catch (const modelet::FormatError&) {
  }
  return 0;
}
