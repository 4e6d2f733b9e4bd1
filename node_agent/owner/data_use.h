// DataUse: what all runs together have learned from private data of one name.
#pragma once

#include <cstdint>

namespace modelet::agent {

struct DataUse {
  uint64_t runs = 0, rounds = 0, samples = 0;  // samples with repetition
  // Groups of runs that were formed to learn from it. Each draws samples anew, whatever else it has in common with an
  // earlier one (TrainJob::former_groups).
  uint64_t groups = 0;
  double loss = 0;  // of privacy (node_agent/owner/privacy_loss.h)
};

}  // namespace modelet::agent
