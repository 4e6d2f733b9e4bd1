// Reporter: shows the events of a training run, wherever they come from (this process, a pool).
//
// With JSON each event is a line on standard output. Otherwise people read standard error: on a terminal a
// progress line that is redrawn, else plain lines; one line for each epoch and checkpoint, and a summary at
// the end. Unknown events and missing fields are passed over: an older program may watch a newer run.
// Either way a log file, if there is one, gets each event as a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace modelet::cli {

class Reporter {
 public:
  explicit Reporter(bool json);
  // For tests: `terminal` says whether `people` is one.
  Reporter(bool json, std::ostream& machines, std::ostream& people, bool terminal);
  ~Reporter();  // ends the progress line

  // From now on events are appended to `file` too, JSON Lines. Error if it cannot be opened, and from
  // handle() if it cannot be written.
  void log_to(const std::filesystem::path& file);

  void handle(const nlohmann::json& event);
  void note(const std::string& text);  // a line for people

 private:
  void show(const nlohmann::json& event);
  void line(const std::string& text);
  void progress(const std::string& text);

  const bool json_;
  std::ostream &machines_, &people_;
  const bool terminal_;
  std::filesystem::path log_path_;
  std::ofstream log_;  // open if log_to() was called
  bool in_progress_line_ = false;
  uint64_t steps_ = 0, epochs_ = 0;  // of the whole run; 0: not known
  double p_at_1_ = -1;               // of the last evaluation; negative: none yet
};

}  // namespace modelet::cli
