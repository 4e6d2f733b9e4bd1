// BreakingTransport: a transport whose connections break. A message over a broken connection is lost. When
// this rank receives, it is told that the connection has ended and is back.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"

namespace modelet::comm::testing {

class BreakingTransport final : public Transport {
 public:
  // Whether the connection to a peer breaks before the message with this number (counted from 0) is sent.
  using Breaks = std::function<bool(uint64_t number, int to)>;

  BreakingTransport(std::unique_ptr<Transport> inner, Breaks breaks)
      : inner_(std::move(inner)), breaks_(std::move(breaks)), broken_(static_cast<size_t>(inner_->size())) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  uint64_t dropped_messages() const override { return inner_->dropped_messages(); }
  void interrupt(const std::string& reason) override { inner_->interrupt(reason); }
  ConnectionHandler when_connections_change(ConnectionHandler handler) override {
    return std::exchange(handler_, std::move(handler));
  }

  void send(std::span<const int> to, const RecycledPtr<Message>& message) override {
    for (const int& rank : to) {
      if (breaks_(number_++, rank)) broken_[static_cast<size_t>(rank)] = true;
      if (!broken_[static_cast<size_t>(rank)]) inner_->send(std::span(&rank, 1), message);
    }
  }
  bool receive(double timeout_seconds, Frame& frame) override {
    for (int peer = 0; peer < size(); ++peer)
      while (broken_[static_cast<size_t>(peer)]) {  // repeated messages may break the connection again
        broken_[static_cast<size_t>(peer)] = false;
        handler_(peer, Connection::kEnded);
        handler_(peer, Connection::kBack);
      }
    return inner_->receive(timeout_seconds, frame);
  }

 private:
  std::unique_ptr<Transport> inner_;
  const Breaks breaks_;
  ConnectionHandler handler_;
  uint64_t number_ = 0;
  std::vector<bool> broken_;  // [size]
};

}  // namespace modelet::comm::testing
