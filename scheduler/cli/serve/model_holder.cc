#include "scheduler/cli/serve/model_holder.h"

#include <memory>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/system/log.h"
#include "node_agent/machine/capacity.h"
#include "scheduler/cli/model/run_samples.h"
#include "shard/data/read/line_reader.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {
namespace {

std::shared_ptr<const ServedModel> load_served(const ServedModelOptions& options) {
  // Not make_shared: a model cannot be moved.
  const std::shared_ptr<ServedModel> served(
      new ServedModel{agent::load_model(options.run, options.threads, options.labels), {}, nullptr});
  shard::Model* const model = &served->model;
  if (options.sparse)
    model->prepare_sparse(
        options.queries.empty()
            ? test_data(
                  *model,
                  "--sparse is tuned on samples: give --queries FILE with samples like those to come (labels are "
                  "not needed)")
            : load_samples(*model, options.queries));
  note_missing_names(*model, [](const std::string& text) { log_warning("{}", text); });
  const auto mode = options.sparse ? shard::SearchMode::kSparse : shard::SearchMode::kDense;
  if (options.proba) {
    try {
      calibrate(*model, options.calibrate, mode, [](const std::string& text) { log_info("{}", text); });
    } catch (const Error& error) {
      if (!options.calibrate.empty()) throw;
      log_warning("answers have no probabilities: {}", error.what());
    }
  }
  if (options.examples > 0) served->samples = nearest_samples(*model);
  for (const auto& [name, file] : options.subsets) served->subsets.emplace(name, model->read_label_set(file));
  model->predict(shard::Sample{}, 1, mode);  // warms up
  return served;
}

// As of a file.
shard::LineReader lines_of(std::string text, const char* name) {
  return {std::make_unique<std::stringbuf>(std::move(text), std::ios::in), name};
}

// Events that came while `now` was being loaded. A model without histories has no use for them.
void take_over_events(const shard::Model& before, const shard::Model& now) {
  std::string events = before.query_encoder().events();
  if (events.empty()) return;
  try {
    now.query_encoder().add_events(lines_of(std::move(events), "earlier events"));
  } catch (const Error& error) {
    log_warning("{}: the events of the model before do not suit it: {}", now.folder().string(), error.what());
  }
}

}  // namespace

ModelHolder::ModelHolder(ServedModelOptions options, Seconds every)
    : options_(std::move(options)), every_(every), served_(load_served(options_)) {
  thread_ = std::thread([this] { work(); });
}

ModelHolder::~ModelHolder() {
  stop();
  thread_.join();
}

bool ModelHolder::stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
  return loading_;
}

std::shared_ptr<const ServedModel> ModelHolder::served() const {
  const std::lock_guard lock(mutex_);
  return served_;
}

std::shared_ptr<const shard::Model> ModelHolder::model() const {
  const std::shared_ptr<const ServedModel> all = served();
  return {all, &all->model};
}

ModelHolder::Reloads ModelHolder::reloads() const {
  const std::lock_guard lock(mutex_);
  return reloads_;
}

shard::NewEvents ModelHolder::add_events(std::string text) {
  const std::lock_guard lock(updating_);
  return model()->add_events(lines_of(std::move(text), "samples"));
}

void ModelHolder::look_now() {
  {
    const std::lock_guard lock(mutex_);
    asked_ = true;
  }
  changed_.notify_all();
}

void ModelHolder::work() {
  std::unique_lock lock(mutex_);
  const auto wanted = [this] { return asked_ || stop_; };
  while (!stop_) {
    if (every_.count() > 0)
      changed_.wait_for(lock, every_, wanted);
    else
      changed_.wait(lock, wanted);
    if (stop_) return;
    asked_ = false;
    loading_ = true;
    lock.unlock();
    look();
    lock.lock();
    loading_ = false;
  }
}

void ModelHolder::look() {
  const std::lock_guard alone(looking_);
  const std::shared_ptr<const shard::Model> old = model();
  std::filesystem::path folder;
  try {
    folder = shard::find_model(options_.run);
    // A folder that was replaced has another index.
    const uint64_t fingerprint = shard::fingerprint_of(shard::Checkpoint::open(folder).index());
    if (folder == old->folder() && fingerprint == old->fingerprint()) return;
    log_info("loading {}", folder.string());
    auto loaded = load_served(options_);
    const std::lock_guard no_update(updating_);
    take_over_events(*old, loaded->model);
    const std::lock_guard lock(mutex_);
    served_ = std::move(loaded);
    ++reloads_.done;
    failure_.clear();
    log_info("serving {}, step {}", served_->model.folder().string(), served_->model.step());
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    ++reloads_.failed;
    const std::string failure = error.what();
    if (failure != failure_)
      log_error("{} is served on, because a newer checkpoint cannot be loaded: {}", old->folder().string(),
                failure);
    failure_ = failure;
  }
}

}  // namespace modelet::cli
