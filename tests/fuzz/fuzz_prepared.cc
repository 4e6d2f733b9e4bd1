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
    shard::PreparedWriter writer(folder / "good.mlt", 40, 30, modelet::Normalize::kNone,
                                 modelet::Existing::kReplace, 0, {{"history", 50}});
    const auto add = [&](const shard::testing::OwnedSample& sample,
                         const shard::testing::OwnedSample& history) {
      const shard::BlockSample other{history.features, history.values};
      writer.add(sample.view(), {&other, 1});
    };
    add({{1, 39}, {0.5, 2}, {0, 29}}, {{49, 3, 49}, {1, 2, 3}, {}});
    add({{3}, {1.25}, {}}, {{}, {}, {}});
    add({{0, 5, 17}, {1, -3.5, 4}, {7, 8}}, {{0}, {-1}, {}});
    writer.finish();
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
  constexpr size_t kFirstValue = 832;  // where the values begin in the good file
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
    std::vector<shard::BlockView> blocks = view.others;
    blocks.push_back(view.features);
    for (const shard::BlockView& block : blocks)
      for (size_t row = 0; row < view.rows; ++row) {
        const shard::BlockSample sample = block.of(row);
        for (size_t i = 0; i < sample.features.size(); ++i)
          if (sample.features[i] >= block.shape.features || !std::isfinite(sample.values[i]))
            __builtin_trap();
      }
  } catch (const modelet::FormatError&) {
  }
  return 0;
}
