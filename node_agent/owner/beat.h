// Beat: what an agent tells its owner about its work, about once a second.
#pragma once

#include <cstdint>
#include <string>

namespace modelet::agent {

struct Beat {
  uint64_t run = 0;         // that the agent works for; 0: none
  uint64_t step = 0;        // of the run
  uint64_t done = 0;        // steps that the agent has done since the last beat
  int nodes = 0;            // of the run
  // The private data from which the run learns (node_agent/owner/private_data.h); empty: its data is not private. How many
  // samples were learned of it since the last beat, with repetition. A new group has begun to learn from it.
  std::string learns_from = {};
  uint64_t samples = 0;
  bool new_group = false;
  bool registered = false;  // the agent is in the pool: its scheduler knows it, and answers
};

}  // namespace modelet::agent
