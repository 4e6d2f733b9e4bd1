// The journal of a run in its folder: experiment.toml, a copy of the names of its labels, and the events of the
// run in log.jsonl, one JSON object a line. The process that started the run writes it, and
// `modelet report` reads it.
//
// One thread.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/system/file.h"

namespace modelet::cli {

// Whether this is the event with which a log begins.
bool is_start(const nlohmann::json& event);

class RunJournal {
 public:
  // `experiment` is TOML. Nothing is written before the event "started", so a run that is refused changes
  // nothing. `labels`: the file of the names of the labels, if the process may read whatever its user names.
  RunJournal(std::filesystem::path folder, std::string experiment, std::filesystem::path labels = {});

  // Appends the event. Throws Error if it cannot be written; the journal may be used again.
  void add(const nlohmann::json& event);

 private:
  void begin();

  const std::filesystem::path folder_;
  const std::string experiment_;
  const std::filesystem::path labels_;
  std::optional<AppendedFile> log_;  // open once the journal has begun
};

}  // namespace modelet::cli
