#include "base/parallel/short_slice.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <thread>

namespace modelet {
namespace {

// The answer of sched_getattr for the calling thread. sched_runtime is the 8 bytes at offset 24.
std::array<uint64_t, 6> attributes() {
  std::array<uint64_t, 6> bytes{};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, bytes.data(), sizeof(bytes), 0), 0);
  return bytes;
}
uint64_t slice() { return attributes()[3]; }

TEST(ShortSlice, LeavesTheCallingThreadAsItWas) {
  const auto before = attributes();
  { const ShortSlice slice; }
  EXPECT_EQ(attributes(), before);
}

TEST(ShortSlice, ThreadsStartedMeanwhileKeepIt) {
  const uint64_t usual = slice();
  if (usual == 0) GTEST_SKIP() << "this kernel tells no slices";
  uint64_t of_thread = 0, after = 0;
  std::thread thread;
  {
    const ShortSlice short_slice;
    thread = std::thread([&] { of_thread = slice(); });
  }
  after = slice();
  thread.join();
  EXPECT_EQ(of_thread, 100'000u);
  EXPECT_EQ(after, usual);
}

}  // namespace
}  // namespace modelet
