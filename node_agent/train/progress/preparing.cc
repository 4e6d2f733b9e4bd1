#include "node_agent/train/progress/preparing.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

namespace modelet::agent {

shard::PrepareProgress preparing_events(std::string file, EventSink events, const Clock& clock,
                                        double every) {
  // The current pass over the text.
  struct Pass {
    double began, next;  // times; next: of the next event
    uint64_t bytes = 0;
  };
  const auto pass = std::make_shared<Pass>(Pass{clock.now(), clock.now() + every});
  return [file = std::move(file), events = std::move(events), &clock, every, pass](
             uint64_t rows, uint64_t bytes, double done) {
    const double now = clock.now();
    if (bytes < std::exchange(pass->bytes, bytes)) *pass = {now, now + every, bytes};
    if (now < pass->next || done >= 1) return;
    pass->next = now + every;
    const double seconds = now - pass->began;
    events({{"event", "preparing"},
            {"file", file},
            {"rows", rows},
            {"bytes", bytes},
            {"done", done},
            {"bytes_per_second", static_cast<double>(bytes) / std::max(1e-9, seconds)},
            {"eta_seconds", done > 0 ? seconds * (1 - done) / done : 0}});
  };
}

}  // namespace modelet::agent
