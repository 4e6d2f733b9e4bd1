#include "scheduler/client/run_journal.h"

#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {
namespace fs = std::filesystem;

bool is_start(const nlohmann::json& event) {
  return event.is_object() && event.value("event", nlohmann::json()) == "started";
}

RunJournal::RunJournal(fs::path folder, std::string experiment, fs::path labels)
    : folder_(std::move(folder)), experiment_(std::move(experiment)), labels_(std::move(labels)) {}

void RunJournal::begin() {
  std::error_code failure;
  fs::create_directories(folder_, failure);
  if (failure) throw Error(folder_.string() + ": " + failure.message() + " (making the run's folder)");
  AtomicFile file(folder_ / "experiment.toml");
  file.write(experiment_);
  file.commit();
  if (fs::is_regular_file(labels_, failure)) {
    const std::string name = shard::kLabelNamesFile;
    const fs::path copy = folder_ / name, hidden = folder_ / ("." + name);
    fs::copy_file(labels_, hidden, fs::copy_options::overwrite_existing, failure);
    if (!failure) fs::rename(hidden, copy, failure);
    if (failure)
      throw Error(copy.string() + ": " + failure.message() + " (copying " + labels_.string() + ")");
  }
  log_.emplace(folder_ / "log.jsonl");
}

void RunJournal::add(const nlohmann::json& event) {
  if (!log_ && !is_start(event)) return;
  if (!log_) begin();
  log_->write(event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n');
}

}  // namespace modelet::cli
