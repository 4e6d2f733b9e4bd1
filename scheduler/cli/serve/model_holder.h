// ModelHolder: the model that is served now, and the newer checkpoint that takes its place. A thread of its own
// looks at the run's folder from time to time, loads what is new beside what is served, and swaps the two;
// questions that have begun end on the model they began with. A checkpoint that cannot be read is logged, and
// the old model stays. While a model is loaded there are two in memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "base/system/clock.h"
#include "scheduler/cli/serve/served_model.h"

namespace modelet::cli {

class ModelHolder {
 public:
  // Loads the first model; Error if that fails. every 0: looks only when it is told to.
  ModelHolder(ServedModelOptions options, Seconds every);
  ModelHolder(const ModelHolder&) = delete;
  ModelHolder& operator=(const ModelHolder&) = delete;
  ~ModelHolder();

  // Any thread.
  std::shared_ptr<const ServedModel> model() const;
  void look_now();
  struct Reloads {
    uint64_t done = 0, failed = 0;
  };
  Reloads reloads() const;

 private:
  void work();
  void look();

  const ServedModelOptions options_;
  const Seconds every_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const ServedModel> model_;
  Reloads reloads_;
  bool asked_ = false, stop_ = false;
  std::string failure_;  // of the last look; empty: none. Logged once
  std::thread thread_;
};

}  // namespace modelet::cli
