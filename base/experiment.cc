#include "base/experiment.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <concepts>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/file.h"
#include "base/padding.h"
#include "base/suggest.h"
#include "base/table_layout.h"

namespace modelet {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;  // an experiment file is a page of text
constexpr size_t kMaxHiddenLayers = 16;
constexpr size_t kMaxColumns = 4096;     // names in a list of columns
constexpr uint32_t kMaxWidth = 1 << 16;  // of a hidden layer
constexpr uint32_t kColumnAlignment = kVectorFloats;
constexpr size_t kMaxStringBytes = 4096;         // PATH_MAX
constexpr double kMaxSeed = 9007199254740991.0;  // 2^53 - 1: survives JSON readers that know only doubles
constexpr double kAnyCount = std::numeric_limits<uint32_t>::max();

// Spellings of the enums, in the order of their values.
constexpr auto spellings(Normalize) { return std::to_array<std::string_view>({"none", "l2"}); }
constexpr auto spellings(Precision) { return std::to_array<std::string_view>({"fp32", "bf16"}); }
constexpr auto spellings(DataFormat) {
  return std::to_array<std::string_view>({"auto", "xmc", "text", "csv", "words", "table", "criteo"});
}
constexpr auto spellings(TextWeight) { return std::to_array<std::string_view>({"tf", "tfidf"}); }
constexpr auto spellings(WordsTask) { return std::to_array<std::string_view>({"skipgram", "next"}); }
constexpr auto spellings(Delimiter) {
  return std::to_array<std::string_view>({"comma", "tab", "semicolon", "pipe", "space", "none"});
}
constexpr auto spellings(Loss) { return std::to_array<std::string_view>({"softmax", "sigmoid"}); }
constexpr auto spellings(SamplingMode) {
  return std::to_array<std::string_view>({"full", "uniform", "lsh", "lsh_per_sample"});
}
constexpr auto spellings(HashFamilyKind) {
  return std::to_array<std::string_view>({"dwta", "simhash", "minhash"});
}
constexpr auto spellings(OptimizerKind) {
  return std::to_array<std::string_view>({"adam", "adagrad", "sgd"});
}
constexpr auto spellings(ScheduleKind) {
  return std::to_array<std::string_view>({"constant", "linear", "cosine", "step"});
}

template <class T>
concept Enum = std::is_enum_v<T>;
template <class T>
concept WholeNumber = std::same_as<T, uint32_t> || std::same_as<T, uint64_t>;

// Where a field's value lives.
using Target =
    std::variant<std::string*, bool*, uint32_t*, uint64_t*, float*, std::vector<uint32_t>*,
                 std::vector<std::string>*, Normalize*, Precision*, DataFormat*, TextWeight*, WordsTask*,
                 Delimiter*, Loss*, SamplingMode*, HashFamilyKind*, OptimizerKind*, ScheduleKind*>;

enum class Text { kNone, kPath, kRequiredPath, kWord, kColumn };  // what a string field holds

struct Field {
  std::string_view key;  // "section.name"
  std::function<Target(Experiment&)> target;
  std::string_view unit, meaning;
  double low = 0, high = 0;  // numbers (of a list: its elements), both ends included
  Text text = Text::kNone;
};

template <class Section, class T>
std::function<Target(Experiment&)> at(Section Experiment::*section, T Section::*member) {
  return [=](Experiment& e) -> Target { return &(e.*section.*member); };
}

const std::vector<Field>& fields() {
  using E = Experiment;
  static const std::vector<Field> table = {
      {"data.train", at(&E::data, &E::Data::train), "",
       "training samples: text (plain, .xz, .gz) or a prepared file", 0, 0, Text::kRequiredPath},
      {"data.test", at(&E::data, &E::Data::test), "", "test samples, in the same formats", 0, 0,
       Text::kRequiredPath},
      {"data.format", at(&E::data, &E::Data::format), "",
       "of text: xmc (numbers), text (words; labels begin with text.label_prefix), csv, words (running "
       "text), table (typed columns), criteo (click logs); auto: text if the first line has a label, else "
       "xmc"},
      {"data.labels", at(&E::data, &E::Data::labels), "", "names of the labels, one a line; line = label id",
       0, 0, Text::kPath},
      {"data.normalize", at(&E::data, &E::Data::normalize), "", "scaling of each sample's feature vector"},
      {"data.validation", at(&E::data, &E::Data::validation), "",
       "share of data.train, drawn by the seed, that is held out: evaluations use it instead of data.test, "
       "which is used once, at the end, with the best weights; 0: none",
       0, 0.5},

      {"text.label_prefix", at(&E::text, &E::Text::label_prefix), "",
       "format text: words that begin with it are labels", 0, 0, Text::kWord},
      {"text.word_ngrams", at(&E::text, &E::Text::word_ngrams), "words",
       "features are the n-grams of 1 to this many words", 1, 10},
      {"text.min_char", at(&E::text, &E::Text::min_char), "characters",
       "shortest character n-gram inside a word, with < and > as the word's ends", 0, 64},
      {"text.max_char", at(&E::text, &E::Text::max_char), "characters",
       "longest character n-gram inside a word; 0: no character n-grams", 0, 64},
      {"text.buckets", at(&E::text, &E::Text::buckets), "buckets",
       "n-grams are hashed to this many; only buckets that occur in training become features", 16, 1 << 26},
      {"text.min_count", at(&E::text, &E::Text::min_count), "samples",
       "buckets that occur in fewer training samples are left out", 1, kAnyCount},
      {"text.weight", at(&E::text, &E::Text::weight), "",
       "value of a feature: tf, its occurrences in the sample; tfidf, (1 + ln tf) times (1 + ln of (1 + "
       "samples) / (1 + "
       "training samples with it))"},

      {"csv.delimiter", at(&E::csv, &E::Csv::delimiter), "", "between the columns of a record"},
      {"csv.header", at(&E::csv, &E::Csv::header), "", "the first record names the columns"},
      {"csv.labels", at(&E::csv, &E::Csv::labels), "", "column of the labels, by name or by number from 1", 0,
       0, Text::kColumn},
      {"csv.label_separator", at(&E::csv, &E::Csv::label_separator), "",
       "between several labels of a sample; none: the whole column is one label"},
      {"csv.text", at(&E::csv, &E::Csv::text), "", "columns of words; [text] says which features they become",
       0, 0, Text::kColumn},

      {"words.task", at(&E::words, &E::Words::task), "",
       "skipgram: a word tells its neighbours; next: the words before tell the next one"},
      {"words.window", at(&E::words, &E::Words::window), "words",
       "neighbours on each side; next: words before", 1, 100},
      {"words.positions", at(&E::words, &E::Words::positions), "",
       "next: a word is another feature at each distance"},
      {"words.min_count", at(&E::words, &E::Words::min_count), "occurrences", "rarer words are left out", 1,
       kAnyCount},
      {"words.vocabulary", at(&E::words, &E::Words::vocabulary), "words",
       "at most so many words, the most frequent ones", 2, 1 << 24},
      {"words.subsample", at(&E::words, &E::Words::subsample), "",
       "share of the text from which on occurrences of a word are left out by chance; 0: all stay", 0, 1},
      {"words.seed", at(&E::words, &E::Words::seed), "", "start of the choice of those occurrences", 0,
       kMaxSeed},

      {"table.columns", at(&E::table, &E::Table::columns), "",
       "formats table and criteo: what the columns are, as KIND:NAMES; kinds label, cat, bin, num, log, "
       "cross, skip "
       "(docs/clicks.md); empty: those of the Criteo logs"},
      {"table.hash_features", at(&E::table, &E::Table::hash_features), "features",
       "values of categories and crosses are hashed to this many", 16, 1 << 28},
      {"table.bins", at(&E::table, &E::Table::bins), "bins",
       "of a number column of kind bin, equally many training samples in each", 2, 1024},
      {"table.min_count", at(&E::table, &E::Table::min_count), "samples",
       "values of categories and crosses in fewer training samples share one feature a column", 1, kAnyCount},

      {"model.hidden", at(&E::model, &E::Model::hidden), "neurons",
       "width of each hidden layer, a multiple of 16; the first belongs to the sparse input layer",
       kColumnAlignment, kMaxWidth},
      {"model.loss", at(&E::model, &E::Model::loss), "",
       "softmax: a sample's labels share the target mass; sigmoid: one binary choice a label"},
      {"model.precision", at(&E::model, &E::Model::precision), "",
       "how the wide layers (input and output) keep weights and optimiser state, and multiply: bf16 takes "
       "half "
       "the memory, with stochastic rounding; sums are fp32 in both"},

      {"modelets.hidden_columns", at(&E::modelets, &E::Modelets::hidden_columns), "neurons",
       "neurons of a hidden modelet, a multiple of 16", kColumnAlignment, kMaxWidth},
      {"modelets.output_modelets", at(&E::modelets, &E::Modelets::output_modelets), "modelets",
       "pieces of the output layer", 1, 65536},

      {"sampling.mode", at(&E::sampling, &E::Sampling::mode), "", "active set of the output layer"},
      {"sampling.uniform", at(&E::sampling, &E::Sampling::uniform), "neurons",
       "uniform draws a step, over the whole layer (all modes but full)", 0, kAnyCount},
      {"sampling.logq", at(&E::sampling, &E::Sampling::logq), "",
       "softmax: add -log of the chance of being drawn to the logits of uniform draws (logQ correction), so "
       "that "
       "they stand for all neurons that were not; without it, rare labels come out too high"},
      {"sampling.sparsity", at(&E::sampling, &E::Sampling::sparsity), "",
       "share of the output neurons that is active in a step: labels of the batch, then retrieved neurons "
       "for at "
       "most half of the rest, and draws that fill it up, in place of sampling.uniform; 0: not used",
       0, 1},
      {"sampling.top", at(&E::sampling, &E::Sampling::top), "neurons",
       "lsh: candidates kept per sample after the exact re-rank, over the whole layer: split evenly over the "
       "output "
       "modelets, each share rounded up",
       1, 65536},
      {"sampling.common", at(&E::sampling, &E::Sampling::common), "neurons",
       "lsh: neurons with the largest mean logit, which are ranked exactly for every sample beside what the "
       "tables "
       "find, over the whole layer: split evenly over the output modelets",
       0, 1 << 20},
      {"sampling.query_every", at(&E::sampling, &E::Sampling::query_every), "steps",
       "lsh: a sample in so many asks the tables, another one in each step; the others rank the common "
       "neurons "
       "only",
       1, 1024},
      {"sampling.candidates", at(&E::sampling, &E::Sampling::candidates), "neurons",
       "lsh: candidates per sample and modelet that are re-ranked exactly", 1, 65536},
      {"sampling.family", at(&E::sampling, &E::Sampling::family), "", "lsh: hash family"},
      {"sampling.tables", at(&E::sampling, &E::Sampling::tables), "tables",
       "lsh: hash tables of a modelet (L)", 1, 1024},
      {"sampling.bits", at(&E::sampling, &E::Sampling::bits), "bits", "lsh: log2 of the buckets of a table",
       1, 24},
      {"sampling.bucket", at(&E::sampling, &E::Sampling::bucket), "neurons",
       "lsh: neurons a bucket holds at most", 1, 65536},
      {"sampling.centre", at(&E::sampling, &E::Sampling::centre), "",
       "lsh: hash weights and activations after subtracting their means"},
      {"sampling.rehash_every", at(&E::sampling, &E::Sampling::rehash_every), "steps",
       "lsh: steps between two looks at how far the tables have fallen behind the weights", 1, kAnyCount},
      {"sampling.drift", at(&E::sampling, &E::Sampling::drift), "",
       "lsh: share of a modelet's hash codes that must be out of date, by a sample of its changed rows, for "
       "them to "
       "be hashed again in the background",
       0, 1},

      {"optimizer.kind", at(&E::optimizer, &E::Optimizer::kind), "", "update rule"},
      {"optimizer.beta1", at(&E::optimizer, &E::Optimizer::beta1), "", "adam: decay of the mean", 0, 0.9999},
      {"optimizer.beta2", at(&E::optimizer, &E::Optimizer::beta2), "", "adam: decay of the mean square", 0,
       0.999999},
      {"optimizer.epsilon", at(&E::optimizer, &E::Optimizer::epsilon), "",
       "adam, adagrad: added to the root of the mean square", 1e-12, 1},
      {"optimizer.row_clocks", at(&E::optimizer, &E::Optimizer::row_clocks), "",
       "adam: bias correction by the updates that a row has had; false: by the step, as for dense layers, "
       "which "
       "begins rare rows with updates three times as large"},
      {"optimizer.momentum", at(&E::optimizer, &E::Optimizer::momentum), "", "sgd: momentum", 0, 0.9999},
      {"optimizer.clip", at(&E::optimizer, &E::Optimizer::clip), "",
       "largest global gradient norm; 0: no clipping", 0, 1e6},

      {"train.epochs", at(&E::train, &E::Train::epochs), "epochs", "passes over data.train", 1, 100000},
      {"train.batch", at(&E::train, &E::Train::batch), "samples", "samples a step of each replica", 1,
       1 << 20},
      {"train.learning_rate", at(&E::train, &E::Train::learning_rate), "",
       "largest learning rate of the schedule", 1e-9, 100},
      {"train.schedule", at(&E::train, &E::Train::schedule), "",
       "learning rate after the warm-up: constant; linear or cosine decay to final_fraction; reductions by "
       "step_factor"},
      {"train.warmup_steps", at(&E::train, &E::Train::warmup_steps), "steps",
       "linear rise from 0, before any schedule", 0, kAnyCount},
      {"train.final_fraction", at(&E::train, &E::Train::final_fraction), "",
       "linear, cosine: learning rate at the end, as a fraction of train.learning_rate", 0, 1},
      {"train.step_epochs", at(&E::train, &E::Train::step_epochs), "epochs",
       "step: epochs between two reductions", 1, 100000},
      {"train.step_factor", at(&E::train, &E::Train::step_factor), "", "step: factor of a reduction", 1e-6,
       1},
      {"train.input_dropout", at(&E::train, &E::Train::input_dropout), "",
       "share of each sample's features that a step leaves out at random; the others are scaled up", 0, 0.95},
      {"train.hidden_dropout", at(&E::train, &E::Train::hidden_dropout), "",
       "share of each hidden layer's activations that a step leaves out at random; the others are scaled up",
       0, 0.95},
      {"train.seed", at(&E::train, &E::Train::seed), "", "start of all random choices", 0, kMaxSeed},
      {"train.threads", at(&E::train, &E::Train::threads), "threads",
       "threads of a node; 0: all cores of the machine", 0, 1024},
      {"train.log_every", at(&E::train, &E::Train::log_every), "steps", "steps between two progress events",
       1, kAnyCount},
      {"train.evaluate_every", at(&E::train, &E::Train::evaluate_every), "epochs",
       "epochs between two evaluations; 0: only at the end", 0, 100000},
      {"train.patience", at(&E::train, &E::Train::patience), "evaluations",
       "evaluations without improvement after which training ends (needs data.validation); 0: never", 0,
       100000},
      {"train.metric", at(&E::train, &E::Train::metric), "",
       "figure of the held-out samples that decides which weights are the best, as events name it: p_at_1, "
       "ndcg_at_5, psp_at_3, auc ...",
       0, 0, Text::kWord},
      {"train.checkpoint_every", at(&E::train, &E::Train::checkpoint_every), "steps",
       "steps between two checkpoints; 0: at the end of each epoch", 0, kAnyCount},
      {"train.keep_checkpoints", at(&E::train, &E::Train::keep_checkpoints), "checkpoints",
       "newest checkpoints that are kept", 1, 1000},

      {"metrics.propensity_a", at(&E::metrics, &E::Metrics::propensity_a), "",
       "psp: A of the labels' propensities (Wikipedia sets 0.5, Amazon sets 0.6)", 0, 10},
      {"metrics.propensity_b", at(&E::metrics, &E::Metrics::propensity_b), "",
       "psp: B of the labels' propensities (Wikipedia sets 0.4, Amazon sets 2.6)", 0.001, 1000},

      {"exchange.codec", at(&E::exchange, &E::Exchange::codec), "",
       "codec of activations between nodes: none (exact), bf16, int8, int4 (docs/wire_format.md); auto: "
       "chosen by measured links and errors",
       0, 0, Text::kWord},
      {"exchange.gradient_codec", at(&E::exchange, &E::Exchange::gradient_codec), "",
       "codec of hidden gradients between nodes, and of what replicas changed: those of exchange.codec, or "
       "topk; same: that of activations",
       0, 0, Text::kWord},
      {"exchange.local_steps", at(&E::exchange, &E::Exchange::local_steps), "steps",
       "with several replicas: steps that each makes by itself between two synchronisations", 1, 100000},
      {"exchange.micro_batches", at(&E::exchange, &E::Exchange::micro_batches), "pieces",
       "pieces of a batch: while one travels the next is computed; 0: as many as steps are fastest with, "
       "measured "
       "in the run; changes no result",
       0, 8},
      {"exchange.lz4", at(&E::exchange, &E::Exchange::lz4), "", "compress the encoded bytes"},
      {"exchange.timeout_seconds", at(&E::exchange, &E::Exchange::timeout_seconds), "seconds",
       "a peer that is silent for longer is reported as missing", 0.1, 86400},

      {"cluster.replicas", at(&E::cluster, &E::Cluster::replicas), "replicas",
       "the nodes form so many equal groups, each of which trains a copy of the model on samples of its own; "
       "1: "
       "one model over all nodes; as many as nodes: a whole model on each",
       1, 1024},
  };
  return table;
}

std::string_view section_of(std::string_view key) { return key.substr(0, key.find('.')); }
std::string_view name_of(std::string_view key) { return key.substr(key.find('.') + 1); }

const Field* find_field(std::string_view key) {
  const auto it = std::ranges::find(fields(), key, &Field::key);
  return it == fields().end() ? nullptr : &*it;
}

bool is_section(std::string_view name) {
  return std::ranges::any_of(fields(), [&](const Field& f) { return section_of(f.key) == name; });
}

// ---- Messages ----

std::string join(std::span<const std::string_view> words) {
  std::string text;
  for (const std::string_view word : words) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

// Untrusted text in a message: one line, limited length.
std::string shown(std::string_view text) {
  constexpr size_t kShown = 80;
  std::string result = "'";
  for (const char c : text.substr(0, kShown))
    result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return result + (text.size() > kShown ? "...'" : "'");
}

// "; did you mean 'train.epochs'?": the known key nearest to `key`, wherever it stands (a right name in the
// wrong section counts as one mistake), else where to look.
std::string key_suggestion(std::string_view key) {
  constexpr size_t kLongestKey = 64;
  if (key.size() > kLongestKey) return {};
  const Field* nearest = nullptr;
  size_t distance = std::max<size_t>(2, key.size() / 3) + 1;
  for (const Field& field : fields()) {
    const size_t d =
        std::min(edit_distance(key, field.key), 1 + edit_distance(name_of(key), name_of(field.key)));
    if (d < distance) {
      distance = d;
      nearest = &field;
    }
  }
  return nearest == nullptr ? "; docs/experiment.md lists every key"
                            : "; did you mean '" + std::string(nearest->key) + "'?";
}

// ---- Values as text ----

template <class Number>
std::string number_text(Number value) {
  std::array<char, 40> buffer;
  const auto end =
      std::to_chars(buffer.begin(), buffer.end(), value).ptr;  // floats: shortest that reads back equal
  return {buffer.begin(), end};
}

std::string toml_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}
std::string toml_text(bool value) { return value ? "true" : "false"; }
template <WholeNumber T>
std::string toml_text(T value) {
  return number_text(value);
}
std::string toml_text(float value) { return number_text(value); }
template <class T>
std::string toml_text(const std::vector<T>& value) {
  std::string text;
  for (const T& element : value) text += (text.empty() ? "" : ", ") + toml_text(element);
  return "[" + text + "]";
}
template <Enum T>
std::string toml_text(T value) {
  return toml_text(std::string(spellings(T{})[static_cast<size_t>(value)]));
}

template <class T>
std::string_view type_name() {
  if constexpr (std::same_as<T, bool>) return "boolean";
  if constexpr (WholeNumber<T>) return "whole number";
  if constexpr (std::same_as<T, float>) return "number";
  if constexpr (std::same_as<T, std::vector<uint32_t>>) return "list of whole numbers";
  if constexpr (std::same_as<T, std::vector<std::string>>) return "list of strings";
  return "string";
}

template <class T>
std::string range_text(const Field& field) {
  const auto interval = [&] {
    if constexpr (std::same_as<T, float>) return number_text(field.low) + " to " + number_text(field.high);
    return number_text(static_cast<uint64_t>(field.low)) + " to " +
           number_text(static_cast<uint64_t>(field.high));
  };
  if constexpr (Enum<T>) return join(spellings(T{}));
  if constexpr (std::same_as<T, bool>) return "true, false";
  if constexpr (WholeNumber<T> || std::same_as<T, float>) return interval();
  if constexpr (std::same_as<T, std::vector<uint32_t>>)
    return "1 to " + number_text(kMaxHiddenLayers) + " of " + interval();
  if constexpr (std::same_as<T, std::vector<std::string>>) return "columns; may be empty";
  switch (field.text) {
    case Text::kRequiredPath:
      return "a path; required";
    case Text::kPath:
      return "a path, or empty";
    case Text::kWord:
      return "a word";
    case Text::kColumn:
      return "a column, or empty";
    case Text::kNone:
      return "";
  }
  return "";
}

// ---- Reading one value ----

std::string kind_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::string:
      return "string";
    case toml::node_type::integer:
      return "whole number";
    case toml::node_type::floating_point:
      return "number with a fraction";
    case toml::node_type::boolean:
      return "boolean";
    case toml::node_type::array:
      return "list";
    case toml::node_type::table:
      return "table";
    default:
      return "date or time";
  }
}

