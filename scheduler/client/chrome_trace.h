// ChromeTrace: the events "trace" of the ranks of a replica (docs/events.md) as one file in the format of Chrome's traces,
// which Perfetto opens: a row for each rank, with its steps and their phases.
//
// The clocks of machines differ. Ranks are aligned by what their exchanges prove: nothing arrives before it was sent. The
// clock of a rank is moved by the least that makes this true of it and of rank 0, whose clock stays.
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace modelet::cli {

class ChromeTrace {
 public:
  // Takes an event "trace"; ignores others. Throws FormatError if it makes no sense.
  void add(const nlohmann::json& event);
  // Whether all parts of all ranks are there.
  bool is_complete() const;
  size_t ranks_heard() const { return ranks_.size(); }
  // How many steps all ranks have, and the mean time of one on the rank on which it takes longest.
  size_t steps() const;
  double step_seconds() const;
  // Writes the file. Throws WriteError.
  void write(const std::filesystem::path& file) const;
  std::string text() const;

 private:
  struct Span {
    uint64_t step = 0;
    size_t phase = 0;
    int64_t began = 0, length = 0, wait = 0, codec = 0;  // microseconds; `began` since the rank's first span
  };
  struct Rank {
    std::string node;
    uint64_t parts = 0;
    double began = 0;  // of the first span, seconds since 1970, by its own clock
    std::vector<std::string> phases;
    std::map<uint64_t, std::vector<Span>> by_part;
  };
  struct Step {
    int64_t began = 0, ended = 0;  // microseconds by the rank's own calendar
    int64_t sent = 0, heard = 0;   // when it began to wait for the others, and had heard them
    bool exchanges = false;
  };

  static std::vector<Span> spans_of(const Rank& rank);
  static std::map<uint64_t, Step> steps_of(const Rank& rank, int64_t zero);
  std::map<uint64_t, int64_t> shifts(int64_t zero) const;  // microseconds to add, by rank
  int64_t zero() const;

  uint64_t size_ = 0;  // of the replica
  std::map<uint64_t, Rank> ranks_;
};

// What to tell whoever has asked for the trace.
std::string trace_note(const ChromeTrace& trace, const std::filesystem::path& file);

}  // namespace modelet::cli
