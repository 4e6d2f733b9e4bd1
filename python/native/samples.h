// Samples: sparse samples in arrays of numpy. It keeps the arrays alive and copies none of them. (A data
// set that is made of them has a copy of the values if it normalises them: shard/data/store/csr.h.) The
// caller has the interpreter's lock, except for reading samples().
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
  // Arrays as in shard/data/store/csr.h. Whoever uses them checks them.
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