// What a value is read from: it names the place in messages and anchors relative paths.
struct Source {
  std::string place;  // "file:line" or "--set ..."
  std::filesystem::path folder;
};

class ValueReader {
 public:
  ValueReader(const Field& field, const toml::node& node, const Source& source)
      : field_(field), node_(node), source_(source) {}

  template <class T>
  void read(T& value) const {
    if constexpr (std::same_as<T, bool>) {
      const auto given = node_.value_exact<bool>();
      if (!given) wrong_type<T>(node_);
      value = *given;
    } else if constexpr (WholeNumber<T>) {
      value = whole_number<T, T>(node_);
    } else if constexpr (std::same_as<T, float>) {
      if (!node_.is_number()) wrong_type<T>(node_);
      const double given = node_.is_integer() ? static_cast<double>(node_.as_integer()->get())
                                              : node_.as_floating_point()->get();
      value = static_cast<float>(given);
      // Compared as floats, so that a limit that is written back and read again is still inside.
      if (!(value >= static_cast<float>(field_.low) && value <= static_cast<float>(field_.high)))
        bad_value<T>(number_text(given));
    } else if constexpr (std::same_as<T, std::vector<uint32_t>>) {
      read_list(value);
    } else if constexpr (std::same_as<T, std::vector<std::string>>) {
      read_strings(value);
    } else if constexpr (Enum<T>) {
      const std::string given = string<T>(node_);
      const auto names = spellings(T{});
      const auto it = std::ranges::find(names, given);
      if (it == names.end()) bad_value<T>(shown(given));
      value = static_cast<T>(it - names.begin());
    } else {
      read_string(value);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UsageError(source_.place + ": " + std::string(field_.key) + " " + what);
  }

  template <class T>
  [[noreturn]] void bad_value(const std::string& given) const {
    fail("is " + given + "; it must be " + (Enum<T> ? "one of " : "") + range_text<T>(field_) +
         (field_.unit.empty() ? "" : " (" + std::string(field_.unit) + ")"));
  }

  template <class T>
  [[noreturn]] void wrong_type(const toml::node& found) const {
    fail("must be a " + std::string(type_name<T>()) + ", but there is a " + kind_of(found));
  }

  // `Whole` is the type of the whole field, for messages.
  template <class Whole>
  std::string string(const toml::node& node) const {
    const auto given = node.value_exact<std::string>();
    if (!given) wrong_type<Whole>(node);
    if (given->size() > kMaxStringBytes)
      fail("is " + number_text(given->size()) + " bytes long, more than the limit of " +
           number_text(kMaxStringBytes));
    if (std::ranges::any_of(*given, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
      fail("contains a control character");
    return *given;
  }

  template <class T, class Whole>
  T whole_number(const toml::node& node) const {
    const auto given = node.value_exact<int64_t>();
    if (!given) wrong_type<Whole>(node);
    if (*given < 0 || static_cast<double>(*given) < field_.low || static_cast<double>(*given) > field_.high)
      bad_value<Whole>(number_text(*given));
    return static_cast<T>(*given);
  }

  void read_list(std::vector<uint32_t>& value) const {
    using List = std::vector<uint32_t>;
    const toml::array* given = node_.as_array();
    if (given == nullptr) wrong_type<List>(node_);
    if (given->empty() || given->size() > kMaxHiddenLayers)
      bad_value<List>("a list of " + number_text(given->size()));
    value.clear();
    for (const toml::node& element : *given) value.push_back(whole_number<uint32_t, List>(element));
  }

  void read_strings(std::vector<std::string>& value) const {
    using List = std::vector<std::string>;
    const toml::array* given = node_.as_array();
    if (given == nullptr) wrong_type<List>(node_);
    if (given->size() > kMaxColumns)
      fail("has " + number_text(given->size()) + " columns, more than the limit of " +
           number_text(kMaxColumns));
    value.clear();
    for (const toml::node& element : *given) value.push_back(string<List>(element));
  }

  void read_string(std::string& value) const {
    value = string<std::string>(node_);
    if (field_.text == Text::kWord) {
      const auto in_word = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; };
      if (value.empty() || !std::ranges::all_of(value, in_word)) bad_value<std::string>(shown(value));
    } else if (field_.text != Text::kColumn && !value.empty()) {
      value = (source_.folder / value).lexically_normal().string();
    }
  }

  const Field& field_;
  const toml::node& node_;
  const Source& source_;
};

// ---- The file, the overrides, the whole ----

toml::table parse_toml(std::string_view text, const std::string& place) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    const auto at_position = e.source().begin;
    throw UsageError(place + ":" + number_text(at_position.line) + ":" + number_text(at_position.column) +
                     ": " + std::string(e.description()));
  }
}

