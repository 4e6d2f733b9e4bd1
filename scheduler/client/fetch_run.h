// Copies what a pool keeps of a run into a folder on this machine. The folder then looks as `modelet train`
// would have written it:
//
//   FOLDER/checkpoints/step-0000001434/   a checkpoint, which appears as a whole
//   FOLDER/.fetching/                     parts of checkpoints, which an interrupted attempt continues with
//   FOLDER/experiment.toml, log.jsonl     fetch_record() writes them
//
// If a run validates, its best weights come with the checkpoints that name them, as a checkpoint of their
// own.
//
// Only one process at a time may fetch into a folder (RunFolder). Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/system/file.h"
#include "comm/control/control.h"

namespace modelet::cli {

// Holds the folder of a run on this machine. Meanwhile no other process trains or fetches into it.
class RunFolder {
 public:
  // Makes the folder if it is missing. Throws UsageError as shard::take_run_folder() does.
  RunFolder(std::filesystem::path folder, const std::filesystem::path& resumed);
  // The same, but the folder may contain any run.
  explicit RunFolder(std::filesystem::path folder);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  ~RunFolder();  // removes the folder if it was made here and is still empty

 private:
  const std::filesystem::path folder_;
  const bool made_;
  const FileLock lock_;
};

struct FetchOptions {
  // Gets the events "fetching", once a second and when a checkpoint is complete. May be empty, like `check`.
  std::function<void(const nlohmann::json&)> report;
  std::function<void()> check;  // called several times a second; may throw, which ends the fetching
  // How many of the newest checkpoints to fetch, oldest first. Older ones are removed from the folder, as a
  // trainer removes them (train.keep_checkpoints). 0: fetches all, newest first, and removes none.
  uint32_t newest = 0;
  // The scheduler's store, if it is a folder of this process's user on this machine: files are then linked
  // from there. Empty: the files come through the scheduler's port for data.
  std::filesystem::path store = {};
  // Gets the folder of each checkpoint that is complete and on the disk.
  std::function<void(const std::filesystem::path&)> arrived = {};
};

// The folder that a checkpoint gets inside `folder`. `elsewhere` is the folder that it has on another
// machine; only its last name counts.
std::filesystem::path fetched_path(const std::filesystem::path& folder,
                                   const std::filesystem::path& elsewhere);

// Fetches the checkpoints that the scheduler's store has and the folder lacks. Returns the folders of all
// checkpoints that are there now, newest first. An older one that the store has removed meanwhile is left
// out, with a warning. Throws Error if the scheduler keeps no files, refuses the newest one, or cannot be
// reached.
std::vector<std::filesystem::path> fetch_checkpoints(const comm::control::SchedulerAddress& scheduler,
                                                     uint64_t run, const std::filesystem::path& folder,
                                                     const FetchOptions& options);

// Fetches a file of the scheduler's store.
void fetch_file(const comm::control::SchedulerAddress& scheduler, const std::string& address,
                const std::filesystem::path& to, const FetchOptions& options);

// Writes experiment.toml as it was submitted, and appends to log.jsonl the events of the run that it lacks.
// The scheduler has both also of a run without a checkpoint. Throws Error, and changes nothing, if the folder
// has files of another run. Call it before fetch_checkpoints(), which does not look whose run the folder
// holds. `check` is as in FetchOptions.
void fetch_record(const comm::control::SchedulerAddress& scheduler, uint64_t run,
                  const std::filesystem::path& folder, const std::function<void()>& check = {});

}  // namespace modelet::cli
