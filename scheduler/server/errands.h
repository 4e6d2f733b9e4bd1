// Errands: work that other threads have done by one thread, because what it needs belongs to that thread. They wait
// until it is done. Any thread may call run(); the thread that does the work calls the rest.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <utility>

#include "base/system/wake_event.h"

namespace modelet::scheduler {

class Errands {
 public:
  // `wake` is set whenever there is an errand. It must outlive this object.
  explicit Errands(WakeEvent& wake) : wake_(wake) {}
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  // While it lives, errands are accepted. Those that are not done when it ends fail.
  class Open {
   public:
    explicit Open(Errands& errands) : errands_(errands) { errands_.set_open(true); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    ~Open() { errands_.set_open(false); }

   private:
    Errands& errands_;
  };

  // Returns or throws what `work` does. Throws Error if nobody does it within some seconds; then it may still be done
  // later, so it must own what it uses.
  template <class Result>
  Result run(std::function<Result()> work) {
    auto task = std::make_shared<std::packaged_task<Result()>>(std::move(work));
    std::future<Result> result = task->get_future();
    add([task = std::move(task)] { (*task)(); });  // if that goes, so does the promise
    wait(result);
    try {
      return result.get();
    } catch (const std::future_error&) {  // nobody does it any more
      refuse();
    }
  }

  // Does the work that there is.
  void carry_out();

 private:
  void set_open(bool open);
  void add(std::function<void()> work);
  template <class Result>
  static void wait(const std::future<Result>& result) {
    if (result.wait_for(kPatience) != std::future_status::ready) give_up();
  }
  [[noreturn]] static void give_up();
  [[noreturn]] static void refuse();

  static constexpr std::chrono::seconds kPatience{10};

  WakeEvent& wake_;
  std::mutex mutex_;
  bool is_open_ = false;  // this and the next member are guarded by mutex_
  std::deque<std::function<void()>> waiting_;
};

}  // namespace modelet::scheduler
