// ColumnFeatures: how cells of one or several columns of a table become features, in a range of ids of its own. It is
// fitted to the records of a training text, stored in the state of an encoder (shard/data/encode/encoder.h), and then
// applied to any record. Each kind of columns is a class of its own; shard/data/encode/columns_encoder.h puts them
// together. While it is fitted, one thread uses it; then any thread may.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "shard/data/read/cells.h"
#include "shard/format/safetensors.h"

namespace modelet::shard {

inline constexpr uint32_t kNoFeature = UINT32_MAX;

// The features of a sample so far, ascending.
struct FeatureList {
  uint32_t base = 0;  // of the range that is being filled
  std::vector<uint32_t> ids;
  std::vector<float> values;

  void add(uint32_t feature, float value = 1) {
    ids.push_back(base + feature);
    values.push_back(value);
  }
  void clear() {
    ids.clear();
    values.clear();
  }
};

class ColumnFeatures {
 public:
  // Turns records into features; one thread uses it. What it belongs to must outlive it.
  class Appender {
   public:
    virtual ~Appender() = default;
    virtual void append(const CellReader& cells, FeatureList& features) = 0;
  };

  virtual ~ColumnFeatures() = default;

  // Fitting: each record of the training text, numbered from 1, and then the end.
  virtual void count(const CellReader& cells, uint64_t record) = 0;
  virtual void finish(uint64_t records) = 0;

  // Instead of fitting: all features that hashing can give. UsageError if only data tells which there are.
  virtual void know_all() {
    throw UsageError("numbers and dates become features by the values that data has; give data to fit them on, or ignore these columns");
  }

  // As tensors whose names begin with `prefix`; they live as long as this.
  virtual void add_tensors(const std::string& prefix, std::vector<Tensor>& tensors) const = 0;
  // Also instead of fitting. FormatError if the state is damaged.
  virtual void restore(const SafetensorsFile& state, const std::string& prefix) = 0;

  // The rest needs a fitted or restored object.
  virtual uint32_t features() const = 0;
  virtual std::unique_ptr<Appender> appender() const = 0;
};

// The elements of a list whose length only the file knows; FormatError if it is missing or not a list of T.
template <class T>
std::span<const T> list_in(const SafetensorsFile& state, const std::string& name) {
  return state.values<T>(name, {state.at(name).bytes.size() / sizeof(T)});
}

}  // namespace modelet::shard