class Parser {
 public:
  explicit Parser(const std::filesystem::path& origin)
      : origin_(origin.string()), folder_(std::filesystem::absolute(origin).parent_path()) {}

  // Defaults that were measured for this experiment.
  void read_tuned(std::string_view text, const std::string& origin) {
    const toml::table root = parse_toml(text, origin);
    const toml::table* sampling = root["sampling"].as_table();
    if (sampling == nullptr || root.size() != 1)
      throw UsageError(origin +
                       ": must hold one section, [sampling]; make it again with modelet tune, or remove it");
    for (const auto& [key, value] : *sampling)
      set("sampling." + std::string(key.str()), value,
          {origin + ":" + number_text(key.source().begin.line), folder_});
  }

  void read_file(std::string_view text) {
    if (text.size() > kMaxFileBytes)
      throw UsageError(origin_ + ": " + number_text(text.size()) + " bytes, more than the limit of " +
                       number_text(kMaxFileBytes) + "; is this an experiment file?");
    const toml::table root = parse_toml(text, origin_);
    for (const auto& [name, node] : root) {
      const std::string place = place_of(name);
      if (!is_section(name.str())) {
        if (node.is_table()) throw unknown_section(place, name.str());
        throw unknown_key(place, name.str());
      }
      const toml::table* section = node.as_table();
      if (section == nullptr)
        throw UsageError(place + ": '" + std::string(name.str()) + "' is a section: write [" +
                         std::string(name.str()) + "] and its keys below");
      for (const auto& [key, value] : *section)
        set(std::string(name.str()) + "." + std::string(key.str()), value, {place_of(key), folder_});
    }
  }

