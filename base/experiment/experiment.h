// An experiment: everything that determines a training run, its seed included. It is one TOML file;
// docs/experiment.md lists every key. The defaults are here. Key names, ranges and meanings are in the tables
// of fields.cc; the parser, `--set`, validation, the TOML writer and the test of the documentation all use
// these tables. A new key needs a member here, a row there, and the row that the documentation test prints.
// Experiments are plain values, without locks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/choices.h"

namespace modelet {

inline constexpr size_t kMaxHiddenLayers = 16;

struct Experiment {
  struct Data {
    std::string train, test;  // text (also .xz/.gz) or prepared file; relative to the experiment file
    DataFormat format = DataFormat::kAuto;   // of text files
    std::string labels;                      // optional: names of the labels, one per line
    Normalize normalize = Normalize::kNone;  // scale each sample's feature vector
    float validation = 0;                    // share of train that is held out; 0: none
  } data;

  struct Text {  // words of text and csv -> features
    std::string label_prefix = "__label__";
    uint32_t word_ngrams = 1;             // word n-grams of 1 to this many words
    uint32_t min_char = 0, max_char = 0;  // lengths of character n-grams inside words; 0: none
    uint32_t buckets = 1 << 21;           // n-grams are hashed to this many
    uint32_t min_count = 1;               // buckets in fewer training samples are left out
    TextWeight weight = TextWeight::kTf;
  } text;

  struct Csv {
    Delimiter delimiter = Delimiter::kComma;
    bool header = true;                            // the first record names the columns
    std::string labels = "label";                  // column, by name or by number from 1
    Delimiter label_separator = Delimiter::kNone;  // between the labels in that column
    std::vector<std::string> text = {"text"};      // columns of words
  } csv;

  struct Words {  // running text
    WordsTask task = WordsTask::kSkipgram;
    uint32_t window = 5;            // skipgram: words on each side; next: words before
    bool positions = false;         // next: features tell where a word stands
    uint32_t min_count = 5;         // rarer words are left out
    uint32_t vocabulary = 1 << 20;  // at most this many words, the most frequent ones
    float subsample = 1e-4f;        // words above this share of the text are thinned out; 0: none
    uint64_t seed = 1;              // of the thinning
  } words;

  struct Table {  // typed columns of formats table (file syntax: csv) and criteo -> features
    std::vector<std::string> columns;  // see base/experiment/table_layout.h; empty: those of criteo
    uint32_t hash_features = 1 << 20;  // values of categories and crosses are hashed to this many features
    uint32_t bins = 32;                // of a number column
    uint32_t min_count = 2;            // rarer values of a column share one feature
  } table;

  // Format columns (file syntax: csv): the type of each column and its options (base/experiment/column_use.h). The
  // names are the user's. Columns that are not here are not used.
  std::map<std::string, std::string> columns;

  struct Sessions {            // lines of items in order -> features of what came before an item
    uint32_t positions = 3;    // so many last items are features by their place
    uint32_t window = 20;      // so many last items are features without their place
    float decay = 0.8f;        // weight of each of these, as a multiple of that of the item after it
    uint32_t pairs = 2;        // so many last pairs of neighbours are features
    uint32_t buckets = 1 << 20;  // pairs are hashed to this many
    uint32_t min_count = 1;    // rarer items, and pairs of the same bucket, are left out
  } sessions;

