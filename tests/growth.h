// How the work of a function grows with its input. A test cannot count the steps of a library's parser, so this
// measures processor time of the thread, and compares it only with itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <string>

namespace modelet::test {

inline std::string repeated(const std::string& text, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) result += text;
  return result;
}

inline double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Whether run(make(16 n)) takes at most 64 times as long as run(make(n)): linear work takes 16 times as long,
// work by the square 256 times. A first try that was disturbed is repeated.
template <class Make, class Run>
bool grows_linearly(size_t n, const Make& make, const Run& run) {
  constexpr int kTries = 3;
  constexpr size_t kTimes = 16;
  constexpr double kMost = 64, kLeastSeconds = 1e-5;
  const auto seconds = [&](const auto& input) {
    const double begin = cpu_seconds();
    run(input);
    return std::max(cpu_seconds() - begin, kLeastSeconds);
  };
  const auto few = make(n), many = make(kTimes * n);
  run(few);  // warm
  for (int i = 0; i < kTries; ++i)
    if (seconds(many) <= kMost * seconds(few)) return true;
  return false;
}

}  // namespace modelet::test
