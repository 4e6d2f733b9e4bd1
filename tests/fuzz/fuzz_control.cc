// What anybody can send to the port of the scheduler, and what a hostile scheduler can send to agents and
// clients. The bytes must be read as a control message or refused with FormatError, and a message that was
// read can be sent on. Input: one byte chooses the kind of a good message to start from, or none. Then
// come edits of this message, 4 bytes each {where, where, how, value}, or the message itself.
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/control/control.h"
#include "tests/comm/control/samples.h"

namespace control = modelet::comm::control;

namespace {

constexpr size_t kRawShare = 8;  // of so many kinds of inputs more, bytes that come from no good message

struct Sample {
  std::string bytes;
  bool to_scheduler = false;
};

std::vector<Sample> samples() {
  std::vector<Sample> samples;
  for (auto& message : modelet::test::messages_to_scheduler())
    samples.push_back({control::encode(std::move(message)), true});
  for (auto& message : modelet::test::messages_from_scheduler())
    samples.push_back({control::encode(std::move(message)), false});
  return samples;
}

void edit(std::string& message, const uint8_t* edits, size_t size) {
  for (size_t i = 0; i + 4 <= size; i += 4) {
    const size_t where = (size_t{edits[i]} << 8 | edits[i + 1]) % (message.size() + 1);
    if (edits[i + 2] % 16 == 0)
      message.resize(where);
    else if (where < message.size())
      message[where] = static_cast<char>(edits[i + 3]);
  }
}

void read(const std::string& message, bool to_scheduler) {
  const auto bytes = std::as_bytes(std::span(message));
  if (to_scheduler)
    control::encode(control::decode_to_scheduler(bytes));
  else
    control::encode(control::decode_from_scheduler(bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const std::vector<Sample> kSamples = samples();
  Sample message{.to_scheduler = data[0] % 2 == 0};
  if (const size_t start = data[0] % (kSamples.size() + kRawShare); start < kSamples.size()) {
    message = kSamples[start];
    edit(message.bytes, data + 1, size - 1);
  } else {
    message.bytes.assign(reinterpret_cast<const char*>(data + 1), size - 1);
  }
  try {
    read(message.bytes, message.to_scheduler);
  } catch (const modelet::FormatError&) {
  }
  return 0;
}
