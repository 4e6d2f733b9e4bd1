// Reporter: shows the events of a training run, from this process or from a pool.
//
// With JSON, each event is a line on standard output. Otherwise text for people goes to standard error. On a
// terminal this is a progress line that is redrawn; elsewhere it is plain lines. There is one line for each
// epoch and each checkpoint, and a summary at the end, all as wide as the terminal, with a little colour.
// Unknown events and missing fields are ignored, so that an older program can watch a newer run. Failures are
// not shown here, because the program prints them as its last words. In both cases, each event is also
// written as a line into the folder of the run, if there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include "scheduler/client/run_journal.h"
#include "scheduler/client/terminal.h"
#include "shard/data/store/prepared.h"

namespace modelet::cli {

// The common name of a metric of an evaluation (shard/inference/metrics.h): "p_at_5" is P@5.
std::string figure_title(const std::string& name);

// What people read at once when they ask a run to stop; StopSignals prints it.
inline constexpr const char* kStoppingLine =
    "\nstopping after this step, with a checkpoint; press Ctrl-C again to end at once, without\n";

// How the place of a checkpoint begins in the events of a run whose files the pool keeps.
inline constexpr const char* kFetch = "modelet fetch";

class Reporter {
 public:
  explicit Reporter(bool json);
  // For tests. `terminal` says whether `people` is a terminal.
  Reporter(bool json, std::ostream& machines, std::ostream& people, const Terminal& terminal);
  ~Reporter();  // ends the progress line

  // Keeps the journal of a run in `folder` (scheduler/client/run_journal.h). `labels`: data.labels.
  void record_in(const std::filesystem::path& folder, const std::string& experiment,
                 const std::filesystem::path& labels = {});

  // Gives each event also to `sink`, which must not throw.
  void pass_to(std::function<void(const nlohmann::json&)> sink) { sink_ = std::move(sink); }

  // Shows and records an event, and gives it a "time" if it has none. Does not throw. The first failure to
  // record or pass on an event is told to people at once and kept in failure(), and the caller that started the run
  // stops it. (The terminal of people may go away without harm; the pipe of a program may not.)
  void handle(const nlohmann::json& event);
  const std::string& failure() const { return failure_; }  // empty: every event was written
  void require_success() const;        // throws Error, with how to resume, if failure() is set
  void note(const std::string& text);  // shows a line to people
  // Shows how far a run of tasks is. `seconds_left`: 0: not known.
  void show_tasks(uint32_t done, uint32_t at_work, uint32_t tasks, double seconds_left);
  void clear_progress();  // call this before something else is printed
  // Text for the last words of a failed program: "; continue with --resume ..." if there was a checkpoint,
  // else "".
  std::string how_to_resume() const;

 private:
  enum class Style { kPlain, kBold, kDim, kWarning };

  template <class Write>
  void attempt(const Write& write);
  void pass_on(const nlohmann::json& event);
  void show(const nlohmann::json& event);
  void show_data_on_its_way(const nlohmann::json& event);
  void show_preparing(const nlohmann::json& event);
  void show_submitted(const nlohmann::json& event);
  void show_started(const nlohmann::json& event);
  void show_tower_started(const nlohmann::json& event);
  void show_tower_finished(const nlohmann::json& event);
  void show_progress(const nlohmann::json& event);
  void show_evaluating(const nlohmann::json& event);
  void show_epoch(const nlohmann::json& event);
  void show_task(const nlohmann::json& event);
  void show_checkpoint(const nlohmann::json& event);
  void show_replanned(const nlohmann::json& event);
  void show_regrouped(const nlohmann::json& event);
  void show_finished(const nlohmann::json& event);
  void show_interrupted(const nlohmann::json& event);
  // On a terminal the text takes as many lines as it needs.
  void line(const std::string& text, Style style = Style::kPlain);
  void print(const std::string& text, Style style);
  void progress(double done, const std::string& text);

  const bool json_;
  std::ostream &machines_, &people_;
  const Terminal terminal_;
  std::optional<RunJournal> journal_;
  std::function<void(const nlohmann::json&)> sink_;  // may be empty
  bool in_progress_line_ = false;
  uint64_t steps_ = 0, epochs_ = 0;  // of the whole run; 0: not known
  double p_at_1_ = -1;               // of the last evaluation; negative: none yet
  std::string checkpoint_;           // the last one; empty: none yet
  std::string tasks_;                // what show_tasks() has shown last, without the time
  std::string failure_;              // why an event was not written; empty: all were
};

// For functions that prepare text. The result reports to `reporter` how far the preparation of `file` is, as
// events "preparing" every `every` seconds. `reporter` must outlive the result.
shard::PrepareProgress report_preparing(Reporter& reporter, const std::string& file, double every = 1);

}  // namespace modelet::cli
