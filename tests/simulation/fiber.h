// Fiber: code that waits in its midst, in a history that has one thread. It runs on a stack of its own until
// it pauses, and goes on when it is resumed (Boost.Context).
#pragma once

#include <boost/context/fiber.hpp>
#include <functional>

namespace modelet::simulation {

class Fiber {
 public:
  // `body` must not throw. Nothing runs before the first resume().
  explicit Fiber(std::function<void()> body);
  ~Fiber();  // the body must have ended, or never have begun
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it pauses or ends. Not from within the body.
  void resume();
  // Returns to resume(). Only from within the body.
  void pause();
  bool has_ended() const { return has_ended_; }

 private:
  struct Stack {
    const void* bottom = nullptr;
    size_t bytes = 0;
  };

  const std::function<void()> body_;
  Stack own_, other_;                       // other_: of whoever has resumed it
  boost::context::fiber inside_, outside_;  // whichever is not running
  bool has_begun_ = false, has_ended_ = false;
};

}  // namespace modelet::simulation
