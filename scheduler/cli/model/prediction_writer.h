// PredictionWriter: the answers of `modelet predict`, one sample after the other (docs/guide.md, "Predictions").
//
//   text   a line a sample: NAME:SCORE or NAME:PROBABILITY, separated by spaces; for people and for what reads
//          the output of fastText. A name with spaces is written as it is.
//   tsv    a line a label, after a line of titles: sample, rank, label, name, score, probability. In names a
//          tab is \t, a line end \n, a carriage return \r, a backslash \\.
//   json   a line a sample: an object (docs/events.md)
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "scheduler/cli/model/interpreter.h"

namespace modelet::cli {

enum class PredictionFormat : uint8_t { kText, kTsv, kJson };
inline const std::map<std::string, PredictionFormat> kPredictionFormats = {
    {"text", PredictionFormat::kText}, {"tsv", PredictionFormat::kTsv}, {"json", PredictionFormat::kJson}};

class PredictionWriter {
 public:
  // All must outlive it.
  PredictionWriter(std::ostream& out, PredictionFormat format, const Interpreter& interpreter, size_t k);

  // The answers of the next samples.
  void write(const shard::TopK& best);

 private:
  void write_text();
  void write_tsv();
  void write_json();

  std::ostream& out_;
  const PredictionFormat format_;
  const Interpreter& interpreter_;
  const size_t k_;
  uint64_t sample_ = 0;
  std::vector<ScoredLabel> labels_;  // of one sample
};

// Tabs, line ends, carriage returns and backslashes escaped; other bytes as they are.
std::string tsv_field(std::string_view text);

}  // namespace modelet::cli
