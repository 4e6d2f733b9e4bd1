// Any bytes as the body of a request to `modelet serve`. They must be accepted within the limits and read as
// text in the format of the model, or be an error. The first byte chooses the format.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>

#include "base/error.h"
#include "scheduler/cli/serve/request.h"
#include "shard/data/read/text_records.h"
#include "shard/data/read/xmc_reader.h"

namespace {

namespace shard = modelet::shard;

shard::LineReader lines_of(const std::string& text) {
  return {std::make_unique<std::stringbuf>(text, std::ios::in), "fuzz"};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const modelet::Encoding kOptions[] = {
      modelet::parse_encoding("[data]\nformat = 'text'", "a"),
      modelet::parse_encoding("[data]\nformat = 'csv'\n[csv]\nlabels = 't'\ntext = ['n', 'c']", "b"),
      modelet::parse_encoding("[data]\nformat = 'csv'\n[csv]\nlabels = '1'\ntext = ['2']\nheader = false",
                              "c"),
      modelet::parse_encoding("[data]\nformat = 'table'\n[table]\ncolumns = ['label:y', 'num:n', 'cat:c']",
                              "d"),
      modelet::parse_encoding("[data]\nformat = 'xmc'", "e")};
  constexpr modelet::cli::RequestLimits kLimits{.samples = 3, .k = 7};
  if (size == 0) return 0;
  const shard::Columns columns(kOptions[data[0] % std::size(kOptions)]);
  try {
    const auto request =
        modelet::cli::parse_request({reinterpret_cast<const char*>(data + 1), size - 1}, columns, kLimits);
    if (request.queries.empty() || request.queries.size() > kLimits.samples || request.k < 1 ||
        request.k > kLimits.k)
      __builtin_trap();
    for (const modelet::cli::Query& query : request.queries) {
      size_t records = 0;
      try {
        if (query.ids) {
          shard::XmcReader reader(lines_of(query.text), 100, 10);
          for (shard::Sample sample; reader.next(sample);) ++records;
        } else if (!query.row.empty()) {
          columns.require_whole(query.row.size(), query.where);
        }
      } catch (const modelet::Error&) {
      }
      if (records > 1) __builtin_trap();  // one sample became two
    }
  } catch (const modelet::Error&) {
  }
  return 0;
}
