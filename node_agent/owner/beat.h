// Beat: what an agent tells its owner about its work, about once a second.
#pragma once

#include <cstdint>

namespace modelet::agent {

struct Beat {
  uint64_t run = 0;         // that the agent works for; 0: none
  uint64_t step = 0;        // of the run
  uint64_t done = 0;        // steps that the agent has done since the last beat
  int nodes = 0;            // of the run
  bool registered = false;  // the agent is in the pool: its scheduler knows it, and answers
};

}  // namespace modelet::agent
