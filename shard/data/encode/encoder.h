// Encoder: how a text file of an experiment's format becomes samples. It is fitted on the training text
// (which labels and features there are, how often they occur) and then applied to any text: test data, and
// whatever a checkpoint is asked to predict. Its state is a safetensors file (shard/format/safetensors.h),
// stored with prepared data and in checkpoints, so that an id means the same everywhere.
//
//   metadata   format = modelet-encoder, version, options = TOML of the experiment's keys of the encoding
//   labels.offsets U64 [labels + 1], labels.names U8   label id -> name
//   what else the format needs
//
// The same text and options give the same state, on every node. XMC text needs no encoder: its state is
// empty. Immutable, except for events of histories (add_events()): any thread may use one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/encode/features/column_features.h"
#include "shard/data/encode/features/label_names.h"
#include "shard/data/encode/features/string_table.h"
#include "shard/data/read/csv.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/read/sample_reader.h"
#include "shard/format/safetensors.h"

namespace modelet::shard {

// Version of the meaning of a state.
inline constexpr const char* kEncoderVersion = "2";
// Part of the name of what is prepared from text, so that a text is prepared again after readers have changed.
inline constexpr const char* kReaderVersion = "6";

// A state larger than this is refused.
inline constexpr uint64_t kMaxEncoderBytes = uint64_t{4} << 30;

// What became of records as events.
struct NewEvents {
  uint64_t added = 0;           // were not known yet
  uint64_t unknown_labels = 0;  // labels that the model does not have; records without others are no events
};
// Keeps events somewhere: JSON Lines that are read as events again. If it throws, there are no new events.
using KeepEvents = std::function<void(const std::string& lines)>;

class Encoder {
 public:
  virtual ~Encoder() = default;

  virtual std::vector<std::byte> state() const = 0;
  // The samples of a text, which need not have labels. The encoder must outlive the reader.
  virtual std::unique_ptr<SampleReader> open(LineReader text) const = 0;
  std::unique_ptr<SampleReader> open(const std::filesystem::path& text) const {
    return open(LineReader(text));
  }
  // The samples of the training text. For most formats it is read as any other text.
  virtual std::unique_ptr<SampleReader> open_training(const std::filesystem::path& text) const { return open(text); }
  // The samples of a text that a model is asked about and that has no labels. For most formats open() can tell.
  virtual std::unique_ptr<SampleReader> open_requests(LineReader text) const { return open(std::move(text)); }
  // The samples of rows that a model of columns is asked about: a field for each of its Columns
  // (shard/data/encode/columns.h). Only for formats with columns.
  virtual std::unique_ptr<SampleReader> open_rows(CsvReader rows) const;

  // Of a model with histories: records with labels become events, all of them or, with an error, none; what is opened from
  // now on knows them. `keep` gets those that are new before anybody knows them. Any thread. UsageError if there are no
  // histories.
  virtual bool has_histories() const { return false; }
  virtual NewEvents add_events(LineReader text, const KeepEvents& keep = {}) const;
  // The events that were added and not forgotten (features/live_events.h), as KeepEvents gets them.
  virtual std::string events() const { return {}; }
};

// Called from time to time while fitting, with the bytes of text read and the part of the file read, in [0,
// 1].
using FitProgress = std::function<void(uint64_t bytes, double fraction)>;

// The format of a text: options.format or, if that is auto, what the first line looks like. `options` also
// says how labels begin.
DataFormat format_of(const std::filesystem::path& text, const Encoding& options);

// Throws UsageError for a text that is clearly meant for the other kind of reader: XMC text (a header and a
// sample of ids) where `encoded` words are expected, labelled words where XMC text is.
void refuse_other_kind(const std::filesystem::path& text, bool encoded);

// Reads the whole text. `options.format` is neither auto nor xmc.
std::unique_ptr<Encoder> fit_encoder(const Encoding& options, const std::filesystem::path& text,
                                     const FitProgress& progress = {});

// An encoder that is fitted on nothing: each feature that hashing can give is there, whether a sample has it or not, and these are
// the labels. For words and categories. UsageError for a format, or columns, of which only data tells what features there are, and
// for tables whose labels are columns.
std::unique_ptr<Encoder> hashed_encoder(const Encoding& options, std::span<const std::string> labels);

// Restores an encoder from a state; FormatError if it is damaged. `origin` names it in messages.
std::unique_ptr<Encoder> restore_encoder(std::span<const std::byte> state, const std::string& origin);

// The names of the labels in a state, [labels]; empty for an empty state.
std::vector<std::string> label_names(std::span<const std::byte> state, const std::string& origin);

// The same state with other names of labels, each once. FormatError as above.
std::vector<std::byte> with_label_names(std::span<const std::byte> state, std::span<const std::string> names);

// ---- For the formats ----

// Tensors that all states have; valid as long as `labels`.
std::vector<Tensor> label_tensors(const StringTable& labels);
Metadata encoder_metadata(const Encoding& options);

// A checked state: its options and its labels.
Encoding encoder_options(const SafetensorsFile& state);
StringTable encoder_labels(const SafetensorsFile& state);

inline constexpr uint64_t kRecordsBetweenReports = 4096;  // of the progress of fitting
inline constexpr const char* kTooManySamples = "more than 2^31 - 1 samples; divide the file";

// What training text must have; otherwise `fail` gets the text of the error, and throws it at the last record.
using Fail = std::function<void(const std::string&)>;
void require_label_length(std::string_view label, const Fail& fail);
void require_something(const LabelNames& labels, uint64_t features, uint64_t samples, const Encoding& options,
                       const Fail& fail);
// FormatError unless a state has features.
void require_features(uint64_t features, const SafetensorsFile& state);

}  // namespace modelet::shard
