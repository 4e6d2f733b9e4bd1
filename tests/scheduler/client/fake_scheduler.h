// A scheduler whose answers a test chooses.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/control/control.h"

namespace modelet::test {

class FakeScheduler {
 public:
  // Called with each message, on the thread of this scheduler.
  using Answer = std::function<std::vector<comm::control::FromSchedulerMessage>(
      const comm::control::ToSchedulerMessage&)>;

  explicit FakeScheduler(const std::string& endpoint, Answer answer)
      : socket_(endpoint), answer_(std::move(answer)), thread_([this] { run(); }) {}
  FakeScheduler(const FakeScheduler&) = delete;
  FakeScheduler& operator=(const FakeScheduler&) = delete;
  ~FakeScheduler() {
    stop_ = true;
    thread_.join();
  }

  std::string endpoint() const { return socket_.endpoint(); }

 private:
  void run() {
    while (!stop_)
      if (const auto received = socket_.receive(0.01))
        for (auto& message : answer_(received->message)) socket_.send(received->peer, std::move(message));
  }

  comm::control::ServerSocket socket_;
  const Answer answer_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace modelet::test
