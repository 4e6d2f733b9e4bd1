// ModelHolder: holds the model that is served, and replaces it by newer checkpoints. A thread of its own
// looks at the run's folder from time to time, loads a newer checkpoint beside the present model, and swaps
// the two. Requests in progress finish with the model with which they began. If a checkpoint cannot be
// read, the failure is logged and the old model stays. While a model is loaded, there are two in memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/system/clock.h"
#include "shard/inference/model.h"
#include "shard/inference/nearest_samples.h"

namespace modelet::cli {

struct ServedModelOptions {
  std::string run;        // run folder or checkpoint
  std::string labels;     // names of the labels; empty: as shard::Model finds them
  bool sparse = false;    // prepare sparse scoring
  std::string queries;    // on which it is tuned; empty: the test data of the run
  size_t examples = 0;    // training samples that explain an answer
  bool proba = true;      // answer with probabilities, if they can be calibrated
  std::string calibrate;  // labelled samples for the calibration; empty: as calibrate() finds them
  uint32_t threads = 0;   // for loading
  std::map<std::string, std::string>
      subsets;  // files of labels among which a request may choose, by their name
};

// A model that is ready to answer.
struct ServedModel {
  shard::Model model;
  std::map<std::string, shard::LabelSet, std::less<>> subsets;
  std::unique_ptr<const shard::NearestSamples> samples;  // of the training, for examples; null: there are none
};

class ModelHolder {
 public:
  // Loads the first model; throws Error if that fails. every 0: looks only when look_now() is called.
  ModelHolder(ServedModelOptions options, Seconds every);
  ModelHolder(const ModelHolder&) = delete;
  ModelHolder& operator=(const ModelHolder&) = delete;
  ~ModelHolder();

  // Any thread.
  std::shared_ptr<const ServedModel> served() const;
  std::shared_ptr<const shard::Model> model() const;  // of the same
  size_t examples() const { return options_.examples; }
  // Of the model that is served (shard::Model::add_events()), and of those that come after it. `text` is of its format.
  shard::NewEvents add_events(std::string text);
  void look_now();
  // As look_now(), but returns when what there is is served.
  void look();
  // From here on no model is loaded. Returns whether one is being loaded right now: the destructor waits for it,
  // which may take minutes.
  bool stop();
  struct Reloads {
    uint64_t done = 0, failed = 0;
  };
  Reloads reloads() const;

 private:
  void work();

  const ServedModelOptions options_;
  const Seconds every_;
  std::mutex looking_;   // one look at a time; taken before the others
  std::mutex updating_;  // no events are added while a model takes over; taken before mutex_
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const ServedModel> served_;
  Reloads reloads_;
  bool asked_ = false, loading_ = false, stop_ = false;
  std::string failure_;  // of the last look; empty: none. A failure is logged once
  std::thread thread_;
};

}  // namespace modelet::cli
