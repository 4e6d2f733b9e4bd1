// SampleReader: samples from a text file, one after the other. Each format has an implementation; code that
// uses samples (shard/data/store/prepared.h) knows no format. One thread uses a reader.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shard/data/read/sample.h"

namespace modelet::shard {

// The counts of features, labels and rows lie below this.
inline constexpr uint64_t kMaxCount = uint64_t{1} << 31;

// Whether a text must have labels. The text that a model is trained on must. Text that a model is asked about
// need not: its samples then have no labels.
enum class LabelsIn : uint8_t { kRequired, kOptional };

class SampleReader {
 public:
  virtual ~SampleReader() = default;

  // Dimensions: ids lie below them. Known from the start.
  virtual uint64_t features() const = 0;
  virtual uint64_t labels() const = 0;

  // The next sample; valid until the next call. False at the end. Throws FormatError "file:line: what was
  // found and what to do".
  virtual bool next(Sample& sample) = 0;

  // Blocks of the input beside the first one, known from the start; and the parts of the sample that next()
  // returned in them, valid until the next call.
  virtual std::vector<BlockShape> other_blocks() const { return {}; }
  virtual std::span<const BlockSample> others() const { return {}; }

  // Whether next() can return without waiting for more text of a stream. (It may still have to wait if a
  // record spans lines.)
  virtual bool ready() const = 0;

  virtual uint64_t bytes() const = 0;   // of text read, decompressed
  virtual double fraction() const = 0;  // part of the file read, in [0, 1]; 0 if unknown
  virtual uint64_t unknown_labels() const {
    return 0;
  }  // occurrences left out so far: the encoder knows no such label
};

}  // namespace modelet::shard
