// Windows that slide along a text, each a sorted set. The ids of a window stay sorted in memory: a step takes
// one out and puts one in, for a vector of places at once, and no branch depends on an id.
#include "shard/kernels/windows.h"

#include <algorithm>
#include <array>

#include "base/array/simd_targets.h"
#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/windows.cc"
// clang-format off: foreach_target.h includes this file again for each target and must come first
#include <hwy/foreach_target.h>

#include "shard/kernels/simd/vector-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace modelet::shard::kernels::HWY_NAMESPACE {

// Neighbours of places in a sorted list of vectors: element i + 1, or i - 1, of each.
class Neighbours {
 public:
  using U = Bits<D>;
  using Ids = hn::Vec<U>;

  Neighbours() {
    std::array<int32_t, kLanes> next, previous;
    for (size_t i = 0; i < kLanes; ++i) {
      next[i] = static_cast<int32_t>((i + 1) % kLanes);
      previous[i] = static_cast<int32_t>((i + kLanes - 1) % kLanes);
    }
    next_ = hn::SetTableIndices(u_, next.data());
    previous_ = hn::SetTableIndices(u_, previous.data());
    const auto lane = hn::Iota(u_, 0);
    last_ = lane == hn::Set(u_, static_cast<uint32_t>(kLanes - 1));
    first_ = lane == hn::Zero(u_);
  }

  HWY_INLINE Ids next(Ids ids, Ids following) const {
    return hn::IfThenElse(last_, hn::TableLookupLanes(following, next_), hn::TableLookupLanes(ids, next_));
  }
  HWY_INLINE Ids previous(Ids ids, Ids preceding) const {
    return hn::IfThenElse(first_, hn::TableLookupLanes(preceding, previous_),
                          hn::TableLookupLanes(ids, previous_));
  }

 private:
  U u_;
  decltype(hn::SetTableIndices(U(), static_cast<const int32_t*>(nullptr))) next_, previous_;
  hn::Mask<U> first_, last_;
};

void window_sets(const uint32_t* ids, size_t count, size_t before, size_t after, uint32_t* sets,
                 uint32_t* sizes) {
  const Bits<D> u;
  const Neighbours neighbours;
  const size_t places = before + 1 + after;
  const size_t end = (places + kLanes - 1) / kLanes * kLanes;  // of the vectors that hold them
  const auto none = hn::Set(u, kNoId), zero = hn::Zero(u);
  HWY_ALIGN std::array<uint32_t, kMaxWindow + 2 * kVectorFloats> sorted;
  std::fill(sorted.begin(), sorted.end(), kNoId);
  std::copy(ids, ids + places, sorted.begin());
  std::sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(places));

  auto only = hn::Load(u, sorted.data());  // if there is one vector, it stays in a register
  for (size_t i = 0; i < count; ++i) {
    const uint32_t centre_id = ids[i + before];
    const auto centre = hn::Set(u, centre_id), leaving = hn::Set(u, ids[i]);
    const auto entering = hn::Set(u, i + 1 < count ? ids[i + places] : kNoId);
    uint32_t size = 0;
    auto preceding = none, stays_before = zero;
    // Writes the members among `here`; returns what these places hold in the next window.
    const auto slide = [&](auto here, auto following) HWY_ATTR {
      const auto next = neighbours.next(here, following);
      // Among equal ids the last one is the member. The centre's id is a member only if it occurs again.
      const auto other = hn::Or(hn::Not(here == centre), here == neighbours.previous(here, preceding));
      const auto member = hn::And(hn::Not(here == next), other);
      size += static_cast<uint32_t>(compress_store(u, here, member, sets + size));
      // Each place keeps its id, or takes that of its predecessor, or the new one that enters between the
      // two.
      const auto stays = hn::IfThenElse(leaving > here, here, next);
      const auto from_left = hn::Max(neighbours.previous(stays, stays_before), entering);
      preceding = here;
      stays_before = stays;
      return hn::Min(stays, from_left);
    };
    if (end == kLanes) {
      only = slide(only, none);
    } else {
      auto here = hn::Load(u, sorted.data());
      for (size_t v = 0; v < end; v += kLanes) {
        const auto following = hn::Load(u, &sorted[v + kLanes]);
        hn::Store(slide(here, following), u, &sorted[v]);
        here = following;
      }
    }
    sizes[i] = centre_id == kNoId ? 0 : size;
    sets += sizes[i];
  }
}

}  // namespace modelet::shard::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace modelet::shard::kernels {

HWY_EXPORT(window_sets);

void window_sets(const uint32_t* ids, size_t count, size_t before, size_t after, uint32_t* sets,
                 uint32_t* sizes) {
  MODELET_CHECK(before + 1 + after <= kMaxWindow);
  HWY_DYNAMIC_DISPATCH(window_sets)(ids, count, before, after, sets, sizes);
}

}  // namespace modelet::shard::kernels
#endif
