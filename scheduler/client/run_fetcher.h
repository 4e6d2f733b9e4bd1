// RunFetcher: fetches the checkpoints of a run into a folder as they appear (scheduler/client/fetch_run.h).
// It works on a thread of its own, so that watching the run does not wait for files. Failures are logged, and
// tried again.
//
// Any thread may call look() and has().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "comm/control/control.h"

namespace modelet::cli {

class RunFetcher {
 public:
  // `newest`, `store`: as in FetchOptions.
  RunFetcher(comm::control::SchedulerAddress scheduler, uint64_t run, std::filesystem::path folder,
             uint32_t newest, std::filesystem::path store);
  RunFetcher(const RunFetcher&) = delete;
  RunFetcher& operator=(const RunFetcher&) = delete;
  ~RunFetcher();  // ends a fetch under way; files that have arrived stay

  // The run has a checkpoint that must come to `path`. Tries to fetch it until it is there or the pool no
  // longer keeps it.
  void look(const std::filesystem::path& path);
  // Whether this checkpoint has arrived. It may have been replaced by a newer one since.
  bool has(const std::filesystem::path& path) const;

 private:
  void run();
  void fetch();

  const comm::control::SchedulerAddress scheduler_;
  const uint64_t run_;
  const std::filesystem::path folder_;
  const uint32_t most_;
  const std::filesystem::path store_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::filesystem::path newest_;  // that look() asked for; guarded by mutex_, like the members below
  std::set<std::filesystem::path> arrived_;
  bool looking_ = false, stop_ = false;
  bool logged_ = false;  // a failure was logged; used by the thread only
  std::thread thread_;
};

}  // namespace modelet::cli
