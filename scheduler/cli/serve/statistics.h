// Statistics: what a server counts, as text that Prometheus reads (format 0.0.4). Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace modelet::cli {

class Statistics {
 public:
  // A question for `path` (a path that the server knows, or "other") was answered after so many seconds.
  void answered(const std::string& path, unsigned status, double seconds);
  void predicted(size_t samples) { samples_ += samples; }

  void connected() { ++connections_; }
  void disconnected() { --connections_; }
  void turned_away() { ++turned_away_; }
  void begun() { ++in_flight_; }
  void ended() { --in_flight_; }
  uint64_t in_flight() const { return in_flight_; }

  // Figures that the ModelHolder has.
  struct Model {
    std::string checkpoint;
    uint64_t step = 0, reloads = 0, failed_reloads = 0;
  };
  std::string text(const Model& model) const;

 private:
  // Seconds. A bucket counts the answers that took no longer.
  static constexpr std::array<double, 14> kBuckets = {1e-4,   2.5e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2,
                                                      2.5e-2, 5e-2,   0.1,  0.25, 0.5,  1,    5};

  std::atomic<uint64_t> samples_ = 0, connections_ = 0, turned_away_ = 0, in_flight_ = 0;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, unsigned>, uint64_t> requests_;  // by path and status
  std::array<uint64_t, kBuckets.size() + 1> latency_{};  // of predictions; the last counts longer ones
  double latency_sum_ = 0;
};

}  // namespace modelet::cli
