// Brings what a pool keeps of a run into a folder of this machine, as `modelet train` would have written it there:
//
//   FOLDER/checkpoints/step-0000001434/   a checkpoint: all of it, or it is not there
//   FOLDER/.fetching/                     what has arrived of others: an attempt that was cut off goes on with that
//   FOLDER/experiment.toml, log.jsonl     (fetch_record)
//
// One process at a time for a folder. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/control/control.h"

namespace modelet::cli {

struct FetchOptions {
  // Told the events "fetching": once a second, and when a checkpoint is there. May be empty, as `check`.
  std::function<void(const nlohmann::json&)> tell;
  std::function<void()> check;  // called several times a second; may throw, which ends the attempt
};

// The folder that the checkpoint of a run's folder gets, by the name of the folder that it has elsewhere.
std::filesystem::path fetched_path(const std::filesystem::path& folder,
                                   const std::filesystem::path& elsewhere);

// Fetches the checkpoints that the scheduler's store has and the folder has not, newest first. The folders of all that
// the store has, newest first. Error if the scheduler keeps no files, if it refuses, or cannot be reached.
std::vector<std::filesystem::path> fetch_checkpoints(const comm::control::SchedulerAddress& scheduler,
                                                     uint64_t run, const std::filesystem::path& folder,
                                                     const FetchOptions& options);

// Writes experiment.toml, as the checkpoint has it, and adds those of the run's events to log.jsonl that it lacks.
void fetch_record(const comm::control::SchedulerAddress& scheduler, uint64_t run,
                  const std::filesystem::path& folder, const std::filesystem::path& checkpoint);

}  // namespace modelet::cli
