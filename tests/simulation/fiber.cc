#include "tests/simulation/fiber.h"

#include <cxxabi.h>

#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstring>
#include <utility>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__  // as GCC says it
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "base/error.h"

namespace modelet::simulation {
namespace {

namespace context = boost::context;

constexpr size_t kStackBytes = size_t{2} << 20;

// Which exceptions are being handled belongs to the thread, but must belong to the fiber: it may pause in a
// handler.
class HandledExceptions {
 public:
  HandledExceptions() { std::memcpy(saved_, abi::__cxa_get_globals(), sizeof(saved_)); }
  HandledExceptions(const HandledExceptions&) = delete;
  HandledExceptions& operator=(const HandledExceptions&) = delete;
  ~HandledExceptions() { std::memcpy(static_cast<void*>(abi::__cxa_get_globals()), saved_, sizeof(saved_)); }
  static void none() { std::memset(static_cast<void*>(abi::__cxa_get_globals()), 0, sizeof(saved_)); }

 private:
  unsigned char saved_[2 * sizeof(void*)];  // as the Itanium C++ ABI lays them out
};

// The address sanitizer must be told which stack is in use.
#ifdef __SANITIZE_ADDRESS__
void leave_stack(void** own, const void* bottom, size_t bytes) {
  __sanitizer_start_switch_fiber(own, bottom, bytes);
}
void enter_stack(void* own, const void** from, size_t* bytes) {
  __sanitizer_finish_switch_fiber(own, from, bytes);
}
// What was there before may have left traces.
void new_stack(const void* bottom, size_t bytes) { __asan_unpoison_memory_region(bottom, bytes); }
#else
void new_stack(const void*, size_t) {}
void leave_stack(void**, const void*, size_t) {}
void enter_stack(void*, const void**, size_t*) {}
#endif

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  context::protected_fixedsize_stack stacks(kStackBytes);
  const context::stack_context stack = stacks.allocate();
  own_ = {static_cast<std::byte*>(stack.sp) - stack.size, stack.size};
  new_stack(own_.bottom, own_.bytes);
  inside_ = context::fiber(std::allocator_arg, context::preallocated(stack.sp, stack.size, stack), stacks,
                           [this](context::fiber&& outside) {
                             enter_stack(nullptr, &other_.bottom, &other_.bytes);
                             outside_ = std::move(outside);
                             body_();
                             has_ended_ = true;
                             leave_stack(nullptr, other_.bottom, other_.bytes);
                             return std::move(outside_);
                           });
}

Fiber::~Fiber() { MODELET_CHECK(has_ended_ || !has_begun_, "a fiber is left where it waits"); }

void Fiber::resume() {
  MODELET_CHECK(!has_ended_);
  const HandledExceptions of_caller;
  if (!std::exchange(has_begun_, true)) HandledExceptions::none();
  void* own = nullptr;
  leave_stack(&own, own_.bottom, own_.bytes);
  inside_ = std::move(inside_).resume();
  enter_stack(own, nullptr, nullptr);
}

void Fiber::pause() {
  const HandledExceptions of_body;
  void* own = nullptr;
  leave_stack(&own, other_.bottom, other_.bytes);
  outside_ = std::move(outside_).resume();
  enter_stack(own, &other_.bottom, &other_.bytes);
}

}  // namespace modelet::simulation
