#include "base/experiment.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/experiment_fields.h"

namespace modelet {
namespace {

constexpr uint32_t kMaxWidth = 1 << 16;          // of a hidden layer
constexpr double kMaxSeed = 9007199254740991.0;  // 2^53 - 1: survives JSON readers that know only doubles
constexpr double kAnyCount = std::numeric_limits<uint32_t>::max();

template <class Section, class T>
std::function<Target(Experiment&)> at(Section Experiment::*section, T Section::*member) {
  return [=](Experiment& e) -> Target { return &(e.*section.*member); };
}

}  // namespace

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
       "lsh: neurons with the largest mean logit, which are ranked exactly for every sample beside what is "
       "retrieved, over the whole layer: split evenly over the output modelets",
       0, 1 << 20},
      {"sampling.query_every", at(&E::sampling, &E::Sampling::query_every), "steps",
       "lsh: a sample in so many asks for neurons, another one in each step; the others rank the common "
       "neurons only",
       1, 1024},
      {"sampling.candidates", at(&E::sampling, &E::Sampling::candidates), "neurons",
       "lsh: candidates per sample and modelet that are re-ranked exactly; preview: the modelet's neurons "
       "are cut into so many runs, and each gives its best one",
       1, 65536},
      {"sampling.retrieval", at(&E::sampling, &E::Sampling::retrieval), "",
       "lsh: how candidates are found. preview: approximate logits of all neurons, from the main directions "
       "of the activations; tables: hash tables. lsh_per_sample always asks tables"},
      {"sampling.rank", at(&E::sampling, &E::Sampling::rank), "directions",
       "preview: how many directions of the activations are kept, a multiple of 16; more than the hidden "
       "width are not used",
       kColumnAlignment, 1024},
      {"sampling.family", at(&E::sampling, &E::Sampling::family), "", "tables: hash family"},
      {"sampling.tables", at(&E::sampling, &E::Sampling::tables), "tables",
       "tables: hash tables of a modelet (L)", 1, 1024},
      {"sampling.bits", at(&E::sampling, &E::Sampling::bits), "bits",
       "tables: log2 of the buckets of a table", 1, 24},
      {"sampling.bucket", at(&E::sampling, &E::Sampling::bucket), "neurons",
       "tables: neurons a bucket holds at most", 1, 65536},
      {"sampling.centre", at(&E::sampling, &E::Sampling::centre), "",
       "tables: hash weights and activations after subtracting their means"},
      {"sampling.rehash_every", at(&E::sampling, &E::Sampling::rehash_every), "steps",
       "lsh: steps between two looks at how far previews or tables have fallen behind the weights", 1,
       kAnyCount},
      {"sampling.drift", at(&E::sampling, &E::Sampling::drift), "",
       "lsh: what must be out of date for it to be made anew. preview: the share of the logits' spread that "
       "previews miss beyond what they missed when new, by a sample; tables: the share of a modelet's hash "
       "codes, by a sample of its changed rows; these are hashed again in the background",
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

const Field* find_field(std::string_view key) {
  const auto it = std::ranges::find(fields(), key, &Field::key);
  return it == fields().end() ? nullptr : &*it;
}

std::string join(std::span<const std::string_view> words) {
  std::string text;
  for (const std::string_view word : words) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

std::string toml_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
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
