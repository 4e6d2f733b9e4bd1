#include "comm/transport/inproc.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>

#include "base/error.h"
#include "base/system/clock.h"

namespace modelet::comm {
namespace {

// The messages that one rank has not received yet.
struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::list<Frame> frames, spare;  // spare: list nodes to reuse
  bool interrupted = false;
  std::string reason;
};

struct Hub {
  Hub(int size, size_t limit) : queues(static_cast<size_t>(size)), max_waiting(limit) {}
  std::vector<Queue> queues;  // [size]
  size_t max_waiting;
};

class InprocTransport final : public Transport {
 public:
  InprocTransport(int rank, std::shared_ptr<Hub> hub) : rank_(rank), hub_(std::move(hub)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hub_->queues.size()); }

  void send(std::span<const int> to, const RecycledPtr<Message>& message) override {
    for (const int rank : to) send(rank, {rank_, message, message->envelope, message->payload});
  }

  bool receive(double timeout_seconds, Frame& frame) override {
    frame.owner = {};  // before the lock is taken: its memory may return to its recycler
    Queue& queue = own_queue();
    std::unique_lock lock(queue.mutex);
    queue.changed.wait_for(lock, Seconds(std::max(timeout_seconds, 0.0)),
                           [&] { return queue.interrupted || !queue.frames.empty(); });
    if (queue.interrupted) throw Interrupted(queue.reason);
    if (queue.frames.empty()) return false;
    frame = std::move(queue.frames.front());
    queue.spare.splice(queue.spare.begin(), queue.frames, queue.frames.begin());
    return true;
  }

  void interrupt(const std::string& reason) override {
    Queue& queue = own_queue();
    {
      const std::lock_guard lock(queue.mutex);
      if (!queue.interrupted) queue.reason = reason;
      queue.interrupted = true;
    }
    queue.changed.notify_all();
  }

 private:
  void send(int to, Frame frame) {
    MODELET_CHECK(to >= 0 && to < size() && to != rank_);
    Queue& queue = hub_->queues[static_cast<size_t>(to)];
    {
      const std::lock_guard lock(queue.mutex);
      if (queue.frames.size() >= hub_->max_waiting)
        throw PeerError(to, fmt::format("rank {} has left {} messages unread", to, queue.frames.size()));
      if (queue.spare.empty()) queue.spare.emplace_back();
      queue.spare.front() = std::move(frame);
      queue.frames.splice(queue.frames.end(), queue.spare, queue.spare.begin());
    }
    queue.changed.notify_one();
  }

  Queue& own_queue() { return hub_->queues[static_cast<size_t>(rank_)]; }

  int rank_;
  std::shared_ptr<Hub> hub_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_inproc_transports(int size, size_t max_waiting) {
  MODELET_CHECK(size >= 1);
  const auto hub = std::make_shared<Hub>(size, max_waiting);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) transports.push_back(std::make_unique<InprocTransport>(rank, hub));
  return transports;
}

}  // namespace modelet::comm
