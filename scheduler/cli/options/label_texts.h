// Texts about labels, such as titles of products, as training samples: a label that nobody has chosen yet is then found by
// words of its own text. Pure functions, but for the file that is written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/encode/guess.h"
#include "shard/data/read/csv.h"

namespace modelet::cli {

// What a question about a label may have of its text: the whole, and short runs of its words, each of which overlaps the
// next by half. Of a text of many words they are spread evenly over it.
std::vector<std::string> pieces_of(std::string_view text);

// How a label and a piece become a record of training text. Errors are FormatErrors without a place.
class SampleText {
 public:
  virtual ~SampleText() = default;
  virtual std::string ending() const = 0;                       // of a file's name
  virtual std::string head() const { return {}; }               // of a file without other records
  virtual std::string record(std::string_view label, std::string_view piece) = 0;
};

// Labelled words. `like`: a file with such text; UsageError if it is of another format.
class LabelledLine : public SampleText {
 public:
  LabelledLine(const std::filesystem::path& like, const Encoding& encoding);
  std::string ending() const override { return ".txt"; }
  std::string record(std::string_view label, std::string_view piece) override;

 private:
  std::string prefix_;
};

// A table like this one, with a column `target`; the piece is in its first column of text. UsageError if it has none. With
// `others`, numbers, dates and categories are those of its first records, one after the other, so that they do not tell
// pieces from other samples; else they are missing.
class TableRecord : public SampleText {
 public:
  TableRecord(const std::filesystem::path& like, const std::string& target, const Experiment& given, bool has_delimiter,
              bool others);
  std::string ending() const override;
  std::string head() const override { return head_; }
  std::string record(std::string_view label, std::string_view piece) override;

 private:
  void read_others(const std::filesystem::path& like, const shard::ColumnGuess& guess, const Experiment::Csv& csv);

  std::string target_, text_, head_;
  std::vector<std::string> columns_;
  std::vector<shard::Row> others_;  // [columns] each; empty: none
  size_t next_ = 0;                 // of others_
  char delimiter_ = 0;  // 0: JSON Lines
};

struct TextsOfLabels {
  std::filesystem::path train;
  uint64_t labels = 0, pieces = 0;
};

// Writes a file to `folder`: the text of `train`, unless its name is empty, and the pieces of `texts`, which has a label, a
// tab and its text on each line. FormatError with file and line.
TextsOfLabels add_label_texts(const std::filesystem::path& train, const std::filesystem::path& texts, SampleText& samples,
                              const std::filesystem::path& folder);

}  // namespace modelet::cli
