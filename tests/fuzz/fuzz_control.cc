// What anybody can send to the port of the scheduler, and what a hostile scheduler can send to agents and
// clients. The bytes must be read as a control message or refused with FormatError, and a message that was
// read can be sent on. Input: one byte chooses the direction and a good message to start from, or none. Then
// come edits of this message, 4 bytes each {where, where, how, value}, or the message itself.
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "comm/control/control.h"

namespace control = modelet::comm::control;

namespace {

std::unique_ptr<control::ShapeT> shape() {
  auto shape = std::make_unique<control::ShapeT>();
  shape->features = 1000;
  shape->labels = 500;
  return shape;
}

// Messages of both directions with every kind of field: strings, tables, bytes, and vectors of numbers,
// strings and tables.
std::string submit() {
  control::SubmitT message;
  message.name = "run";
  message.experiment = "[data]\ntrain = \"/data/train.txt\"\n";
  message.shape = shape();
  return encode(control::ToSchedulerMessage(std::move(message)));
}

std::string put_chunk() {
  return encode(
      control::ToSchedulerMessage(control::PutChunkT{{}, std::string(64, 'a'), 3, {1, 2, 3, 4, 5}}));
}

std::string wanted() {
  return encode(control::FromSchedulerMessage(control::WantedT{{}, std::string(64, 'a'), {0, 2, 5}}));
}

std::string prepare() {
  control::PrepareT message;
  message.name = "run";
  message.size = 2;
  message.shape = shape();
  message.owner = {0, 1, 1, 0};
  message.node_names = {"a", "b"};
  return encode(control::FromSchedulerMessage(std::move(message)));
}

std::string run_list() {
  control::RunListT message;
  for (int run = 0; run < 2; ++run) {
    message.runs.push_back(std::make_unique<control::RunStatusT>());
    message.runs.back()->name = "run";
    message.runs.back()->node_names = {"a", "b"};
  }
  return encode(control::FromSchedulerMessage(std::move(message)));
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
  const unsigned start = data[0] % 7;
  std::string message;
  if (start < 2) {
    message.assign(reinterpret_cast<const char*>(data + 1), size - 1);
  } else {
    constexpr std::array kMessages = {submit, prepare, run_list, put_chunk, wanted};
    message = kMessages[start - 2]();
    edit(message, data + 1, size - 1);
  }
  try {
    read(message, start == 0 || start == 2 || start == 5);
  } catch (const modelet::FormatError&) {
  }
  return 0;
}
