// PoolView: what there is to see and to do in a pool, as the page (dashboard.h) needs it. The scheduler shows its pool
// (scheduler/server/served_pool.h). A program that trains one run shows a pool of that run. Any thread may call a view.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/control/control.h"
#include "comm/http/token.h"

namespace modelet::scheduler {

// There is no such run, node or log. The text says which.
class NotThere : public Error {
 public:
  using Error::Error;
};

// What is known of a pool apart from its nodes and runs. Counts since the program started.
struct PoolFacts {
  std::string address;        // of the scheduler; empty: there is none
  std::string started;        // UTC
  bool keeps_state = false;   // a restarted scheduler knows its runs
  bool can_act = false;       // drain() and stop() work
  uint64_t losses = 0;        // of nodes, also before the program started if it keeps its state
  uint64_t refused = 0;       // messages that were refused
  uint64_t refused_keys = 0;  // of these, with a key that is not known
  uint64_t errors = 0;        // events that could not be handled
  uint64_t store_bytes = 0, store_most_bytes = 0;  // files of runs; 0 of 0: no store
};

struct PoolState {
  std::string now;  // UTC
  PoolFacts facts;
  std::vector<comm::control::NodeStatusT> nodes;
  std::vector<comm::control::RunStatusT> runs;  // by number
};

struct Placed {
  std::string node;
  uint64_t modelets = 0, bytes = 0;
};

struct RunDetails {
  comm::control::RunStatusT status;
  std::string experiment;         // TOML, as it was submitted
  std::vector<Placed> placement;  // in the order of ranks; empty: it has no nodes now
};

// The seconds of a step on each node, in intervals of the same length.
struct NodeHistory {
  struct Interval {
    float compute = 0, codec = 0, wait = 0;  // mean seconds of a step; all 0: nothing was reported
    bool there = false;                      // the node was in the pool
  };
  double seconds = 0;  // length of an interval
  double began = 0;    // of the first interval, seconds since 1970
  uint64_t first = 0;  // number of the first interval; they are numbered from 0
  std::vector<std::string> names;
  std::vector<std::vector<Interval>> nodes;  // [names][intervals]
};

class PoolView {
 public:
  virtual ~PoolView() = default;

  // The state now, or of half a second ago; the same object as long as it is not older.
  virtual std::shared_ptr<const PoolState> pool() = 0;
  virtual NodeHistory history() = 0;
  // These throw NotThere.
  virtual RunDetails run(uint64_t run) = 0;
  // The log after the entry `after` (0: from the beginning), whole lines: events of the run as JSON (docs/events.md), or
  // what a node has logged for it.
  virtual comm::control::RunLogT events(uint64_t run, uint64_t after) = 0;
  virtual comm::control::RunLogT log(uint64_t run, const std::string& node, uint64_t after) = 0;
  // `by`: whose token the request brings; nullptr: the page needs none. Throw UsageError that says why this is refused.
  virtual void drain(const comm::http::Token* by, const std::string& node, bool drain) = 0;
  virtual void stop(const comm::http::Token* by, uint64_t run) = 0;
};

}  // namespace modelet::scheduler