  struct Model {
    // Width of each hidden layer, at most kMaxHiddenLayers; the first belongs to the sparse input layer.
    std::vector<uint32_t> hidden = {128};
    Loss loss = Loss::kSoftmax;
    Precision precision = Precision::kFp32;  // how the wide layers, input and output, are stored
    // The direct path from features to labels, beside the hidden layers (shard/data/pairs/pairs.h).
    bool centroids = false;    // logits get a learned multiple of the cosine of sample and centroid
    float centroid_share = 1;  // when rare labels are scored, this factor scales the multiple
    float rare_trust = 1;      // when scoring: trust in the logit of a label with one training sample
    float classifiers = 0;     // when scoring: weight of the margins of linear classifiers; 0: there are none
    uint32_t centroid_pairs = 0;  // pairs kept for a label, those with the largest sums; 0: all
    // Features and labels are the same items (shard/data/pairs/own_items.h).
    bool exclude_own = false;  // a sample's features are never its labels
    float own_weight = 0;      // they often are: weight of an item's value in its own logit
    // Towers: networks of their own for blocks of labels (base/experiment/towers.h).
    uint32_t towers = 1;     // of each division
    uint32_t divisions = 1;  // of the labels into towers, side by side; a label's logits are averaged
    TowerLabels tower_labels = TowerLabels::kClustered;  // how labels are divided
    uint32_t tower_common = 0;  // most frequent labels, which all towers have; their logits are averaged as well
    float tower_samples = 1;  // share of the samples without a label of the tower on which it trains
  } model;

  struct Modelets {                // the partition, which does not depend on the number of nodes
    uint32_t hidden_columns = 32;  // neurons per hidden modelet (multiple of 16)
    uint32_t output_modelets = 8;  // modelets that the output layer is divided into
  } modelets;

  struct Sampling {  // the active set of the output layer
    SamplingMode mode = SamplingMode::kUniform;
    uint32_t uniform = 1024;  // uniform draws in a step, over the whole layer
    float prior = 0;          // when scoring: biases get this multiple of log(chance to be active)
    float sparsity = 0;       // share of the layer's neurons that is active in a step; 0: `uniform` counts
    uint32_t group = 0;       // samples that share an active set; 0: the whole batch
    uint32_t top = 8;         // lsh: candidates kept per sample after the exact re-rank, over the layer
    uint32_t common = 0;  // lsh: neurons with the largest mean logit, ranked for every sample, over the layer
    uint32_t candidates = 8;    // lsh: candidates per sample and modelet that are re-ranked
    uint32_t query_every = 16;  // lsh: one sample in this many retrieves neurons, others use `common`
    RetrievalKind retrieval = RetrievalKind::kLowRank;  // lsh: how candidates are found
    uint32_t rank = 32;                                 // preview: number of directions of the activations
    HashFamilyKind family = HashFamilyKind::kSimHash;
    uint32_t tables = 8;          // L
    uint32_t bits = 12;           // log2 of the buckets of a table
    uint32_t bucket = 16;         // neurons a bucket holds at most
    bool centre = true;           // hash weights and activations after subtracting their means
    uint32_t rehash_every = 100;  // steps between two checks of how stale projections or tables are
    float drift = 0.1f;           // share of a modelet's codes that must be out of date for a re-hash
  } sampling;

  struct Optimizer {
    OptimizerKind kind = OptimizerKind::kAdam;
    float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;  // adam; rmsprop has no beta1, adagrad only epsilon
    bool row_clocks = false;  // adam, rmsprop: bias correction by the number of updates of a row, not of steps
    float momentum = 0.9f;    // sgd
    float clip = 0;           // largest global gradient norm; 0: no clipping
  } optimizer;

  struct Train {
    uint32_t epochs = 8;
    uint32_t batch = 256;  // samples of each replica in a step
    float learning_rate = 1e-3f;
    ScheduleKind schedule = ScheduleKind::kConstant;
    uint32_t warmup_steps = 0;    // linear from 0, before any schedule
    float final_fraction = 0.1f;  // linear, cosine: learning rate at the end, as a fraction
    uint32_t step_epochs = 4;     // step: epochs between two reductions
    float step_factor = 0.5f;     // step: factor of a reduction
    float input_dropout = 0;      // share of each sample's features that a step leaves out
    float hidden_dropout = 0;     // share of each hidden layer's activations that a step leaves out
    uint64_t seed = 1;
    uint32_t threads = 0;           // per node; 0: all cores of the machine
    uint32_t log_every = 50;        // steps between two progress events
    uint32_t evaluate_every = 1;    // epochs between two evaluations; 0: only at the end
    uint32_t patience = 0;          // evaluations without improvement after which training ends; 0: never
    std::string metric = "auto";    // of validation: decides which weights are the best
    uint32_t checkpoint_every = 0;  // steps between two checkpoints; 0: at the end of each epoch
    uint32_t keep_checkpoints = 2;
  } train;

