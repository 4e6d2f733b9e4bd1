// Brings what a pool keeps of a run into a folder of this machine, as `modelet train` would have written it there:
//
//   FOLDER/checkpoints/step-0000001434/   a checkpoint: all of it, or it is not there
//   FOLDER/.fetching/                     what has arrived of others: an attempt that was cut off goes on with that
//   FOLDER/experiment.toml, log.jsonl     (fetch_record)
//
// The best weights of a run that validates come with the checkpoints that name them, as a checkpoint of their own.
//
// One process at a time for a folder (RunFolder). Any thread.
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

// The folder of a run on this machine, which nobody else trains or fetches into meanwhile.
class RunFolder {
 public:
  // Makes it if it is missing. UsageError as shard::take_run_folder().
  RunFolder(std::filesystem::path folder, const std::filesystem::path& resumed);
  // The same, but what is there may be of any run.
  explicit RunFolder(std::filesystem::path folder);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  ~RunFolder();  // removes a folder that was made and into which nothing came

 private:
  const std::filesystem::path folder_;
  const bool made_;
  const FileLock lock_;
};

struct FetchOptions {
  // Told the events "fetching": once a second, and when a checkpoint is there. May be empty, as `check`.
  std::function<void(const nlohmann::json&)> tell;
  std::function<void()> check;  // called several times a second; may throw, which ends the attempt
  // So many, the newest, oldest first; older ones are removed from the folder as a trainer removes them
  // (train.keep_checkpoints). 0: all that there are, newest first, and nothing is removed.
  uint32_t newest = 0;
  // The scheduler's store, if it is a folder of this process's user on this machine: files are linked from there.
  // Empty: they come through its port.
  std::filesystem::path store = {};
  // Told each of them that is there, on the disk.
  std::function<void(const std::filesystem::path&)> arrived = {};
};

// The folder that the checkpoint of a run's folder gets, by the name of the folder that it has elsewhere.
std::filesystem::path fetched_path(const std::filesystem::path& folder,
                                   const std::filesystem::path& elsewhere);

// Fetches the checkpoints that the scheduler's store has and the folder has not. The folders of all that were to be
// there, newest first. Error if the scheduler keeps no files, if it refuses, or cannot be reached.
std::vector<std::filesystem::path> fetch_checkpoints(const comm::control::SchedulerAddress& scheduler,
                                                     uint64_t run, const std::filesystem::path& folder,
                                                     const FetchOptions& options);

// Writes experiment.toml, as the checkpoint has it, and adds those of the run's events to log.jsonl that it lacks.
void fetch_record(const comm::control::SchedulerAddress& scheduler, uint64_t run,
                  const std::filesystem::path& folder, const std::filesystem::path& checkpoint);

}  // namespace modelet::cli
