// RunData: the data of a run, if the scheduler has a store and sends it. The data is read from the agent's
// cache, which fetches what it lacks (comm/content/content.h). The data paths in the experiment are not
// opened: the user who submitted it chose them.
//
// The last section of the training data has the samples of each label, in the order of output neurons
// (shard/data/store/prepared.h). The agent fetches only those chunks of it that have the neurons of this
// rank. So the other chunks of the file in the cache may be missing; a later run may add them.
//
// Fetching (comm/content/transfer/transfer.h) continues where an earlier attempt ended, however it ended.
// If several agents share a cache, only one of them fetches.
//
// One thread. While a RunData lives, its files are not removed from the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/content/store.h"
#include "comm/control/control.h"
#include "comm/transport/rate_limit.h"
#include "node_agent/train/job/train_job.h"

namespace modelet::agent {

struct CacheOptions {
  std::filesystem::path folder;         // may be shared by agents
  uint64_t bytes = uint64_t{16} << 30;  // beyond this, the least recently used data is removed
  double fetch_bytes_per_second = 0;    // 0: no limit
  std::shared_ptr<comm::RateLimit> counter = {};  // of what is fetched; null: it is not counted
};

// The data of a run, as the scheduler describes it, and how this agent gets it. What has no address is read from the
// paths of the experiment.
struct DataSource {
  std::optional<comm::ContentId> train, test;
  std::optional<comm::ContentId> division;  // of the labels, for a task
  comm::control::SchedulerAddress server;  // the scheduler's port for data
  CacheOptions cache;
  std::string node;      // name of this node in the events "fetching"
  double ask_again = 5;  // seconds until a question is repeated for which the scheduler had no time
};

class RunData {
 public:
  // Sets train_file, test_file and tower->division_file of `job`, as far as they have an address. train_file has at least the labels of output_neurons(job)
  // (node_agent/train/data/label_selection.h), for a task those of all. `check` is called several times a second while data is checked
  // or fetched, and may throw. Throws Error if the data cannot be had: no answer, no room, or the scheduler
  // does not have it.
  RunData(const DataSource& source, TrainJob& job, const EventSink& events,
          const std::function<void()>& check);

 private:
  std::unique_ptr<comm::StoredContent> train_, test_, division_;
};

}  // namespace modelet::agent