  void override_with(const std::string& argument) {
    const std::string place = "--set " + shown(argument);
    const size_t equals = argument.find('=');
    if (equals == std::string::npos || argument.find('\n') != std::string::npos)
      throw UsageError(place + ": write it as section.key=value");
    const auto trim = [](std::string_view s) {
      const size_t first = s.find_first_not_of(" \t"), last = s.find_last_not_of(" \t");
      return std::string(first == std::string_view::npos ? "" : s.substr(first, last - first + 1));
    };
    const std::string key = trim(argument.substr(0, equals));
    std::string text = trim(argument.substr(equals + 1));
    const Field* field = find_field(key);
    if (field == nullptr) throw unknown_key(place, key);
    if (takes_text(*field) && !text.starts_with('"') && !text.starts_with('\'')) text = toml_text(text);
    toml::table parsed;
    try {
      parsed = toml::parse("value = " + text);
    } catch (const toml::parse_error& e) {
      throw UsageError(place + ": the value is not valid TOML: " + std::string(e.description()));
    }
    set(key, *parsed.get("value"), {place, std::filesystem::current_path()});
  }

  // Checks what no single value shows.
  Experiment finish() {
    for (const Field& field : fields()) {
      if (field.text == Text::kRequiredPath && std::get<std::string*>(field.target(experiment_))->empty())
        throw UsageError(origin_ + ": " + std::string(field.key) +
                         " is missing: " + std::string(field.meaning));
    }
    check_encoding();
    const auto& modelets = experiment_.modelets;
    const auto& sampling = experiment_.sampling;
    if (modelets.hidden_columns % kColumnAlignment != 0)
      fail("modelets.hidden_columns", "is " + number_text(modelets.hidden_columns) +
                                          "; it must be a multiple of " + number_text(kColumnAlignment));
    for (const uint32_t width : experiment_.model.hidden) require_whole_vectors(width);
    const bool hashed = sampling.mode == SamplingMode::kLsh || sampling.mode == SamplingMode::kLshPerSample;
    const uint64_t candidates = uint64_t{sampling.candidates} * modelets.output_modelets;
    if (sampling.logq && experiment_.model.loss != Loss::kSoftmax)
      fail("sampling.logq",
           "corrects the normaliser of the softmax; model.loss is sigmoid, which has none: leave "
           "it out");
    if (hashed && sampling.top > candidates)
      fail("sampling.top", "is " + number_text(sampling.top) + ", more than the " + number_text(candidates) +
                               " candidates of a sample (sampling.candidates x modelets.output_modelets)");
    if (experiment_.exchange.codec == "topk")
      fail("exchange.codec",
           "is topk, which leaves out most of a row: fit for gradients, not for activations; set "
           "exchange.gradient_codec");
    if (experiment_.train.patience > 0 && experiment_.data.validation == 0)
      fail("train.patience",
           "needs samples to judge by that are not the test's: set data.validation, the share "
           "of data.train to hold out (such as 0.05)");
    return std::move(experiment_);
  }

