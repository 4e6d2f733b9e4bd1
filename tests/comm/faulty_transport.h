// FaultyTransport: a transport that loses, duplicates and delays (reorders) what is sent, as its seed says.
// For tests that a failed step changes nothing and can be retried.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "comm/transport.h"

namespace modelet::comm::testing {

struct Faults {
  uint64_t seed = 1;
  float lose = 0, duplicate = 0, delay = 0;  // probabilities of a message
};

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, const Faults& faults)
      : inner_(std::move(inner)),
        faults_(faults),
        rng_(faults.seed, {static_cast<uint64_t>(inner_->rank())}),
        delayed_(static_cast<size_t>(inner_->size())) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  uint64_t dropped_messages() const override { return inner_->dropped_messages(); }
  void interrupt(const std::string& reason) override { inner_->interrupt(reason); }
  bool receive(double timeout_seconds, Frame& frame) override {
    return inner_->receive(timeout_seconds, frame);
  }

  void send(int to, std::span<const std::byte> envelope, std::span<const std::byte> payload) override {
    const std::vector<Message> earlier = std::exchange(delayed_[static_cast<size_t>(to)], {});
    if (happens(faults_.delay)) {
      // Leaves after the next message to the same rank.
      delayed_[static_cast<size_t>(to)].push_back(
          {{envelope.begin(), envelope.end()}, {payload.begin(), payload.end()}});
    } else if (!happens(faults_.lose)) {
      inner_->send(to, envelope, payload);
      if (happens(faults_.duplicate)) inner_->send(to, envelope, payload);
    }
    for (const Message& message : earlier) inner_->send(to, message.envelope, message.payload);
  }

 private:
  struct Message {
    std::vector<std::byte> envelope, payload;
  };

  bool happens(float probability) { return rng_.uniform() < probability; }

  std::unique_ptr<Transport> inner_;
  Faults faults_;
  Rng rng_;
  std::vector<std::vector<Message>> delayed_;  // [size]
};

}  // namespace modelet::comm::testing
