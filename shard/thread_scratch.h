// ThreadScratch: memory of its own for each thread of a pool, kept between steps. It grows in the owner's
// thread, for all threads alike: which of them take part in a loop differs from step to step, and a loop that
// had warmed up would allocate again.
#pragma once

#include <cstddef>
#include <vector>

#include "base/aligned.h"
#include "shard/thread_pool.h"

namespace modelet::shard {

template <class T>
class ThreadScratch {
 public:
  explicit ThreadScratch(const ThreadPool& pool) : pool_(pool), memory_(pool.threads()) {}

  // At least `size` elements for every thread. Not during a loop.
  void reserve(size_t size) {
    for (AlignedVector<T>& memory : memory_)
      if (memory.size() < size) memory.resize(size);
  }
  // The calling thread's.
  T* mine() { return memory_[pool_.thread_index()].data(); }

 private:
  const ThreadPool& pool_;
  std::vector<AlignedVector<T>> memory_;  // [threads]
};

}  // namespace modelet::shard