  // The same of an experiment of which only the keys of the encoding are given.
  Experiment finish_encoding() {
    check_encoding();
    return std::move(experiment_);
  }

 private:
  void check_encoding() const {
    const auto& text = experiment_.text;
    if ((text.min_char == 0) != (text.max_char == 0) || text.min_char > text.max_char)
      fail("text.min_char", "is " + number_text(text.min_char) + " and text.max_char " +
                                number_text(text.max_char) +
                                "; both must be 0, or 1 <= min_char <= max_char");
    if (experiment_.csv.delimiter == Delimiter::kNone || experiment_.csv.delimiter == Delimiter::kSpace)
      fail("csv.delimiter", "must be comma, tab, semicolon or pipe");
    const DataFormat format = experiment_.data.format;
    if (format != DataFormat::kTable && format != DataFormat::kCriteo) return;
    try {
      table_layout(experiment_);
    } catch (const UsageError& e) {
      fail("table.columns", e.what());
    }
  }

  static bool takes_text(const Field& field) {
    Experiment scratch;
    return std::visit(
        [](auto* value) {
          using T = std::remove_pointer_t<decltype(value)>;
          return std::same_as<T, std::string> || Enum<T>;
        },
        field.target(scratch));
  }

  void require_whole_vectors(uint32_t width) const {
    if (width % kColumnAlignment == 0) return;
    const uint32_t below = width - width % kColumnAlignment,
                   above = below + kColumnAlignment;  // width: in range
    fail("model.hidden", "has a layer of " + number_text(width) + " neurons; widths must be multiples of " +
                             number_text(kColumnAlignment) + ", because kernels process whole vectors of " +
                             number_text(kColumnAlignment) + " floats; the nearest are " +
                             number_text(below) + " and " + number_text(above));
  }

