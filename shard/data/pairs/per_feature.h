// PerFeature<T>: a number for each feature that the data declares, zero at first. Most features may never occur, so
// only the pages of memory that are written are taken. For one thread at a time.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace modelet::shard {

template <class T>
class PerFeature {
 public:
  PerFeature() = default;
  // The C library gets large arrays from the kernel, whose pages are zero, and leaves them as they are.
  explicit PerFeature(size_t features)
      : size_(features), values_(static_cast<T*>(std::calloc(features + 1, sizeof(T)))) {
    if (values_ == nullptr) throw std::bad_alloc();
  }
  size_t size() const { return size_; }
  T& operator[](size_t feature) { return values_.get()[feature]; }
  T operator[](size_t feature) const { return values_.get()[feature]; }

 private:
  struct Free {
    void operator()(T* values) const { std::free(values); }
  };
  size_t size_ = 0;
  std::unique_ptr<T, Free> values_;
};

}  // namespace modelet::shard
