// ThreadScratch: one Scratch for each thread of a pool. The owner's thread grows all of them to the same
// size. If each thread grew its own, steps would allocate long after they have warmed up, because the threads
// that take part in a loop differ from step to step.
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

  // Gives every thread at least `size` elements. Not during a loop.
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