  static UsageError unknown_key(const std::string& place, std::string_view key) {
    return UsageError(place + ": unknown key " + shown(key) + key_suggestion(key));
  }

  static UsageError unknown_section(const std::string& place, std::string_view name) {
    std::vector<std::string> known;
    for (const Field& field : fields())
      if (known.empty() || known.back() != section_of(field.key)) known.emplace_back(section_of(field.key));
    return UsageError(place + ": unknown section " + shown(name) + suggestion(name, known));
  }

  std::string place_of(const toml::key& key) const {
    return origin_ + ":" + number_text(key.source().begin.line);
  }

  void set(const std::string& key, const toml::node& node, const Source& source) {
    const Field* field = find_field(key);
    if (field == nullptr) throw unknown_key(source.place, key);
    std::visit([&](auto* value) { ValueReader(*field, node, source).read(*value); },
               field->target(experiment_));
    place_[field->key] = source.place;
  }

  [[noreturn]] void fail(std::string_view key, const std::string& what) const {
    const auto it = place_.find(key);
    throw UsageError((it == place_.end() ? origin_ : it->second) + ": " + std::string(key) + " " + what);
  }

  std::string origin_;
  std::filesystem::path folder_;
  std::map<std::string_view, std::string> place_;  // where each given value stands
  Experiment experiment_;
};

}  // namespace

