// Reporter: shows the events of a training run, wherever they come from (this process, a pool).
//
// With JSON each event is a line on standard output. Otherwise people read standard error: on a terminal a
// progress line that is redrawn, else plain lines; one line for each epoch and checkpoint, and a summary at
// the end. Unknown events and missing fields are passed over: an older program may watch a newer run.
// Failures are shown by the program that reports, as its last words. Either way the run's folder, if there is
// one, gets each event as a line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace modelet::cli {

// "[####......] text", at most `columns` characters: the bar, filled by `done` in [0, 1], takes the room that
// the text leaves. Where there is little it goes, and then the text's last fields, which two spaces part:
// half a number would be another one.
std::string with_bar(double done, const std::string& text, size_t columns);

// What people call a figure of an evaluation (shard/metrics.h): "p_at_5" is P@5.
std::string figure_title(const std::string& name);

class Reporter {
 public:
  explicit Reporter(bool json);
  // For tests: `terminal` says whether `people` is one.
  Reporter(bool json, std::ostream& machines, std::ostream& people, bool terminal);
  ~Reporter();  // ends the progress line

  // Keeps the record of a run in `folder`: from the event 'started' on, experiment.toml with the text
  // `experiment`, and log.jsonl, to which events are appended. A run that is refused before changes nothing
  // there.
  void record_in(const std::filesystem::path& folder, const std::string& experiment);

  void handle(const nlohmann::json& event);  // Error if the record cannot be written
  void note(const std::string& text);        // a line for people
  // "; continue with --resume ..." once there was a checkpoint, for the last words of who failed.
  std::string how_to_resume() const;

 private:
  void begin_record();
  void show(const nlohmann::json& event);
  void line(const std::string& text);
  void progress(double done, const std::string& text);

  const bool json_;
  std::ostream &machines_, &people_;
  const bool terminal_;
  std::filesystem::path folder_;  // of the record; empty: none
  std::string experiment_;
  std::ofstream log_;  // open once the record has begun
  bool in_progress_line_ = false;
  uint64_t steps_ = 0, epochs_ = 0;  // of the whole run; 0: not known
  double p_at_1_ = -1;               // of the last evaluation; negative: none yet
  std::string checkpoint_;           // the last one; empty: none yet
};

}  // namespace modelet::cli
