#include "node_agent/step/exchange/gradient_encoder.h"

#include "base/rng.h"

namespace modelet::agent {

comm::OutBlock GradientEncoder::block(ConstMatrix values, StepPlace place, GradientKind kind,
                                      size_t first_row, size_t first_column) const {
  Rng rng(seed_, {kStreamQuantise, place.step, kind.exchange, static_cast<uint64_t>(rank_), kind.matrix,
                  first_column});
  if (place.first_sample != 0) rng = rng.stream(place.first_sample);
  return {&codec_, values, {rng.next(), first_row}};
}

}  // namespace modelet::agent