std::filesystem::path tuned_file(const std::filesystem::path& experiment) {
  std::filesystem::path path = experiment;
  return path.replace_extension(".tuned.toml");
}

Experiment load_experiment(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  const auto read = [](const std::filesystem::path& file) {
    try {
      return read_text_file(file, kMaxFileBytes);
    } catch (const Error& e) {
      throw UsageError(std::string("experiment file ") + e.what());
    }
  };
  Parser parser(path);
  const std::filesystem::path tuned = tuned_file(path);
  if (std::filesystem::exists(tuned)) parser.read_tuned(read(tuned), tuned.string());
  parser.read_file(read(path));
  for (const std::string& argument : overrides) parser.override_with(argument);
  return parser.finish();
}

Experiment parse_experiment(std::string_view toml, const std::filesystem::path& origin,
                            const std::vector<std::string>& overrides) {
  Parser parser(origin);
  parser.read_file(toml);
  for (const std::string& argument : overrides) parser.override_with(argument);
  return parser.finish();
}

namespace {

// The fields that `wanted` takes.
template <class Wanted>
std::string fields_toml(const Experiment& experiment, const Wanted& wanted) {
  Experiment copy = experiment;  // targets are writable pointers
  std::string text;
  std::string_view section;
  for (const Field& field : fields()) {
    if (!wanted(field)) continue;
    if (section_of(field.key) != section) {
      section = section_of(field.key);
      text += (text.empty() ? "[" : "\n[") + std::string(section) + "]\n";
    }
    const std::string value = std::visit([](auto* v) { return toml_text(*v); }, field.target(copy));
    text += std::string(name_of(field.key)) + " = " + value + "\n";
  }
  return text;
}

// The sections that say how a format is read; what the others hold changes no sample.
std::vector<std::string_view> encoding_sections(DataFormat format) {
  switch (format) {
    case DataFormat::kText:
      return {"text"};
    case DataFormat::kCsv:
      return {"csv", "text"};
    case DataFormat::kWords:
      return {"words"};
    case DataFormat::kTable:
    case DataFormat::kCriteo:
      return {"csv", "table"};
    case DataFormat::kAuto:
    case DataFormat::kXmc:
      return {};
  }
  return {};
}

}  // namespace

