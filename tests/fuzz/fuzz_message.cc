// A message from a hostile peer: the envelope and payload of a good message, edited as the input says. It
// must be read, or refused with FormatError. Input: 4 bytes for each edit {where, where, how, value}.
#include <algorithm>

#include "base/error.h"
#include "tests/comm/messages.h"

using modelet::comm::testing::Message;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Message message = modelet::comm::testing::good_message(size > 0 && data[0] % 2 == 1);
  for (size_t i = 1; i + 4 <= size; i += 4) {
    std::vector<std::byte>& part = data[i + 2] % 4 == 3 ? message.payload : message.envelope;
    const size_t where = (size_t{data[i]} << 8 | data[i + 1]) % (part.size() + 1);
    if (data[i + 2] % 8 == 0)
      part.resize(where);
    else if (where < part.size())
      part[where] = std::byte{data[i + 3]};
  }
  try {
    modelet::comm::testing::read_message(message, size > 0 && data[0] % 4 < 2);
  } catch (const modelet::FormatError&) {
  }
  return 0;
}