  struct Metrics {  // for propensity-scored metrics; defaults of Jain, Prabhu, Varma, KDD 2016
    float propensity_a = 0.55f, propensity_b = 1.5f;
  } metrics;

  struct Exchange {
    CodecKind codec = CodecKind::kInt8;           // of activations
    CodecKind gradient_codec = CodecKind::kSame;  // of hidden gradients
    uint32_t local_steps = 16;                    // steps of a replica between two synchronisations
    uint32_t micro_batches = 0;  // of a batch; one travels while the next is computed; 0: measured
    bool lz4 = false;            // compress the encoded bytes
    float timeout_seconds = 30;  // a peer that is silent for longer is reported as missing
  } exchange;

  struct Cluster {
    uint32_t replicas = 1;        // groups of nodes that each hold the whole model; 1: all nodes share one
    uint32_t min_nodes = 1;       // a run that has lost nodes waits rather than go on with fewer
    uint32_t max_nodes = 0;       // most nodes that a run grows to; 0: as many as it began with
    uint32_t snapshot_every = 0;  // steps between two snapshots; 0: as often as a budget allows
    // What the replicas make of the mean of their changes (node_agent/replicas/mean_rule.h):
    MeanRule rule = MeanRule::kAverage;
    float rule_rate = 0;         // adam, momentum: of a step; 0: 0.01 and 0.7
    float rule_momentum = 0.9f;  // adam, momentum
    float rule_beta2 = 0.99f;    // adam
    float rule_epsilon = 1e-3f;  // adam
    float proximal = 0.01f;      // prox: factor of the distance to the weights that all agreed on
    float largest_change = 0;    // norm of what a round may change a row by; 0: no bound
    // Of a run with private data (is_private()), in which each replica is an owner:
    Privacy privacy = Privacy::kSums;  // what an owner sends of a round
    uint32_t most_samples = 0;         // of an owner that count for its weight in the mean; 0: no limit
    uint32_t epoch_steps = 0;          // steps that make an epoch
    uint32_t least_owners = 0;         // with which a run goes on; 0: all
    uint32_t owners_per_round = 0;     // that take part in a round; 0: all
    float noise = 0;                   // standard deviation in the sum of a round, in units of `clip`; 0: none
    float clip = 0;                    // norm of all that an owner changes in a round; 0: no bound
  } cluster;
};

// How text becomes samples: the format, and the sections that the formats read.
struct Encoding {
  DataFormat format = DataFormat::kAuto;
  Experiment::Text text;
  Experiment::Csv csv;
  Experiment::Words words;
  Experiment::Table table;
  std::map<std::string, std::string> columns;
  Experiment::Sessions sessions;
};
Encoding encoding_of(const Experiment& experiment);

// Data that stays with its owners: data.train is private:NAME, and the agents that have data of this name are the
// sites of the run, each with a copy of the model (docs/privacy.md).
inline constexpr std::string_view kPrivatePrefix = "private:";
inline bool is_private(const Experiment& experiment) { return experiment.data.train.starts_with(kPrivatePrefix); }
inline std::string private_name(const Experiment& experiment) {
  return is_private(experiment) ? experiment.data.train.substr(kPrivatePrefix.size()) : "";
}
// A name is 1 to 64 letters, digits, '-' and '_'.
bool is_private_name(std::string_view name);
// Whether owners send nothing but masked sums.
inline bool sends_sums(const Experiment& experiment) {
  return is_private(experiment) && experiment.cluster.privacy == Privacy::kSums;
}

// The figure that decides which weights are the best (train.metric). If there is one label, it is always the best
// one, so only AUC tells models apart.
std::string metric_of(const Experiment::Train& train, uint64_t labels);

// Whether each label gets a linear classifier before an evaluation.
constexpr bool has_classifiers(const Experiment::Model& model) {
  return model.centroids && model.classifiers > 0;
}
// Whether neurons are retrieved by the activations, and whether this is done with hash tables.
constexpr bool retrieves_neurons(SamplingMode mode) {
  return mode == SamplingMode::kLsh || mode == SamplingMode::kLshPerSample;
}
constexpr bool uses_hash_tables(const Experiment::Sampling& sampling) {
  return sampling.mode == SamplingMode::kLshPerSample ||
         (sampling.mode == SamplingMode::kLsh && sampling.retrieval == RetrievalKind::kTables);
}
// How many samples of a batch share an active set; the batch's last ones may be fewer.
constexpr uint32_t samples_of_set(const Experiment::Sampling& sampling, uint32_t batch) {
  if (sampling.mode == SamplingMode::kLshPerSample) return 1;
  const bool in_groups = sampling.mode != SamplingMode::kFull && sampling.group > 0;
  return in_groups && sampling.group < batch ? sampling.group : batch;
}
// The codec of gradients. kSame is replaced by the codec of activations.
constexpr CodecKind gradient_codec(const Experiment::Exchange& exchange) {
  return exchange.gradient_codec == CodecKind::kSame ? exchange.codec : exchange.gradient_codec;
}

// The seed of the permutation from labels to output neurons, for all prepared data. It equals the default of
// train.seed, because earlier programs used train.seed for this.
inline constexpr uint64_t kLabelSeed = 1;

// What the data says about the shape of the model; with the experiment it determines the partition.
struct DataShape {
  uint64_t features = 0, labels = 0, train_rows = 0, test_rows = 0;
  double features_per_row = 0, labels_per_row = 0;  // means over train, for predictions
  uint64_t encoder = 0;      // XXH3 of the state of the text's encoder (shard/data/encode/encoder.h); 0: none
  uint64_t fingerprint = 0;  // of the content of the training data (Dataset::fingerprint()); 0: not known
  uint64_t label_seed = kLabelSeed;  // which neuron is which label (shard/data/store/label_spread.h)
  // The features that occur in the training data, which have rows in the input layer; 0: all.
  uint64_t occurring_features = 0;
  // Of a tower (base/experiment/towers.h): the labels of the whole model, of which `labels` are the tower's. 0: the
  // network has all labels.
  uint64_t all_labels = 0;

