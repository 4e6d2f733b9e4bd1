// Brings the towers that a pool has trained into the folder of their run, and makes one model of them
// (node_agent/train/towers.h). What has arrived can also go on in one process: modelet train --resume.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "comm/control/control.h"
#include "node_agent/train/job/train_job.h"
#include "scheduler/client/fetch_run.h"
#include "scheduler/client/pool_client.h"

namespace modelet::cli {

// Fetches the division of the labels and, of each task that has a result, the last checkpoint and the last event.
// Returns how many tasks have no result yet; nothing if the run is one network. Throws as fetch_checkpoints().
std::optional<size_t> fetch_towers(const comm::control::SchedulerAddress& scheduler, uint64_t run,
                                   const std::filesystem::path& folder, const FetchOptions& options);

// All towers are there: writes the model and tests it. Nobody else may hold the folder (RunFolder). Reports "checkpoint"
// and "finished". `stop`: asked between batches; true: throws Interrupted.
void assemble_towers(const Submission& submission, const std::filesystem::path& folder,
                     const agent::EventSink& events, const std::function<bool()>& stop);

}  // namespace modelet::cli
