// ThreadScratch: one Scratch for each thread of a pool. The owner's thread grows it for all threads alike.
// Otherwise a loop that had warmed up would allocate again, because other threads take part in it from step
// to step.
#pragma once

#include <cstddef>
#include <vector>

#include "base/array/scratch.h"
#include "base/parallel/thread_pool.h"

namespace modelet {

template <class T>
class ThreadScratch {
 public:
  explicit ThreadScratch(const ThreadPool& pool) : pool_(pool), memory_(pool.threads()) {}

  // At least `size` elements for every thread. Not during a loop.
  void reserve(size_t size) {
    for (Scratch<T>& memory : memory_) memory.reserve(size);
  }
  // The Scratch of the calling thread.
  T* mine() { return memory_[pool_.thread_index()].data(); }

 private:
  const ThreadPool& pool_;
  std::vector<Scratch<T>> memory_;  // [threads]
};

}  // namespace modelet
