#include "python/native/samples.h"

#include <span>
#include <utility>

namespace modelet::python {
namespace {

template <class T>
std::span<const T> view(const Array<T>& array) {
  return {array.data(), array.size()};
}

}  // namespace

Samples::Samples(uint64_t features, uint64_t labels, Array<uint64_t> offsets, Array<uint32_t> ids,
                 Array<float> values, Array<uint64_t> label_offsets, Array<uint32_t> label_ids)
    : offsets_(std::move(offsets)),
      label_offsets_(std::move(label_offsets)),
      ids_(std::move(ids)),
      label_ids_(std::move(label_ids)),
      values_(std::move(values)),
      samples_{.features = features,
               .labels = labels,
               .feature_offsets = view(offsets_),
               .feature_ids = view(ids_),
               .values = view(values_),
               .label_offsets = view(label_offsets_),
               .label_ids = view(label_ids_)} {}

}  // namespace modelet::python
