// Well-formed control messages of every kind, with any numbers, from agents and clients in any order: old, doubled,
// early and made up. The scheduler's decisions must keep the invariants in core.h, which Core checks itself, and must not
// come to an exception, also when the scheduler is restarted in between. Input: events of 8 bytes each.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/comm/control/samples.h"
#include "tests/scheduler/core/core_harness.h"

namespace {

using namespace modelet::scheduler;  // NOLINT: names of the tests' own
using namespace modelet::scheduler::test;

constexpr size_t kEventBytes = 8, kMostEvents = 16;
const std::array<std::string, 5> kPeers = {"a", "b", "c", "d", "client"};

void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

// The numbers of an event that a message gets, as far as it has such numbers.
struct Numbers {
  uint64_t run = 0;
  uint32_t epoch = 0, rank = 0;
  uint64_t step = 0;
};

// A report of the files that a rank holds names them, too.
void set_numbers(msg::SnapshotHeldT& message, const Numbers& numbers) {
  message = held(numbers.run, numbers.epoch, numbers.step, numbers.rank,
                 {numbers.step % 2 == 0 ? "a" : "b", "c"}, numbers.step % 3 == 0);
}
template <class Message>
void set_numbers(Message& message, const Numbers& numbers) {
  if constexpr (requires { message.run; }) message.run = numbers.run;
  if constexpr (requires { message.epoch; }) message.epoch = numbers.epoch;
  if constexpr (requires { message.rank; }) message.rank = numbers.rank;
  if constexpr (requires { message.step; }) message.step = numbers.step;
  if constexpr (requires { message.over; }) message.over = numbers.step % 2 == 0;
  if constexpr (requires { message.outcome; }) message.outcome = static_cast<msg::Outcome>(numbers.step % 3);
  if constexpr (requires { message.number; }) message.number = numbers.step;
  if constexpr (requires { message.incarnation; }) message.incarnation = numbers.rank;
  if constexpr (requires { message.nodes; }) message.nodes = numbers.rank;
}

std::vector<msg::ToSchedulerMessage> kinds() {
  auto all = modelet::test::messages_to_scheduler();
  for (auto& message : all)
    if (auto* submit = std::get_if<msg::SubmitT>(&message)) *submit = submission(0);
  // Events by which the scheduler decides.
  all.emplace_back(progress(1, {1.0, 3.0}));
  all.emplace_back(event(1, msg::EventKind::Interrupted));
  all.emplace_back(event(1, msg::EventKind::Fetching, 0.5));
  return all;
}

// One byte of a text is another one.
void edit(msg::ToSchedulerMessage& message, uint8_t where, uint8_t value) {
  std::visit(
      [&]<class Message>(Message& any) {
        std::string* text = nullptr;
        if constexpr (requires { any.json; }) text = &any.json;
        if constexpr (requires { any.files; })
          if (!any.files.empty()) text = &any.files.front()->name;
        if constexpr (requires { any.experiment; }) text = &any.experiment;
        if constexpr (requires { any.endpoint; }) text = &any.endpoint;
        if (text != nullptr && !text->empty()) (*text)[where % text->size()] = static_cast<char>(value);
      },
      message);
}

class FuzzedPool {
 public:
  // A run trains on three nodes and has a snapshot.
  FuzzedPool() {
    for (const char* name : {"a", "b", "c"}) receive(name, registration(name));
    receive("client", submission(3));
    for (const char* name : {"a", "b", "c"}) receive(name, prepared(1, std::string("tcp://") + name + ":1"));
    for (uint32_t rank = 0; rank < 3; ++rank) receive(kPeers[rank], held(1, 1, 10, rank, {"a", "b", "c"}));
  }

  void happen(std::span<const uint8_t> event) {
    static const auto kKinds = kinds();
    const std::string& peer = kPeers[event[1] % kPeers.size()];
    switch (event[0] % 8) {
      case 0:
        return pass(event[2] % 16);
      case 1:
        harness_.handle(PeerGone{peer});
        return check();
      case 2:
        harness_.restart();
        return check();
      default: {
        auto message = kKinds[event[2] % kKinds.size()];
        // Mostly of the run that exists and of its present group, else the messages would go no further.
        const uint64_t run = event[3] < 192 ? 1 : event[3] % 4u;
        const uint32_t epoch = event[4] < 160 ? epochs_[{peer, run}] : event[4] % 5u;
        const Numbers numbers{.run = run, .epoch = epoch, .rank = event[5] % 5u, .step = event[6]};
        std::visit([&](auto& any) { set_numbers(any, numbers); }, message);
        if (auto* info = std::get_if<msg::RegisterT>(&message)) info->name = peer;
        if (event[7] != 0) edit(message, event[6], event[7]);
        receive(peer, std::move(message));
      }
    }
  }
  void pass(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      harness_.pass(1);
      check();
    }
  }

 private:
  void receive(const std::string& peer, msg::ToSchedulerMessage message) {
    harness_.receive(peer, std::move(message));
    check();
  }
  void check() {
    for (const auto& [peer, messages] : harness_.inbox)
      for (const auto& message : messages)
        if (const auto* prepare = std::get_if<msg::PrepareT>(&message))
          epochs_[{peer, prepare->run}] = prepare->epoch;
    harness_.inbox.clear();
    require(harness_.log.find("could not be handled") == std::string::npos, harness_.log);
    harness_.log.clear();
  }

  Harness harness_;
  std::map<std::pair<std::string, uint64_t>, uint32_t>
      epochs_;  // in which a peer was last asked to work for a run
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  testing::FLAGS_gtest_throw_on_failure = true;  // of the harness
  static const FuzzedPool kBegun;
  FuzzedPool pool = kBegun;
  std::span<const uint8_t> events(data, size);
  for (size_t i = 0; i < kMostEvents && events.size() >= kEventBytes;
       ++i, events = events.subspan(kEventBytes))
    pool.happen(events.first(kEventBytes));
  pool.pass(10);
  return 0;
}
