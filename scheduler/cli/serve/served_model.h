// ServedModel: a model that answers questions of many threads at once. Immutable once it is made. A thread
// borrows scratch memory while it answers a question.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "scheduler/cli/model/interpreter.h"
#include "scheduler/cli/model/loaded_model.h"
#include "scheduler/cli/serve/request.h"

namespace modelet::cli {

struct ServedModelOptions {
  std::string run;     // run folder or checkpoint
  std::string labels;  // names of the labels; empty: those that the experiment or the encoder knows
  // Score only the likeliest labels, unless a question says otherwise.
  bool sparse = false;
  std::string queries;    // on which sparse scoring is tuned; empty: the test data of the run
  bool proba = true;      // answer with probabilities, if they can be calibrated
  std::string calibrate;  // labelled samples for the calibration; empty: as LoadedModel::calibrate()
  uint32_t threads = 0;   // for loading
};

class ServedModel {
 public:
  // Loads the model, prepares everything that it needs, and answers one question to warm up its memory.
  // Throws Error.
  explicit ServedModel(const ServedModelOptions& options);

  // Returns the answers to a question, one for each sample. Throws FormatError or UsageError that says which
  // sample is wrong. Any thread.
  using Answer = std::vector<ScoredLabel>;
  std::vector<Answer> answer(const PredictRequest& request) const;

  const shard::Columns& columns() const { return encoder_.columns(); }
  const Experiment& experiment() const { return model_.experiment(); }
  const DataShape& shape() const { return model_.shape(); }
  const Interpreter& interpreter() const { return interpreter_; }
  bool sparse() const { return sparse_; }
  uint64_t step() const { return model_.step(); }
  const std::filesystem::path& folder() const { return model_.predictor().folder(); }
  uint64_t fingerprint() const { return model_.predictor().fingerprint(); }

 private:
  // Lends each thread a session of its own.
  class Sessions {
   public:
    explicit Sessions(const shard::Predictor& predictor) : predictor_(predictor) {}
    std::unique_ptr<shard::Predictor::Session> borrow();
    void give_back(std::unique_ptr<shard::Predictor::Session> session);

   private:
    const shard::Predictor& predictor_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<shard::Predictor::Session>> idle_;
  };

  std::unique_ptr<shard::SampleReader> open(const Query& query) const;
  Answer answer(const Query& query, size_t k, bool sparse, shard::Predictor::Session& session) const;
  static Interpreter make_interpreter(LoadedModel& model, const ServedModelOptions& options);

  LoadedModel model_;
  shard::QueryEncoder encoder_;
  bool sparse_;
  Interpreter interpreter_;
  mutable Sessions sessions_;
};

}  // namespace modelet::cli
