// Journal: the events of a run, and who watches them. The newest events are kept for those who begin to watch later;
// the ledger gets all. Part of Run.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "comm/control/control.h"
#include "scheduler/ledger/records.h"

namespace modelet::scheduler {

struct Pool;

class Journal {
 public:
  Journal() = default;
  explicit Journal(bool is_short) : is_short_(is_short) {}

  const std::deque<RunEventRecord>& events() const { return events_; }  // the newest ones
  uint64_t last() const { return last_; }                               // number of the newest one
  uint64_t bytes() const { return bytes_; }
  bool is_short() const { return is_short_; }  // shorten() was called
  // Whether this event of an agent has arrived already. `agent` is the agent's incarnation; number 0: it has none.
  bool has(uint64_t agent, uint64_t number) const;
  bool is_watched() const { return !watchers_.empty(); }
  bool is_watched_by(const std::string& peer) const { return watchers_.contains(peer); }

  // Gives the event its number, and sends it to those who watch.
  void add(Pool& pool, RunEventRecord event);
  void pass_on(Pool& pool, const RunEventRecord& event) const;  // to those who watch; it is not kept
  void restore(const RunEventRecord& event);  // that a former scheduler has written down
  bool forget_oldest();                       // false: there is no older one than the newest
  // From now on only the end of the log is kept, in the ledger as well.
  void shorten(Pool& pool, uint64_t run);

  void add_watcher(Pool& pool, const std::string& peer, const std::string& key);
  void remove_watcher(Pool& pool, const std::string& peer);
  void remove_watchers(Pool& pool);
  void notify_watchers(Pool& pool, const comm::control::RunStatusT& status) const;

 private:
  std::deque<RunEventRecord> events_;
  uint64_t bytes_ = 0, last_ = 0;
  bool is_short_ = false;
  std::map<uint64_t, uint64_t> newest_events_;   // incarnation of an agent -> number of its last event
  std::map<std::string, std::string> watchers_;  // peer -> its key
};

comm::control::RunEventT message_of(const RunEventRecord& event);

}  // namespace modelet::scheduler