std::string to_toml(const Experiment& experiment) {
  return fields_toml(experiment, [](const Field&) { return true; });
}

std::string to_encoding_toml(const Experiment& experiment) {
  const auto sections = encoding_sections(experiment.data.format);
  return fields_toml(experiment, [&](const Field& field) {
    return field.key == "data.format" || std::ranges::find(sections, section_of(field.key)) != sections.end();
  });
}

Experiment parse_encoding_toml(std::string_view toml, const std::filesystem::path& origin,
                               const std::vector<std::string>& overrides) {
  Parser parser(origin);
  parser.read_file(toml);
  for (const std::string& argument : overrides) parser.override_with(argument);
  return parser.finish_encoding();
}

std::string to_text(DataFormat format) {
  return std::string(spellings(DataFormat{})[static_cast<size_t>(format)]);
}

std::vector<ExperimentField> experiment_fields() {
  Experiment defaults;
  std::vector<ExperimentField> result;
  for (const Field& field : fields()) {
    std::visit(
        [&](auto* value) {
          using T = std::remove_pointer_t<decltype(value)>;
          result.push_back({std::string(field.key), std::string(type_name<T>()), toml_text(*value),
                            range_text<T>(field), std::string(field.unit), std::string(field.meaning)});
        },
        field.target(defaults));
  }
  return result;
}

}  // namespace modelet
