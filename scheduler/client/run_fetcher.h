// RunFetcher: fetches the checkpoints of a run into a folder as they appear (scheduler/client/fetch_run.h), on a thread
// of its own, so that whoever watches the run does not wait for it. What goes wrong is logged, and tried again.
//
// look() from any thread.
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
  ~RunFetcher();  // ends an attempt; what has arrived stays

  // There is a checkpoint that is to be in the folder at `path`: looks for it until it is there, or is no longer kept.
  void look(const std::filesystem::path& path);
  // Whether it has come; it may be superseded by now.
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
  std::filesystem::path newest_;  // guarded by mutex_, as what follows: that was asked for
  std::set<std::filesystem::path> arrived_;
  bool looking_ = false, stop_ = false;
  bool told_ = false;  // of the thread: that something goes wrong
  std::thread thread_;
};

}  // namespace modelet::cli