  uint64_t input_rows() const { return occurring_features > 0 ? occurring_features : features; }
};

// Reads and validates a file; paths inside become absolute (relative to the file's folder).
// `overrides` are "section.key=value" in TOML syntax (strings need no quotes); relative paths in them start
// at the current folder, where the user typed them. Throws UsageError with file, line and, for an unknown
// key, the nearest known one.
Experiment load_experiment(const std::filesystem::path& path, const std::vector<std::string>& overrides = {});

// Where `modelet tune` keeps its results for an experiment: NAME.tuned.toml beside NAME.toml. If that file
// exists, load_experiment() takes its values as defaults: keys in the experiment file and overrides win. It
// may set only keys of [sampling].
std::filesystem::path tuned_file(const std::filesystem::path& experiment);

// Reads an experiment from text, without tuned values. `origin` replaces the file name in messages, and its
// folder anchors relative paths.
Experiment parse_experiment(std::string_view toml, const std::filesystem::path& origin,
                            const std::vector<std::string>& overrides = {});

// The experiment of a model that an earlier release may have trained: values that were removed since become
// those nearest to them.
Experiment parse_recorded_experiment(std::string_view toml, const std::filesystem::path& origin);

// Complete TOML with every key; parse_experiment(to_toml(e)) equals e.
std::string to_toml(const Experiment& experiment);

// An encoding as TOML, with those keys that its format reads, and back: what an encoder of text remembers.
std::string to_toml(const Encoding& encoding);
Encoding parse_encoding(std::string_view toml, const std::filesystem::path& origin,
                        const std::vector<std::string>& overrides = {});

// One key, described in text for people.
struct ExperimentField {
  std::string key, type, default_value, range, unit, meaning;
};
std::vector<ExperimentField> experiment_fields();

}  // namespace modelet
