// TextRecords: lines of labelled words as records of label names and words, before any id: one sample a line; words are
// separated by white space, those that begin with the label prefix are labels (without the prefix), wherever they
// stand: the layout of fastText. Files may be plain, .xz or .gz. Memory: the longest record. One thread uses a reader.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/read/line_reader.h"

namespace modelet::shard {

// Valid until the next record is read.
struct TextRecord {
  std::vector<std::string_view> labels;  // in the order of the text, repetitions included
  std::vector<std::string_view> words;
};

class TextRecords {
 public:
  TextRecords(const Experiment::Text& options, LineReader text)
      : lines_(std::move(text)), prefix_(options.label_prefix) {}

  // False at the end. Throws FormatError "file:line: what, what to do".
  bool next(TextRecord& record);
  [[noreturn]] void fail(const std::string& what) const { lines_.fail(what); }  // at the last record
  bool ready() const { return lines_.ready(); }                                 // as SampleReader::ready()
  uint64_t bytes() const { return lines_.bytes(); }
  double fraction() const { return lines_.fraction(); }

 private:
  LineReader lines_;
  std::string prefix_;
};

// Whether a word of the line begins with the prefix and is longer.
bool has_label(std::string_view line, std::string_view prefix);

}  // namespace modelet::shard
