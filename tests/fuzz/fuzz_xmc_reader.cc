// Any bytes as XMC text. They must be read, or refused with FormatError.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>

#include "base/error.h"
#include "shard/data/read/xmc_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    modelet::shard::XmcReader reader(std::make_unique<std::stringbuf>(text, std::ios::in), "fuzz");
    for (modelet::shard::Sample sample; reader.next(sample);) {
      for (const uint32_t id : sample.features)
        if (id >= reader.header().features) __builtin_trap();
      for (const uint32_t id : sample.labels)
        if (id >= reader.header().labels) __builtin_trap();
    }
  } catch (const modelet::FormatError&) {
  }
  return 0;
}
