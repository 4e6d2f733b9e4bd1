// World: simulated time, random draws, and the events to come. Everything in a history runs in one thread, in
// the order of time, and every draw comes from the seed of the history, so the same seed gives the same
// history. The first broken promise is kept as what the history has found.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <bit>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace modelet::simulation {

class World {
 public:
  // `tells`: the history is written as text, line by line.
  World(uint64_t seed, bool tells) : rng_(seed, {1}), tells_(tells) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  double now() const { return now_; }
  void after(double seconds, std::function<void()> what);
  bool advance();  // goes to the next event; false: there is none

  Rng& rng() { return rng_; }
  double between(double least, double most) { return least + (most - least) * rng_.uniform_double(); }
  bool chance(double share) { return rng_.uniform_double() < share; }

  bool tells() const { return tells_; }
  template <class... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) {
    if (tells_) story_ += fmt::format("{:10.3f}  ", now_) + fmt::format(text, std::forward<Args>(args)...) + "\n";
  }
  const std::string& story() const { return story_; }
  // A number that changes if anything happens at another time or in another order.
  uint64_t digest() const { return digest_; }

  void violated(std::string what);
  const std::string& violation() const { return violation_; }  // empty: all promises were kept

 private:
  struct Event {
    double time = 0;
    uint64_t number = 0;
    std::function<void()> what;
  };
  static bool is_later(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.number > b.number;
  }

  double now_ = 0;
  uint64_t events_ = 0, digest_ = 0;
  std::vector<Event> queue_;  // a heap
  Rng rng_;
  bool tells_;
  std::string story_, violation_;
};

// A process. What is posted to it happens in order: later if the process is stalled, and never if it was
// killed.
class Process {
 public:
  explicit Process(World& world) : world_(world) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  virtual ~Process() = default;

  bool is_alive() const { return alive_; }
  bool is_stalled() const { return world_.now() < stalled_until_; }
  uint64_t life() const { return life_; }  // changes with each death
  void post(double seconds, std::function<void()> what);
  void stall(double seconds);

 protected:
  World& world() const { return world_; }
  void born() { alive_ = true; }
  void died();

 private:
  void drain(uint64_t life);

  World& world_;
  bool alive_ = false;
  uint64_t life_ = 0;  // grows when it dies
  double stalled_until_ = 0;
  std::deque<std::function<void()>> waiting_;
};

}  // namespace modelet::simulation
