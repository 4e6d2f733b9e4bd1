// ModelHolder: holds the model that is served, and replaces it by newer checkpoints. A thread of its own
// looks at the run's folder from time to time, loads a newer checkpoint beside the present model, and swaps
// the two. Requests in progress finish with the model with which they began. If a checkpoint cannot be
// read, the failure is logged and the old model stays. While a model is loaded, there are two in memory.
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
  // Loads the first model; throws Error if that fails. every 0: looks only when look_now() is called.
  ModelHolder(ServedModelOptions options, Seconds every);
  ModelHolder(const ModelHolder&) = delete;
  ModelHolder& operator=(const ModelHolder&) = delete;
  ~ModelHolder();

  // Any thread.
  std::shared_ptr<const ServedModel> model() const;
  void look_now();
  // From here on no model is loaded. Returns whether one is being loaded right now: the destructor waits for it,
  // which may take minutes.
  bool stop();
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
  bool asked_ = false, loading_ = false, stop_ = false;
  std::string failure_;  // of the last look; empty: none. A failure is logged once
  std::thread thread_;
};

}  // namespace modelet::cli
