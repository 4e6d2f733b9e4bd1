// The table of keys, a section at a time.
#include "base/experiment/fields.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/experiment/towers.h"

namespace modelet {
namespace {

using E = Experiment;

constexpr uint32_t kMaxWidth = 1 << 16;          // of a hidden layer
constexpr double kMaxSeed = 9007199254740991.0;  // 2^53 - 1: survives JSON readers that know only doubles
constexpr double kAnyCount = std::numeric_limits<uint32_t>::max();

template <auto kSection, auto kMember>
Target at(Experiment& experiment) {
  return &(experiment.*kSection.*kMember);
}

constexpr Field kData[] = {
    {.key = "data.train",
     .target = at<&E::data, &E::Data::train>,
     .meaning = "training samples: text (plain, .xz, .gz) or a prepared file; private:NAME: data that stays with "
                "its owners, whose agents know it by this name (docs/privacy.md)",
     .text = Text::kRequiredData},
    {.key = "data.test",
     .target = at<&E::data, &E::Data::test>,
     .meaning = "test samples, in the same formats",
     .text = Text::kRequiredPath},
    {.key = "data.format",
     .target = at<&E::data, &E::Data::format>,
     .meaning =
         "format of text files: xmc (numbers), text (words; labels begin with text.label_prefix), csv, "
         "words (running text), table (typed columns), criteo (click logs), columns (typed columns with any number of "
         "classes), sessions (items in order); auto: text if the first line has a label, else xmc"},
    {.key = "data.labels",
     .target = at<&E::data, &E::Data::labels>,
     .meaning = "names of the labels, one a line, in the order of their ids",
     .text = Text::kPath},
    {.key = "data.normalize",
     .target = at<&E::data, &E::Data::normalize>,
     .meaning = "scaling of each sample's feature vector"},
    {.key = "data.validation",
     .target = at<&E::data, &E::Data::validation>,
     .meaning = "share of data.train, drawn by the seed, that is held out: evaluations use it instead of "
                "data.test, which is used once, at the end, with the best weights; 0: none",
     .high = 0.5},
};

constexpr Field kText[] = {
    {.key = "text.label_prefix",
     .target = at<&E::text, &E::Text::label_prefix>,
     .meaning = "format text: words that begin with it are labels",
     .text = Text::kWord},
    {.key = "text.word_ngrams",
     .target = at<&E::text, &E::Text::word_ngrams>,
     .unit = "words",
     .meaning = "features are the n-grams of 1 to this many words",
     .low = 1,
     .high = 10},
    {.key = "text.min_char",
     .target = at<&E::text, &E::Text::min_char>,
     .unit = "characters",
     .meaning = "shortest character n-gram inside a word, with < and > as the word's ends",
     .high = 64},
    {.key = "text.max_char",
     .target = at<&E::text, &E::Text::max_char>,
     .unit = "characters",
     .meaning = "longest character n-gram inside a word; 0: no character n-grams",
     .high = 64},
    {.key = "text.buckets",
     .target = at<&E::text, &E::Text::buckets>,
     .unit = "buckets",
     .meaning = "n-grams are hashed to this many; only buckets that occur in training become features",
     .low = 16,
     .high = 1 << 26},
    {.key = "text.min_count",
     .target = at<&E::text, &E::Text::min_count>,
     .unit = "samples",
     .meaning = "buckets that occur in fewer training samples are left out",
     .low = 1,
     .high = kAnyCount},
    {.key = "text.weight",
     .target = at<&E::text, &E::Text::weight>,
     .meaning =
         "value of a feature: tf, its occurrences in the sample; tfidf, (1 + ln tf) times (1 + ln of (1 + "
         "samples) / (1 + training samples with it))"},
};

constexpr Field kCsv[] = {
    {.key = "csv.delimiter",
     .target = at<&E::csv, &E::Csv::delimiter>,
     .meaning = "separates the columns of a record"},
    {.key = "csv.header",
     .target = at<&E::csv, &E::Csv::header>,
     .meaning = "the first record names the columns"},
    {.key = "csv.labels",
     .target = at<&E::csv, &E::Csv::labels>,
     .meaning = "column of the labels, by name or by number from 1",
     .text = Text::kColumn},
    {.key = "csv.label_separator",
     .target = at<&E::csv, &E::Csv::label_separator>,
     .meaning =
         "separates several labels of a sample, with or without blanks around it; none: the whole column is one label"},
    {.key = "csv.text",
     .target = at<&E::csv, &E::Csv::text>,
     .meaning = "columns of words; [text] says which features they become",
     .text = Text::kColumn},
};

constexpr Field kWords[] = {
    {.key = "words.task",
     .target = at<&E::words, &E::Words::task>,
     .meaning = "skipgram: predict the neighbours of a word; next: predict a word from those before it"},
    {.key = "words.window",
     .target = at<&E::words, &E::Words::window>,
     .unit = "words",
     .meaning = "neighbours on each side; next: words before",
     .low = 1,
     .high = 100},
    {.key = "words.positions",
     .target = at<&E::words, &E::Words::positions>,
     .meaning = "next: a word at another distance is another feature"},
    {.key = "words.min_count",
     .target = at<&E::words, &E::Words::min_count>,
     .unit = "occurrences",
     .meaning = "rarer words are left out",
     .low = 1,
     .high = kAnyCount},
    {.key = "words.vocabulary",
     .target = at<&E::words, &E::Words::vocabulary>,
     .unit = "words",
     .meaning = "at most this many words, the most frequent ones",
     .low = 2,
     .high = 1 << 24},
    {.key = "words.subsample",
     .target = at<&E::words, &E::Words::subsample>,
     .meaning = "share of the text above which occurrences of a word are left out at random; 0: all stay",
     .high = 1},
    {.key = "words.seed",
     .target = at<&E::words, &E::Words::seed>,
     .meaning = "start of the random choice of those occurrences",
     .high = kMaxSeed},
};

constexpr Field kTable[] = {
    {.key = "table.columns",
     .target = at<&E::table, &E::Table::columns>,
     .meaning =
         "formats table and criteo: what the columns are, as KIND:NAMES; kinds label, cat, bin, num, log, "
         "cross, skip (docs/clicks.md); empty: those of the Criteo logs"},
    {.key = "table.hash_features",
     .target = at<&E::table, &E::Table::hash_features>,
     .unit = "features",
     .meaning = "values of categories and crosses are hashed to this many",
     .low = 16,
     .high = 1 << 28},
    {.key = "table.bins",
     .target = at<&E::table, &E::Table::bins>,
     .unit = "bins",
     .meaning = "bins of a number column of kind bin, with equally many training samples in each",
     .low = 2,
     .high = 1024},
    {.key = "table.min_count",
     .target = at<&E::table, &E::Table::min_count>,
     .unit = "samples",
     .meaning = "values of categories and crosses that occur in fewer training samples share one feature for "
                "each column",
     .low = 1,
     .high = kAnyCount},
};

constexpr Field kColumns[] = {
    {.key = "columns.NAME",
     .target = [](Experiment& experiment) -> Target { return &experiment.columns; },
     .meaning =
         "format columns: what the column NAME is (without a header: its number, from 1): text, category, number, date, "
         "entity, time, target (the label), label (0 or 1) or ignore, with options such as separator=pipe (docs/columns.md)"},
};

constexpr Field kSessions[] = {
    {.key = "sessions.positions",
     .target = at<&E::sessions, &E::Sessions::positions>,
     .unit = "items",
     .meaning = "so many last items are features that tell how far back they are",
     .high = 100},
    {.key = "sessions.window",
     .target = at<&E::sessions, &E::Sessions::window>,
     .unit = "items",
     .meaning = "so many last items are features that do not tell it",
     .high = 1000},
    {.key = "sessions.decay",
     .target = at<&E::sessions, &E::Sessions::decay>,
     .meaning = "the value of each of these is this multiple of the value of the item after it",
     .low = 0.01,
     .high = 1},
    {.key = "sessions.pairs",
     .target = at<&E::sessions, &E::Sessions::pairs>,
     .unit = "pairs",
     .meaning = "so many last pairs of items that follow each other are features",
     .high = 100},
    {.key = "sessions.buckets",
     .target = at<&E::sessions, &E::Sessions::buckets>,
     .unit = "buckets",
     .meaning = "pairs are hashed to this many; only buckets that occur in training become features",
     .low = 16,
     .high = 1 << 26},
    {.key = "sessions.min_count",
     .target = at<&E::sessions, &E::Sessions::min_count>,
     .unit = "lines",
     .meaning = "items in fewer lines of the training text, and buckets of pairs in fewer, are left out",
     .low = 1,
     .high = kAnyCount},
};

constexpr Field kModel[] = {
    {.key = "model.hidden",
     .target = at<&E::model, &E::Model::hidden>,
     .unit = "neurons",
     .meaning = "width of each hidden layer, a multiple of 16; the first belongs to the sparse input layer",
     .low = kColumnAlignment,
     .high = kMaxWidth},
    {.key = "model.loss",
     .target = at<&E::model, &E::Model::loss>,
     .meaning =
         "softmax: a sample's labels share the target mass, which takes at least two labels; sigmoid: one binary "
         "choice a label, the default of the formats table and criteo"},
    {.key = "model.precision",
     .target = at<&E::model, &E::Model::precision>,
     .meaning =
         "of products, and of weights and optimiser state of the wide layers (input and output): bf16 takes half "
         "the memory and rounds stochastically; sums are fp32 in both"},
    {.key = "model.centroids",
     .target = at<&E::model, &E::Model::centroids>,
     .meaning =
         "logits get the cosine between the sample and the mean of the label's training samples, times one of "
         "five learned scales, by the label's frequency; a training sample is taken out of its own labels' "
         "means (all modes but lsh_per_sample)"},
    {.key = "model.centroid_share",
     .target = at<&E::model, &E::Model::centroid_share>,
     .meaning =
         "centroids: when labels are scored, those with fewer than ten training samples count this multiple of "
         "their scales. Hidden layers know so few samples by heart, which hides in training how often a "
         "centroid is wrong: below 1 is better",
     .high = 2},
    {.key = "model.rare_trust",
     .target = at<&E::model, &E::Model::rare_trust>,
     .meaning =
         "sigmoid: when labels are scored, the logit of a label with one training sample is this share of its "
         "distance from -2.5, the logit of 8 %; the share grows with the logarithm of the samples, to 1 at a "
         "hundred. What is learned of few samples is too sure of itself, both for and against a label",
     .low = 0.01,
     .high = 1},
    {.key = "model.classifiers",
     .target = at<&E::model, &E::Model::classifiers>,
     .meaning =
         "centroids: when labels are scored, this multiple of the margin of a linear classifier is added. Each "
         "label gets one before an evaluation, on the features that occur with it. It is fitted to the label's "
         "training samples and to those that the network takes for such samples; with own_weight, it is the sum of "
         "what the label's samples vote; 0: no classifiers",
     .high = 100},
    {.key = "model.centroid_pairs",
     .target = at<&E::model, &E::Model::centroid_pairs>,
     .unit = "features",
     .meaning = "centroids: a label has at most this many features, those with the largest sums over its "
                "training samples; 0: all that occur with it",
     .high = kAnyCount},
    {.key = "model.exclude_own",
     .target = at<&E::model, &E::Model::exclude_own>,
     .meaning =
         "features and labels are the same items with the same numbers (for example: given some of a customer's "
         "items, predict the others), and no sample has an item as both: a label that is among a sample's features, "
         "whose values must be positive, is never predicted; needs centroids"},
    {.key = "model.own_weight",
     .target = at<&E::model, &E::Model::own_weight>,
     .meaning = "features and labels are the same items with the same numbers, and a sample often has an item as both, as "
                "in sessions: the logit of a label that is among a sample's features gets this multiple of the feature's "
                "value; needs centroids; 0: none",
     .high = 100},
    {.key = "model.towers",
     .target = at<&E::model, &E::Model::towers>,
     .unit = "networks",
     .meaning =
         "the labels are divided into this many blocks, each with a network of its own, all of whose settings hold for "
         "each; they exchange nothing while they train, and answers are merged by score; needs sigmoid; 1: one network; auto: "
         "several, chosen for the data",
     .low = 1,
     .high = kMostTowers,
     .zero = "auto"},
    {.key = "model.divisions",
     .target = at<&E::model, &E::Model::divisions>,
     .unit = "divisions",
     .meaning = "divisions into towers, side by side: each label is in one tower of each, and its logits are averaged",
     .low = 1,
     .high = 64},
    {.key = "model.tower_labels",
     .target = at<&E::model, &E::Model::tower_labels>,
     .meaning =
         "how labels are divided: clustered, by their mean samples, so that most samples concern few towers; spread, at "
         "random, frequent ones evenly; mixed, the first division is clustered and the others are spread"},
    {.key = "model.tower_common",
     .target = at<&E::model, &E::Model::tower_common>,
     .unit = "labels",
     .meaning =
         "so many of the most frequent labels are in all towers, which learn from them what labels have in common; their "
         "logits are averaged",
     .high = kAnyCount},
    {.key = "model.tower_samples",
     .target = at<&E::model, &E::Model::tower_samples>,
     .meaning =
         "share of the samples without a label of the tower on which it trains, drawn by the seed; their loss counts "
         "the more, so that its mean stays the same",
     .low = 0.001,
     .high = 1},
};

constexpr Field kModelets[] = {
    {.key = "modelets.hidden_columns",
     .target = at<&E::modelets, &E::Modelets::hidden_columns>,
     .unit = "neurons",
     .meaning = "neurons of a hidden modelet, a multiple of 16",
     .low = kColumnAlignment,
     .high = kMaxWidth},
    {.key = "modelets.output_modelets",
     .target = at<&E::modelets, &E::Modelets::output_modelets>,
     .unit = "modelets",
     .meaning = "modelets that the output layer is divided into",
     .low = 1,
     .high = 65536},
};

constexpr Field kSampling[] = {
    {.key = "sampling.mode",
     .target = at<&E::sampling, &E::Sampling::mode>,
     .meaning = "active set of the output layer"},
    {.key = "sampling.uniform",
     .target = at<&E::sampling, &E::Sampling::uniform>,
     .unit = "neurons",
     .meaning = "neurons drawn at random in each step, over the whole layer (all modes but full)",
     .high = kAnyCount},
    {.key = "sampling.prior",
     .target = at<&E::sampling, &E::Sampling::prior>,
     .meaning =
         "when labels are scored, biases get this multiple of the logarithm of the label's chance to be in "
         "the active set of a training step: 1 undoes what drawing negatives did to the logits",
     .high = 2},
    {.key = "sampling.sparsity",
     .target = at<&E::sampling, &E::Sampling::sparsity>,
     .meaning =
         "share of the output neurons that is active in a step: labels of the batch, then retrieved "
         "neurons for at most half of the rest, then random ones; replaces sampling.uniform; 0: not used",
     .high = 1},
    {.key = "sampling.group",
     .target = at<&E::sampling, &E::Sampling::group>,
     .unit = "samples",
     .meaning =
         "lsh, uniform: neighbours in a batch that share an active set, for which the counts of this section "
         "hold; a multiple of 16. With 256, a sample of a larger batch costs no more than one of a batch of 256. "
         "0: the whole batch",
     .high = 65536},
    {.key = "sampling.top",
     .target = at<&E::sampling, &E::Sampling::top>,
     .unit = "neurons",
     .meaning = "lsh: candidates kept for each sample after the exact re-rank, over the whole layer; divided "
                "evenly among the output modelets, each share rounded up",
     .low = 1,
     .high = 65536},
    {.key = "sampling.common",
     .target = at<&E::sampling, &E::Sampling::common>,
     .unit = "neurons",
     .meaning =
         "lsh: neurons with the largest mean logits, which are ranked exactly for every sample in "
         "addition to the retrieved ones, over the whole layer; divided evenly among the output modelets",
     .high = 1 << 20},
    {.key = "sampling.query_every",
     .target = at<&E::sampling, &E::Sampling::query_every>,
     .unit = "steps",
     .meaning =
         "lsh: in each step one of this many samples retrieves neurons, and they take turns; the others only rank "
         "the common neurons",
     .low = 1,
     .high = 1024},
    {.key = "sampling.candidates",
     .target = at<&E::sampling, &E::Sampling::candidates>,
     .unit = "neurons",
     .meaning =
         "lsh: candidates for each sample and modelet that are re-ranked exactly; preview: the modelet's "
         "neurons are divided into this many ranges, and each gives its best one",
     .low = 1,
     .high = 65536},
    {.key = "sampling.retrieval",
     .target = at<&E::sampling, &E::Sampling::retrieval>,
     .meaning =
         "lsh: how candidates are found. preview: approximate logits of all neurons, from low-rank "
         "projections of the weights (on the main directions of the activations); tables: hash tables. "
         "lsh_per_sample always uses tables"},
    {.key = "sampling.rank",
     .target = at<&E::sampling, &E::Sampling::rank>,
     .unit = "directions",
     .meaning = "preview: directions of the activations that are kept, a multiple of 16; at most the hidden "
                "width is used",
     .low = kColumnAlignment,
     .high = 1024},
    {.key = "sampling.family",
     .target = at<&E::sampling, &E::Sampling::family>,
     .meaning = "tables: hash family"},
    {.key = "sampling.tables",
     .target = at<&E::sampling, &E::Sampling::tables>,
     .unit = "tables",
     .meaning = "tables: hash tables of a modelet (L)",
     .low = 1,
     .high = 1024},
    {.key = "sampling.bits",
     .target = at<&E::sampling, &E::Sampling::bits>,
     .unit = "bits",
     .meaning = "tables: log2 of the buckets of a table",
     .low = 1,
     .high = 24},
    {.key = "sampling.bucket",
     .target = at<&E::sampling, &E::Sampling::bucket>,
     .unit = "neurons",
     .meaning = "tables: most neurons in a bucket",
     .low = 1,
     .high = 65536},
    {.key = "sampling.centre",
     .target = at<&E::sampling, &E::Sampling::centre>,
     .meaning = "tables: hash weights and activations after subtracting their means"},
    {.key = "sampling.rehash_every",
     .target = at<&E::sampling, &E::Sampling::rehash_every>,
     .unit = "steps",
     .meaning =
         "lsh: steps between two checks of how far low-rank projections or tables have fallen behind the "
         "weights",
     .low = 1,
     .high = kAnyCount},
    {.key = "sampling.drift",
     .target = at<&E::sampling, &E::Sampling::drift>,
     .meaning =
         "lsh: how much of a modelet's retrieval must be out of date before it is renewed. preview: the "
         "share of the logits' spread, estimated from a sample, that the low-rank projection misses "
         "beyond what it missed when new; tables: the share of hash codes, estimated from a sample of the "
         "changed rows, which are then hashed again in the background",
     .high = 1},
};

constexpr Field kOptimizer[] = {
    {.key = "optimizer.kind",
     .target = at<&E::optimizer, &E::Optimizer::kind>,
     .meaning = "update rule; rmsprop is adam without a mean, with one number a weight less"},
    {.key = "optimizer.beta1",
     .target = at<&E::optimizer, &E::Optimizer::beta1>,
     .meaning = "adam: decay of the mean",
     .high = 0.9999},
    {.key = "optimizer.beta2",
     .target = at<&E::optimizer, &E::Optimizer::beta2>,
     .meaning = "adam, rmsprop: decay of the mean square",
     .high = 0.999999},
    {.key = "optimizer.epsilon",
     .target = at<&E::optimizer, &E::Optimizer::epsilon>,
     .meaning = "adam, adagrad, rmsprop: added to the root of the mean square",
     .low = 1e-12,
     .high = 1},
    {.key = "optimizer.row_clocks",
     .target = at<&E::optimizer, &E::Optimizer::row_clocks>,
     .meaning =
         "adam, rmsprop: correct the bias by the number of updates of the row; false: by the step, as for dense "
         "layers, which makes the first updates of rare rows three times as large"},
    {.key = "optimizer.momentum",
     .target = at<&E::optimizer, &E::Optimizer::momentum>,
     .meaning = "sgd: momentum",
     .high = 0.9999},
    {.key = "optimizer.clip",
     .target = at<&E::optimizer, &E::Optimizer::clip>,
     .meaning = "largest global gradient norm; 0: no clipping",
     .high = 1e6},
};

constexpr Field kTrain[] = {
    {.key = "train.epochs",
     .target = at<&E::train, &E::Train::epochs>,
     .unit = "epochs",
     .meaning = "passes over data.train",
     .low = 1,
     .high = 100000},
    {.key = "train.batch",
     .target = at<&E::train, &E::Train::batch>,
     .unit = "samples",
     .meaning = "samples of each replica in a step",
     .low = 1,
     .high = 1 << 20},
    {.key = "train.learning_rate",
     .target = at<&E::train, &E::Train::learning_rate>,
     .meaning = "largest learning rate of the schedule",
     .low = 1e-9,
     .high = 100},
    {.key = "train.schedule",
     .target = at<&E::train, &E::Train::schedule>,
     .meaning =
         "learning rate after the warm-up: constant; linear or cosine decay to final_fraction; reductions "
         "by step_factor"},
    {.key = "train.warmup_steps",
     .target = at<&E::train, &E::Train::warmup_steps>,
     .unit = "steps",
     .meaning = "linear rise from 0, before the schedule",
     .high = kAnyCount},
    {.key = "train.final_fraction",
     .target = at<&E::train, &E::Train::final_fraction>,
     .meaning = "linear, cosine: learning rate at the end, as a fraction of train.learning_rate",
     .high = 1},
    {.key = "train.step_epochs",
     .target = at<&E::train, &E::Train::step_epochs>,
     .unit = "epochs",
     .meaning = "step: epochs between two reductions",
     .low = 1,
     .high = 100000},
    {.key = "train.step_factor",
     .target = at<&E::train, &E::Train::step_factor>,
     .meaning = "step: factor of a reduction",
     .low = 1e-6,
     .high = 1},
    {.key = "train.input_dropout",
     .target = at<&E::train, &E::Train::input_dropout>,
     .meaning = "share of each sample's features that a step leaves out at random; the others are scaled up",
     .high = 0.95},
    {.key = "train.hidden_dropout",
     .target = at<&E::train, &E::Train::hidden_dropout>,
     .meaning =
         "share of each hidden layer's activations that a step leaves out at random; the others are scaled "
         "up",
     .high = 0.95},
    {.key = "train.seed",
     .target = at<&E::train, &E::Train::seed>,
     .meaning = "start of all random choices",
     .high = kMaxSeed},
    {.key = "train.threads",
     .target = at<&E::train, &E::Train::threads>,
     .unit = "threads",
     .meaning = "threads of a node, in a pool at most the agent's; 0: all that it may use",
     .high = 1024},
    {.key = "train.log_every",
     .target = at<&E::train, &E::Train::log_every>,
     .unit = "steps",
     .meaning = "steps between two progress events",
     .low = 1,
     .high = kAnyCount},
    {.key = "train.evaluate_every",
     .target = at<&E::train, &E::Train::evaluate_every>,
     .unit = "epochs",
     .meaning = "epochs between two evaluations; 0: only at the end",
     .high = 100000},
    {.key = "train.patience",
     .target = at<&E::train, &E::Train::patience>,
     .unit = "evaluations",
     .meaning = "evaluations without improvement after which training ends (needs data.validation); 0: never",
     .high = 100000},
    {.key = "train.metric",
     .target = at<&E::train, &E::Train::metric>,
     .meaning =
         "figure of the held-out samples that decides which weights are best, named as in events: p_at_1, "
         "ndcg_at_5, psp_at_3, auc ...; auto: auc if there is one label, else p_at_1",
     .text = Text::kWord},
    {.key = "train.checkpoint_every",
     .target = at<&E::train, &E::Train::checkpoint_every>,
     .unit = "steps",
     .meaning = "steps between two checkpoints; 0: at the end of each epoch",
     .high = kAnyCount},
    {.key = "train.keep_checkpoints",
     .target = at<&E::train, &E::Train::keep_checkpoints>,
     .unit = "checkpoints",
     .meaning = "newest checkpoints that are kept",
     .low = 1,
     .high = 1000},
};

constexpr Field kMetrics[] = {
    {.key = "metrics.propensity_a",
     .target = at<&E::metrics, &E::Metrics::propensity_a>,
     .meaning = "psp: A of the labels' propensities (Wikipedia sets 0.5, Amazon sets 0.6)",
     .high = 10},
    {.key = "metrics.propensity_b",
     .target = at<&E::metrics, &E::Metrics::propensity_b>,
     .meaning = "psp: B of the labels' propensities (Wikipedia sets 0.4, Amazon sets 2.6)",
     .low = 0.001,
     .high = 1000},
};

constexpr Field kExchange[] = {
    {.key = "exchange.codec",
     .target = at<&E::exchange, &E::Exchange::codec>,
     .meaning =
         "codec of activations between nodes (docs/wire_format.md); none: exact; same is for gradients "
         "only"},
    {.key = "exchange.gradient_codec",
     .target = at<&E::exchange, &E::Exchange::gradient_codec>,
     .meaning = "codec of hidden gradients between nodes, and of changed rows between replicas, as for "
                "exchange.codec; same: that of activations"},
    {.key = "exchange.local_steps",
     .target = at<&E::exchange, &E::Exchange::local_steps>,
     .unit = "steps",
     .meaning = "with several replicas: steps that each takes by itself between two synchronisations",
     .low = 1,
     .high = 100000},
    {.key = "exchange.micro_batches",
     .target = at<&E::exchange, &E::Exchange::micro_batches>,
     .unit = "micro-batches",
     .meaning = "micro-batches of a batch: while one travels, the next is computed; 0: the number with which "
                "steps are fastest, measured in the run; changes no result",
     .high = 8},
    {.key = "exchange.lz4",
     .target = at<&E::exchange, &E::Exchange::lz4>,
     .meaning = "compress the encoded bytes"},
    {.key = "exchange.timeout_seconds",
     .target = at<&E::exchange, &E::Exchange::timeout_seconds>,
     .unit = "seconds",
     .meaning = "a peer that is silent for longer counts as missing",
     .low = 0.1,
     .high = 86400},
};

constexpr Field kCluster[] = {
    {.key = "cluster.replicas",
     .target = at<&E::cluster, &E::Cluster::replicas>,
     .unit = "replicas",
     .meaning =
         "the nodes form this many equal groups, and each trains a copy of the model on samples of its "
         "own; 1: one model over all nodes; as many as nodes: a whole model on each",
     .low = 1,
     .high = 1024},
    {.key = "cluster.min_nodes",
     .target = at<&E::cluster, &E::Cluster::min_nodes>,
     .unit = "nodes",
     .meaning = "fewest nodes with which a run goes on after it has lost some; with fewer it waits",
     .low = 1,
     .high = 1024},
    {.key = "cluster.max_nodes",
     .target = at<&E::cluster, &E::Cluster::max_nodes>,
     .unit = "nodes",
     .meaning = "most nodes that a run grows to; 0: as many as it began with",
     .high = 1024},
    {.key = "cluster.snapshot_every",
     .target = at<&E::cluster, &E::Cluster::snapshot_every>,
     .unit = "steps",
     .meaning =
         "in a pool: the most steps that are done again after a node is lost; a snapshot is made after half "
         "as many; 0: as often as 1 % of the time and 10 % of the links allow, or, with several replicas, "
         "3200",
     .high = 1e9},
    {.key = "cluster.rule",
     .target = at<&E::cluster, &E::Cluster::rule>,
     .meaning =
         "several replicas: what becomes of the mean of their changes; average: it is added (FedAvg); prox: the same, and "
         "each step of a replica pulls it back to what all agreed on (FedProx); adam: it is the gradient of an Adam step "
         "(FedAdam); momentum: of a step with Nesterov's momentum (DiLoCo)"},
    {.key = "cluster.rule_rate",
     .target = at<&E::cluster, &E::Cluster::rule_rate>,
     .meaning = "adam, momentum: learning rate of that step; 0: 0.01 for adam, 0.7 for momentum",
     .high = 1e3},
    {.key = "cluster.rule_momentum",
     .target = at<&E::cluster, &E::Cluster::rule_momentum>,
     .meaning = "adam, momentum: decay of the mean of earlier rounds",
     .high = 0.9999},
    {.key = "cluster.rule_beta2",
     .target = at<&E::cluster, &E::Cluster::rule_beta2>,
     .meaning = "adam: decay of the mean of squares",
     .high = 0.9999},
    {.key = "cluster.rule_epsilon",
     .target = at<&E::cluster, &E::Cluster::rule_epsilon>,
     .meaning = "adam: added to the root of the mean of squares",
     .low = 1e-12,
     .high = 1},
    {.key = "cluster.proximal",
     .target = at<&E::cluster, &E::Cluster::proximal>,
     .meaning = "prox: how strongly a replica is pulled back; a step with learning rate r divides its distance by 1 + r x this",
     .high = 1e6},
    {.key = "cluster.largest_change",
     .target = at<&E::cluster, &E::Cluster::largest_change>,
     .meaning =
         "several replicas: the largest norm of what a replica may change a row by between two synchronisations; more is "
         "shortened, and counted; 0: no bound",
     .high = 1e6},
    {.key = "cluster.privacy",
     .target = at<&E::cluster, &E::Cluster::privacy>,
     .meaning =
         "private data: what an owner sends after exchange.local_steps steps; sums: all rows, masked so that only the "
         "sum over all owners can be read; rows: the rows that changed, which the other owners can read"},
    {.key = "cluster.most_samples",
     .target = at<&E::cluster, &E::Cluster::most_samples>,
     .unit = "samples",
     .meaning =
         "private data: an owner weighs as much in the mean as it has training samples, but at most this many; 0: no "
         "limit; 1: all owners weigh the same",
     .high = kAnyCount},
    {.key = "cluster.epoch_steps",
     .target = at<&E::cluster, &E::Cluster::epoch_steps>,
     .unit = "steps",
     .meaning =
         "private data: steps that make an epoch, because nobody knows how many samples all owners have; needed",
     .high = 1e9},
    {.key = "cluster.least_owners",
     .target = at<&E::cluster, &E::Cluster::least_owners>,
     .unit = "owners",
     .meaning =
         "private data: fewest owners with which a run goes on after it has lost some; these take part again when they are "
         "back; 0: all, so the run waits for them",
     .high = 1024},
    {.key = "cluster.owners_per_round",
     .target = at<&E::cluster, &E::Cluster::owners_per_round>,
     .unit = "owners",
     .meaning =
         "private data: how many owners take part in a round, drawn anew for each; the others do no steps and go on from "
         "its mean; 0: all",
     .high = 1024},
    {.key = "cluster.noise",
     .target = at<&E::cluster, &E::Cluster::noise>,
     .meaning =
         "private data, sums: Gaussian noise in the sum of a round, in units of the most that an owner can change it by; "
         "needs cluster.clip; 0: none",
     .high = 1000},
    {.key = "cluster.clip",
     .target = at<&E::cluster, &E::Cluster::clip>,
     .meaning =
         "private data, sums: the largest norm of all that an owner changes in a round; a longer change is shortened; 0: no "
         "bound",
     .high = 1e6},
};

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> all = [] {
    std::vector<Field> joined;
    const auto add = [&](std::span<const Field> section) {
      joined.insert(joined.end(), section.begin(), section.end());
    };
    add(kData);
    add(kText);
    add(kCsv);
    add(kWords);
    add(kTable);
    add(kColumns);
    add(kSessions);
    add(kModel);
    add(kModelets);
    add(kSampling);
    add(kOptimizer);
    add(kTrain);
    add(kMetrics);
    add(kExchange);
    add(kCluster);
    return joined;
  }();
  return all;
}

const RemovedKey* find_removed(std::string_view key) {
  static constexpr RemovedKey kRemoved[] = {
      {"model.pairs", 0,
       "linear classifiers learn more: set model.centroids = true and model.classifiers = 1"},
      {"model.pairs_rate", {}, "it was the learning rate of model.pairs, which was removed as well"},
      {"sampling.logq", 0, "sampling.prior corrects the scores of sampled training instead"},
  };
  const auto* const found = std::ranges::find(kRemoved, key, &RemovedKey::key);
  return found == std::end(kRemoved) ? nullptr : found;
}

const RemovedValue* find_removed_value(std::string_view key, std::string_view value) {
  static constexpr RemovedValue kRemoved[] = {
      {"exchange.codec", "auto", "int8"},
      {"exchange.gradient_codec", "auto", "int8"},
      {"exchange.gradient_codec", "topk", "int4"},
  };
  const auto* const found = std::ranges::find_if(
      kRemoved, [&](const RemovedValue& each) { return each.key == key && each.value == value; });
  return found == std::end(kRemoved) ? nullptr : found;
}

const Field* find_field(std::string_view key) {
  constexpr std::string_view kFree = "columns.NAME";
  const bool is_free = key.size() > key.find('.') + 1 && section_of(key) == section_of(kFree) && key.find('.') != key.npos;
  const auto it = std::ranges::find(fields(), is_free ? kFree : key, &Field::key);
  return it == fields().end() ? nullptr : &*it;
}

}  // namespace modelet
