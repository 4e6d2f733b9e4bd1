// Samples: sparse samples in arrays of numpy, which it keeps alive. Ids, offsets and values are not copied.
// Made and used with the interpreter's lock; samples() may be read without it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "shard/data/store/csr.h"

namespace modelet::python {

template <class T>
using Array = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

class Samples {
 public:
  // As in shard/data/store/csr.h; checked by whoever uses them.
  Samples(uint64_t features, uint64_t labels, Array<uint64_t> offsets, Array<uint32_t> ids,
          Array<float> values, Array<uint64_t> label_offsets, Array<uint32_t> label_ids);

  const shard::CsrSamples& samples() const { return samples_; }

 private:
  Array<uint64_t> offsets_, label_offsets_;
  Array<uint32_t> ids_, label_ids_;
  Array<float> values_;
  shard::CsrSamples samples_;
};

// A one-dimensional array of numpy that owns the elements of `values`.
template <class T>
auto to_numpy(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  const nanobind::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>(owned->data(), {owned->size()}, owner);
}

}  // namespace modelet::python
