// Measures the peak rates of the machine: multiply-adds on registers, and bytes to and from memory. `modelet
// bench kernels` compares kernels with these rates, and placement is planned with them
// (node_agent/machine/capacity.h).
//
// The best of several short windows counts, because what other processes take in between says nothing about
// the machine. All functions run on the pool, as the training step does. The pool's owner calls them.
#pragma once

#include <cstddef>
#include <functional>

#include "base/experiment/experiment.h"
#include "base/parallel/thread_pool.h"

namespace modelet::shard::bench {

// Calls of `work` per second in the best window; about `seconds` in all, at least two calls.
double calls_per_second(double seconds, const std::function<void()>& work);

// Bytes of which the caches of ordinary machines hold only a small part.
inline constexpr size_t kBeyondCaches = size_t{256} << 20;

// Floating-point operations per second of fused multiply-adds (two operations each) on registers, with the
// instruction set in use. bf16: pairs with fp32 sums (AVX512-BF16), or with AMX the rate of a product on tiles;
// the same as fp32 where neither is in use.
double peak_flops(ThreadPool& pool, Precision precision, double seconds);

enum class Stream {
  kRead,
  kCopy,    // with stores that bypass the caches; bytes read plus bytes written
  kUpdate,  // read, changed and written back in place, as an optimiser does; both directions count
};

// Bytes per second, over `bytes` of memory.
double stream_bytes(ThreadPool& pool, Stream stream, size_t bytes, double seconds);

}  // namespace modelet::shard::bench
