// Any bytes as a table with typed columns, of the formats table and columns. They must be tokenised, fitted and encoded, or refused with
// an Error. The first byte chooses the dialect.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>

#include "base/error.h"
#include "shard/data/encode/columns_encoder.h"

namespace {

using namespace modelet;
using namespace modelet::shard;

LineReader lines_of(const std::string& text) {
  return {std::make_unique<std::stringbuf>(text, std::ios::in), "fuzz"};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Encoding options;
  options.format = DataFormat::kTable;
  options.table.columns = {"label:y", "bin:n", "log:n", "num:m", "cat:a,b", "cross:a*b"};
  options.table.hash_features = 64;
  options.csv.header = (data[0] & 1) != 0;
  options.csv.delimiter = (data[0] & 2) != 0 ? Delimiter::kTab : Delimiter::kComma;
  if ((data[0] & 4) != 0) {
    options.format = DataFormat::kColumns;
    options.text.buckets = 64;
    if (options.csv.header)
      options.columns = {{"y", "target separator=pipe"}, {"n", "number"}, {"a", "category separator=semicolon"},
                         {"b", "text"}, {"m", "date"}};
    else
      options.columns = {{"1", "target separator=pipe"}, {"2", "number"}, {"3", "date"}, {"4", "category"}, {"5", "text"}};
  }
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 8) != 0) text.insert(0, "{\"");  // JSON Lines
  try {
    const auto encoder = ColumnsEncoder::fit(options, lines_of(text), {});
    const auto samples = encoder->open(lines_of(text));
    for (Sample sample; samples->next(sample);)
      for (size_t i = 0; i < sample.features.size(); ++i)
        if (sample.features[i] >= samples->features() || !std::isfinite(sample.values[i]) ||
            (i > 0 && sample.features[i - 1] >= sample.features[i]))
          __builtin_trap();
  } catch (const Error&) {
  }
  return 0;
}
