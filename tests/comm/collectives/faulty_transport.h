// FaultyTransport: a transport that loses, duplicates and delays (reorders) messages as its seed says. Tests
// use it to show that a failed step changes nothing and can be retried.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "comm/transport/transport.h"

namespace modelet::comm::testing {

struct Faults {
  uint64_t seed = 1;
  float lose = 0, duplicate = 0, delay = 0;  // probabilities, for each message
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

  void send(std::span<const int> to, const RecycledPtr<Message>& message) override {
    for (const int& rank : to) send(rank, message);
  }

 private:
  void send(const int& to, const RecycledPtr<Message>& message) {
    const std::span one(&to, 1);
    const std::vector<RecycledPtr<Message>> earlier = std::exchange(delayed_[static_cast<size_t>(to)], {});
    if (happens(faults_.delay)) {
      delayed_[static_cast<size_t>(to)].push_back(message);  // leaves after the next one to the same rank
    } else if (!happens(faults_.lose)) {
      inner_->send(one, message);
      if (happens(faults_.duplicate)) inner_->send(one, message);
    }
    for (const RecycledPtr<Message>& old : earlier) inner_->send(one, old);
  }

  bool happens(float probability) { return rng_.uniform() < probability; }

  std::unique_ptr<Transport> inner_;
  Faults faults_;
  Rng rng_;
  std::vector<std::vector<RecycledPtr<Message>>> delayed_;  // [size]
};

}  // namespace modelet::comm::testing
