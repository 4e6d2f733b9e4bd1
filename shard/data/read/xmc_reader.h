// XmcReader: strict streaming reader of XMC text (the multi-label libsvm format of the Extreme Classification
// Repository):
//
//   N D L                      header: samples, features, labels; three integers below 2^31
//   l1,l2,... f:v f:v ...      N lines; ids count from zero: 0 <= l < L, 0 <= f < D
//
// Other lines that are accepted, and what they mean:
//   starts with a space        a sample without labels
//   labels alone, or nothing   a sample without features (or without both)
//   ids out of order           sorted
//   a label twice              counts once
//   a feature twice            its values are added
//   a value of zero            left out
//   a value below 1e-38        rounded as 32-bit floats are (to zero in the end)
//   CRLF, trailing spaces, tabs between features, no newline at the end, empty lines after the last sample
//                              accepted
// Everything else is a FormatError "file:line: what was found and what to do": a missing header, an id out of
// range, a feature without a value, NaN, infinity, a value beyond 32-bit floats, fewer or more lines than N,
// a line over 64 MiB, and a number of labels that the text cannot account for (kMostLabelsUnseen).
//
// Text that a model is asked about (a stream, a row in memory) may be less complete. The header may be
// missing (in memory there is none), and its number of samples is ignored. Every line is a sample, and a line
// without labels may begin with a feature.
//
// Files may be plain, .xz or .gz. Memory: the longest line and its sample. One thread uses a reader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shard/data/read/line_reader.h"
#include "shard/data/read/sample.h"
#include "shard/data/read/sample_reader.h"

namespace modelet::shard {

// The program allocates memory for each label of the header. So a header with more than kMostLabelsUnseen
// labels is refused, unless the text has at least one byte for every kLabelsForAByte labels.
inline constexpr uint64_t kMostLabelsUnseen = uint64_t{1} << 26;
inline constexpr uint64_t kLabelsForAByte = 1024;

struct XmcHeader {
  uint64_t rows = 0, features = 0, labels = 0;
};

class XmcReader : public SampleReader {
 public:
  // Opens the file and reads its header.
  explicit XmcReader(const std::filesystem::path& path);
  // The same from plain text in memory or elsewhere; `name` stands for the file in messages.
  XmcReader(std::unique_ptr<std::streambuf> source, std::string name);
  // Text that a model with so many features and labels is asked about. UsageError if it has a header with
  // other numbers.
  XmcReader(LineReader text, uint64_t features, uint64_t labels);

  const XmcHeader& header() const { return header_; }

  // The next sample; valid until the next call. False after the last one, when the file has been found
  // complete.
  bool next(Sample& sample) override;

  uint64_t features() const override { return header_.features; }
  uint64_t labels() const override { return header_.labels; }
  bool ready() const override { return lines_.ready(); }
  uint64_t bytes() const override { return lines_.bytes(); }
  double fraction() const override { return lines_.fraction(); }

 private:
  void read_header();
  XmcHeader parse_header(std::string_view line) const;
  [[noreturn]] void fail_header(std::string_view line) const;
  bool next_query(Sample& sample);
  void parse(std::string_view line);
  const char* parse_labels(const char* p, const char* end);
  const char* parse_feature(const char* p, const char* end);
  void sort_features();
  void expect_end();

  LineReader lines_;
  XmcHeader header_;
  bool queries_ = false;  // text that a model is asked about; header_ has the model's shape
  uint64_t rows_read_ = 0;
  std::vector<uint32_t> labels_, features_;
  std::vector<float> values_;
  bool canonical_ = true;  // the line's features ascend strictly and no value is zero
  std::vector<std::pair<uint32_t, float>> unsorted_;
};

}  // namespace modelet::shard
