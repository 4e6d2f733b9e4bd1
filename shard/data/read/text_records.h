// TextRecords: text files as records of label names and words, before any id. Two layouts:
//   text   one sample a line; words are separated by white space, those that begin with the label prefix are
//          labels (without the prefix), wherever they stand: the layout of fastText
//   csv    one sample a record; a column of labels and columns of text
// Files may be plain, .xz or .gz. Memory: the longest record. One thread uses a reader.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/read/csv.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/read/sample_reader.h"

namespace modelet::shard {

// Valid until the next record is read.
struct TextRecord {
  std::vector<std::string_view> labels;  // in the order of the text, repetitions included
  std::vector<std::string_view> words;   // an empty one is a border between columns
};

class TextRecords {
 public:
  virtual ~TextRecords() = default;
  // False at the end. Throws FormatError "file:line: what, what to do".
  virtual bool next(TextRecord& record) = 0;
  [[noreturn]] virtual void fail(const std::string& what) const = 0;  // at the last record
  virtual bool ready() const = 0;                                     // as SampleReader::ready()
  virtual uint64_t bytes() const = 0;
  virtual double fraction() const = 0;
};

// `options.format` is text or csv. If labels are optional and the header of a CSV has no column of labels,
// its records have none.
std::unique_ptr<TextRecords> open_records(const Encoding& options, LineReader text, LabelsIn labels);

// Rows of the columns csv.text, without labels.
std::unique_ptr<TextRecords> open_rows(const Encoding& options, CsvReader rows);

// Whether a word of the line begins with the prefix and is longer.
bool has_label(std::string_view line, std::string_view prefix);

}  // namespace modelet::shard
