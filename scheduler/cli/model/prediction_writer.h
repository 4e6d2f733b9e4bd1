// PredictionWriter: writes the answers of `modelet predict`, one sample after the other (docs/guide.md,
// "Predictions").
//
//   text   one line for each sample: NAME:SCORE or NAME:PROBABILITY, separated by spaces. For people, and for
//          programs that read the output of fastText. A name with spaces is written as it is. Reasons follow, a line
//          each, indented.
//   tsv    one line for each label, after a line of titles: sample, rank, label, name, score, probability. In
//          names a tab is written as \t, a line end as \n, a carriage return as \r, a backslash as \\.
//   json   one line for each sample: an object (docs/events.md)
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/cli/model/answers.h"
#include "shard/inference/model.h"

namespace modelet::cli {

enum class PredictionFormat : uint8_t { kText, kTsv, kJson };
inline const std::map<std::string, PredictionFormat> kPredictionFormats = {
    {"text", PredictionFormat::kText}, {"tsv", PredictionFormat::kTsv}, {"json", PredictionFormat::kJson}};

struct WrittenAnswers {
  PredictionFormat format = PredictionFormat::kText;
  size_t k = 5;                     // labels of a sample, at most
  std::optional<double> threshold;  // as for keep_above()
  WantedReasons reasons = {};       // not in tsv
};

class PredictionWriter {
 public:
  // `out` and `model` must outlive the writer.
  PredictionWriter(std::ostream& out, const shard::Model& model, const WrittenAnswers& answers);

  // Writes the answers to the next samples, of which `best` has at least Model::depth(k) labels.
  void write(const shard::Batch& batch, const shard::TopK& best);

 private:
  using Prediction = std::vector<shard::ScoredLabel>;
  void write_text(const shard::Sample& sample, const Prediction& prediction);
  void write_reasons(const shard::Sample& sample, const shard::ScoredLabel& found);
  void write_tsv(const Prediction& prediction);
  void write_json(const shard::Sample& sample, const Prediction& prediction);
  std::string name_of(const shard::ScoredLabel& found) const;

  std::ostream& out_;
  const shard::Model& model_;
  const WrittenAnswers answers_;
  const bool names_, probabilities_;
  uint64_t sample_ = 0;
};

// Returns `text` with tabs, line ends, carriage returns and backslashes escaped; other bytes stay as they
// are.
std::string tsv_field(std::string_view text);

}  // namespace modelet::cli
