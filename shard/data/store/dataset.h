// Dataset: sparse samples with labels, in a memory-mapped prepared file (docs/data_format.md) or in the
// memory of this process; the labels of each sample are in memory. Immutable after opening, except by
// add_labels(); any thread may read it. Text is prepared once, through a cache, and never kept in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/array/prefetch.h"
#include "base/experiment/experiment.h"
#include "base/system/file.h"
#include "shard/data/read/sample.h"
#include "shard/data/store/csr.h"
#include "shard/data/store/prepared.h"

namespace modelet::shard {

// Which labels of its samples a data set has: all, or only those of some neurons (ascending), which a node
// that holds these neurons needs. With `alone`, the file may lack the labels of the other neurons
// (node_agent/agent/job/run_data.h).
struct LabelSelection {
  std::optional<std::vector<NeuronRange>> neurons;
  bool alone = false;
};
inline LabelSelection no_labels() { return {.neurons = std::vector<NeuronRange>()}; }

class Dataset {
 public:
  // Opens a prepared file; checks magic, version, sizes, and that every id is in range (FormatError
  // otherwise). `verify` also compares the checksums of all sections (reads the whole file).
  static Dataset open(const std::filesystem::path& path, bool verify = false,
                      const LabelSelection& selection = {});

  // Samples that are in memory already, whose arrays must outlive the data set. UsageError as check_csr().
  static Dataset of(const CsrSamples& samples, Normalize normalize);

  size_t rows() const { return view_.rows; }
  // Of the first block of the input, whose features those of a Sample are. Dimension: ids are in [0, features).
  size_t features() const { return view_.features.shape.features; }
  size_t labels() const { return view_.labels; }
  size_t nonzeros() const { return view_.features.ids.size(); }
  size_t label_entries() const { return view_.label_entries; }  // of all labels
  Normalize normalize() const { return view_.normalize; }
  // State of the encoder that read the text (shard/data/encode/encoder.h), valid as long as the Dataset, and
  // its XXH3; empty and 0: XMC text.
  std::span<const std::byte> encoder() const { return view_.encoder; }
  uint64_t encoder_checksum() const { return view_.encoder_checksum; }
  uint64_t fingerprint() const { return view_.fingerprint; }         // of the samples
  uint64_t unknown_labels() const { return view_.unknown_labels; }   // occurrences that the encoder left out
  std::span<const std::byte> file() const { return file_.bytes(); }  // the prepared file; empty: in memory
  // Valid as long as the Dataset. The sample has the labels that the data set has (LabelSelection); they are
  // valid until add_labels().
  Sample sample(size_t row) const {
    const BlockSample first = view_.features.of(row);
    return {first.features, first.values, labels_.of(row)};
  }
  // Blocks of the input beside the first one.
  std::span<const BlockView> other_blocks() const { return view_.others; }
  size_t label_count(size_t row) const { return view_.label_counts[row]; }  // of all labels of a sample
  // [labels] how many samples have the label of each neuron.
  std::span<const uint32_t> frequencies() const { return view_.frequencies; }
  // Adds labels of samples that this data set does not have (LabelSelection). Sorts `entries`. No thread may
  // read the data set meanwhile.
  void add_labels(std::vector<LabelEntry>& entries) { labels_.add(entries); }
  // Removes the labels of samples that have no neuron; what is said of all labels stays. No thread may read the data
  // set meanwhile.
  void keep_labels(const LabelSpread& spread) { labels_.keep(spread); }
  // Memory of its own: neither the mapped file nor the arrays of CsrSamples.
  size_t memory_bytes() const { return labels_.memory_bytes() + made_.bytes(); }
  // As those of the first block; they request the labels as well.
  void prefetch(size_t row) const {
    view_.features.prefetch(row);
    const auto labels = labels_.of(row);
    prefetch_bytes(labels.data(), labels.size_bytes());
  }
  void prefetch_place(size_t row) const {
    view_.features.prefetch_place(row);
    prefetch_bytes(&view_.label_counts[row], sizeof(uint32_t));
    prefetch_bytes(labels_.place(row), 2 * sizeof(uint64_t));
  }

 private:
  // What a prepared file has and CsrSamples lack.
  struct Made {
    std::vector<uint32_t> label_counts, frequencies;
    std::vector<float> values;  // normalised; empty: those of the samples

    size_t bytes() const {
      return (label_counts.capacity() + frequencies.capacity()) * sizeof(uint32_t) +
             values.capacity() * sizeof(float);
    }
  };

  MappedFile file_;
  Made made_;
  PreparedView view_;  // of the file, or of the samples and what was made
  SampleLabels labels_;
};

// Open a text (plain, .xz, .gz) or a prepared file, and verify it. A text is first prepared into the cache
// folder, unless it is there already (shard/data/store/text_cache.h). The name of the cache entry depends on
// the text's path, size and time of change, and on everything that decides how the text is read. Several
// processes may do this at once. `normalize` applies to both kinds: a prepared file records its own
// normalisation, and a mismatch is a UsageError. A file without samples is a FormatError.
//
// load_training_data: the data that a model is trained on. If its format needs an encoder, that is fitted on
// the text. load_dataset: any other data, read with the encoder whose state is `encoder`: Dataset::encoder()
// of the training data, or the state in a checkpoint. A prepared file must have been made with the same
// encoder.
Dataset load_training_data(const std::filesystem::path& path, Normalize normalize, const Encoding& encoding,
                           const LabelSelection& selection = {}, const PrepareProgress& progress = {});
Dataset load_dataset(const std::filesystem::path& path, Normalize normalize,
                     std::span<const std::byte> encoder = {}, const LabelSelection& selection = {},
                     const PrepareProgress& progress = {});
// Like load_dataset(), for data that is used once: a text that is not in the cache is not kept there.
Dataset load_queries(const std::filesystem::path& path, Normalize normalize,
                     std::span<const std::byte> encoder, const PrepareProgress& progress = {});

// Text -> prepared file, without the cache, as the two functions above do it.
void prepare_training_data(const std::filesystem::path& text, Normalize normalize, const Encoding& encoding,
                           const std::filesystem::path& prepared, const PrepareProgress& progress = {},
                           Existing existing = Existing::kReplace);
void prepare_data(const std::filesystem::path& text, Normalize normalize, std::span<const std::byte> encoder,
                  const std::filesystem::path& prepared, const PrepareProgress& progress = {},
                  Existing existing = Existing::kReplace);

// Names of labels, line = id; plain, .xz or .gz. Fewer lines than `labels` is a FormatError, and so are more, unless the others
// may be those of labels that came later.
std::vector<std::string> load_label_names(const std::filesystem::path& path, size_t labels, bool has_later_ones = false);

// How many samples have each label [labels].
std::vector<uint32_t> count_labels(const Dataset& data);

// Throws UsageError if the two differ in features or labels.
DataShape describe_shape(const Dataset& train, const Dataset& test);
// Of a run whose training data nobody sees (base/experiment/experiment.h, is_private()): what public test data tells,
// and as many training samples as an epoch takes.
DataShape describe_private_shape(const Experiment& experiment, const Dataset& test);

}  // namespace modelet::shard
