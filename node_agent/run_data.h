// RunData: where a node reads the data of a run. At the experiment's paths if what lies there is the data
// that was submitted, byte by byte when prepared; else in the agent's cache, which fetches what it lacks from
// the scheduler (comm/content.h). Of the training data's last section, which has the samples of each label in
// the order of output neurons (shard/data/prepared.h), it fetches the chunks with the neurons of this rank,
// so the file in the cache may be right in these alone. A later run may add others.
//
// Fetching asks for a few chunks at a time, over a connection of its own, again only if the scheduler has no
// time or the connection was lost, and takes up where an earlier attempt ended, however it ended. Several
// agents with one cache fetch once.
//
// One thread. While a RunData lives, its files are not removed from the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "comm/content_store.h"
#include "comm/control.h"
#include "node_agent/trainer.h"

namespace modelet::agent {

struct CacheOptions {
  std::filesystem::path folder;         // may be shared by agents
  uint64_t bytes = uint64_t{16} << 30;  // the least recently used data is removed beyond
  double fetch_bytes_per_second = 0;    // 0: no limit
};

// The data of a run, as the scheduler says, and what this agent does to get it.
struct DataSource {
  comm::ContentId train, test;
  comm::control::SchedulerAddress server;  // its port for data
  CacheOptions cache;
  std::string node;      // named in the events "fetching"
  double ask_again = 5;  // seconds until a question is repeated that the scheduler has no time for
};

class RunData {
 public:
  // Finds the data and sets train_file and test_file of `job` where the experiment's paths do not have it:
  // the first has at least the labels of output_neurons(job) (node_agent/label_parts.h). `check` is called
  // several times a second while data is looked at or fetched, and may throw. Throws Error if the data cannot
  // be had: no answer, no room, unknown to the scheduler.
  RunData(const DataSource& source, TrainJob& job, const EventSink& events,
          const std::function<void()>& check);

 private:
  std::unique_ptr<comm::StoredContent> train_, test_;  // null: at the experiment's path
};

}  // namespace modelet::agent
