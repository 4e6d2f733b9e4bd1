#include "node_agent/train/recipe/recipe.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/experiment/memory.h"
#include "base/experiment/partition.h"
#include "base/experiment/reader.h"
#include "node_agent/train/evaluation/classifiers.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/store/prepared.h"

namespace modelet::agent {
namespace {

// The model and its optimiser's state get at most half of the memory. The other half is for the data that
// the machine keeps in memory.
constexpr double kMemoryShare = 0.5;
constexpr uint32_t kNarrowest = 32, kWidest = 4096;
constexpr uint64_t kFewSamples = 8000;   // up to so many, likely labels are rare as well
constexpr double kFewFeatures = 5;       // of a sample; fewer leave much doubt about all labels
constexpr uint64_t kManyLabels = 1000;   // with fewer, a hidden layer sees each often enough to know it
constexpr uint64_t kSeveralLabels = 16;  // with fewer, linear classifiers were not measured

// Collects settings one after the other. Each may depend on those before it. Given keys stay unchanged.
class Rules {
 public:
  explicit Rules(const GivenKeys& given) : given_(given), now_(given.experiment) {}

  const Experiment& now() const { return now_; }  // with the given keys and what was set so far
  bool free(const std::string& key) const { return !given_.keys.contains(key); }
  void set(const std::string& key, const std::string& value, const std::string& reason) {
    if (!free(key)) return;
    std::erase_if(settings_, [&](const Setting& before) { return before.key == key; });
    settings_.push_back({key, value, reason});
    now_ = with_settings(now_, {&settings_.back(), 1});
  }
  std::vector<Setting> take() { return std::move(settings_); }

 private:
  const GivenKeys& given_;
  Experiment now_;
  std::vector<Setting> settings_;
};

std::string list_of(uint32_t width) { return fmt::format("[{}]", width); }
uint32_t width_of(const Experiment& experiment) { return experiment.model.hidden.back(); }

// The choice in the first row of `limits` whose limit is at least `value`. The last row is for all larger
// values.
struct UpTo {
  double limit;
  uint32_t choice;
};
template <size_t kRows>
uint32_t by_size(double value, const std::array<UpTo, kRows>& limits) {
  for (const UpTo& row : limits)
    if (value <= row.limit) return row.choice;
  return limits.back().choice;
}

// ".csv" of "train.csv.xz".
std::string extension_of(std::filesystem::path path) {
  if (path.extension() == ".xz" || path.extension() == ".gz") path.replace_extension();
  return path.extension().string();
}

// Softmax learns nothing from samples without a label. In a table, these are the negatives.
bool all_have_labels(const Experiment& now, const DataFacts& facts) {
  constexpr double kNearlyAll = 0.95;
  return facts.labels_per_row > kNearlyAll && now.data.format != DataFormat::kTable &&
         now.data.format != DataFormat::kCriteo;
}

void choose_loss(Rules& rules, const DataFacts& facts) {
  if (facts.labels >= 2 && facts.one_label() && all_have_labels(rules.now(), facts))
    rules.set("model.loss", "softmax", "a sample has one label, and labels exclude each other");
  else if (facts.labels < 2)
    rules.set("model.loss", "sigmoid", "there is one label, which a sample has or not");
  else if (facts.one_label())
    rules.set("model.loss", "sigmoid", "some samples have no label, and count as negatives");
  else
    rules.set("model.loss", "sigmoid",
              fmt::format("a sample has {:.1f} labels in the mean, each a question of its own",
                          facts.labels_per_row));
}

void choose_precision(Rules& rules, const DataFacts& facts, const Machine& machine) {
  constexpr uint64_t kSmallModel = uint64_t{16} << 20;  // bytes; smaller ones were not measured
  if (machine.bf16_products && model_bytes(rules.now(), facts) > kSmallModel)
    rules.set("model.precision", "bf16", "half the memory, and this processor multiplies it faster");
  else
    rules.set(
        "model.precision", "fp32",
        machine.bf16_products ? "the model is small" : "this processor multiplies floats as fast as bf16");
}

// Whether most labels that samples have are rare. What is known about rare labels is in their centroids, so a
// wide layer could learn little more.
bool mostly_rare(const DataFacts& facts) {
  const uint64_t seen = facts.labels - facts.unseen_labels;
  return !facts.dense() && facts.labels >= kManyLabels && facts.rare_labels > seen / 2;
}

// Whether each sample has one of many labels. Then wide layers, and many passes, learn samples by heart.
bool one_of_many(const Experiment& now, const DataFacts& facts) {
  constexpr uint64_t kMeasuredRows = 200000;
  return !facts.dense() && now.model.loss == Loss::kSoftmax && facts.labels >= kManyLabels &&
         facts.rows <= kMeasuredRows;
}

// Whether each sample has few of several labels, and most labels are not rare. Beside a direct path, a narrower
// layer then learns as much (docs/studies/recipes.md, "Few labels a sample").
bool few_of_several(const Experiment& now, const DataFacts& facts) {
  constexpr double kFewLabels = 4;
  constexpr uint64_t kMeasuredRows = 250000;
  return !facts.dense() && now.model.loss == Loss::kSigmoid && facts.labels >= kSeveralLabels &&
         facts.labels_per_row < kFewLabels && facts.rows <= kMeasuredRows && !mostly_rare(facts);
}

bool short_samples(const DataFacts& facts) { return facts.features_per_row < kFewFeatures; }

// Whether the data has many labels, of which a sample may have several, and several features for each sample. Beside
// classifiers, a wider layer with more dropout then needs few passes, also where there are few samples
// (docs/studies/recipes.md, "What few samples need").
bool rich_samples(const Experiment& now, const DataFacts& facts) {
  return !facts.dense() && !short_samples(facts) && facts.labels >= kManyLabels &&
         now.model.loss == Loss::kSigmoid;
}

void choose_width(Rules& rules, const DataFacts& facts, const Machine& machine) {
  if (!rules.free("model.hidden")) return;
  const auto rows = static_cast<double>(facts.rows);
  uint32_t width =
      by_size(rows, std::array<UpTo, 4>{{{2000, 128}, {kFewSamples, 256}, {20000, 512}, {0, 1024}}});
  std::string reason = fmt::format("{} samples", facts.rows);
  if (facts.labels <= 64 || facts.dense()) {
    width = std::min(width, facts.dense() || facts.labels < kSeveralLabels ? 256u : 512u);
    reason += facts.dense() ? " of measurements" : fmt::format(", only {} labels", facts.labels);
  }
  // More samples teach a wider layer more about rare labels (docs/studies/labels.md).
  constexpr uint32_t kWideEnough = 768, kWideEnoughForOneLabel = 256, kWideForFewSamples = 256;
  constexpr double kManyRows = 100000;
  const uint32_t for_few_labels = rows <= kManyRows ? 512 : 768;
  const bool centroids = rules.free("model.centroids") || rules.now().model.centroids;
  if (centroids && rich_samples(rules.now(), facts)) width = std::max(width, kWideForFewSamples);
  if (centroids && one_of_many(rules.now(), facts) && width > kWideEnoughForOneLabel) {
    width = kWideEnoughForOneLabel;
    reason += " with one label each, and a direct path for rare ones";
  }
  if (centroids && mostly_rare(facts) && rows <= kManyRows && width > kWideEnough) {
    width = kWideEnough;
    reason += ", and a direct path for rare labels";
  }
  if (centroids && few_of_several(rules.now(), facts) && width > for_few_labels) {
    width = for_few_labels;
    reason += fmt::format(" with {:.1f} labels in the mean, and a direct path", facts.labels_per_row);
  }
  rules.set("model.hidden", list_of(width), reason);
  choose_precision(rules, facts, machine);
  const auto limit = kMemoryShare * static_cast<double>(machine.memory_bytes);
  while (width > kNarrowest && static_cast<double>(model_bytes(rules.now(), facts)) > limit) {
    width /= 2;
    rules.set("model.hidden", list_of(width), "a wider one would take more than half of the memory");
  }
}

void choose_sampling_mode(Rules& rules, const DataFacts& facts) {
  constexpr uint64_t kFew = 2048;
  if (facts.labels <= kFew)
    rules.set("sampling.mode", "full",
              fmt::format("{} labels are few enough for all to take part", facts.labels));
  else
    rules.set("sampling.mode", "uniform", fmt::format("{} labels are too many for each step", facts.labels));
}

// How much the linear classifiers correct (model.classifiers). Labels with many samples have good ones. Where samples
// have many labels, strong ones do harm (docs/studies/recipes.md).
const char* classifiers_for(const Experiment& now, const DataFacts& facts, bool much_doubted) {
  constexpr double kMeasuredLabels = 8;  // of a sample
  if (facts.labels < kManyLabels) return "4";
  if (much_doubted) return short_samples(facts) ? "1" : "1.5";
  if (!rich_samples(now, facts) || facts.labels_per_row > kMeasuredLabels) return "2.5";
  if (!mostly_rare(facts)) return "4";
  return facts.rows <= kFewSamples ? "3" : "2.5";
}

// A single word or item says something about labels. A measurement does so only together with others.
void choose_direct_path(Rules& rules, const DataFacts& facts, const Machine& machine) {
  const bool shared = rules.now().sampling.mode != SamplingMode::kLshPerSample;
  if (facts.dense() || (facts.labels < kSeveralLabels && !facts.own_excluded) || !shared) return;
  rules.set("model.centroids", "true",
            facts.labels < kManyLabels
                ? std::string("the mean samples of the labels have the features that classifiers weigh")
                : fmt::format("{} of {} labels occur once or twice: their mean sample says more "
                              "than a hidden layer keeps",
                              facts.rare_labels, facts.labels));
  constexpr uint32_t kMostPairs = 1024;
  if (static_cast<double>(model_bytes(rules.now(), facts)) >
      kMemoryShare * static_cast<double>(machine.memory_bytes))
    rules.set("model.centroid_pairs", std::to_string(kMostPairs),
              "all of them would take more than half of the memory");
  if (facts.own_excluded && rules.now().model.centroids)
    rules.set("model.exclude_own", "true",
              "features and labels are the same items, and no sample has one as both");
  if (!rules.now().model.centroids) return;
  // Less trust in rare labels (model.rare_trust) keeps too confident scores of rare labels from displacing
  // likely frequent ones. If hardly any labels are frequent, it only spoils the order of the rare ones. Where there are
  // few samples, likely labels are rare as well, so doubt is small and changes nothing else. Of many short samples, rare
  // labels and classifiers say less.
  constexpr double kMuchOften = 0.1;
  const bool doubted =
      mostly_rare(facts) && facts.often_share > kMuchOften && rules.now().model.loss == Loss::kSigmoid;
  const bool much_doubted = doubted && facts.rows > kFewSamples;
  if (rules.now().sampling.mode == SamplingMode::kUniform)
    rules.set("sampling.prior", much_doubted ? "0.9" : "0.75", "drawing labels makes rare ones too likely");
  rules.set("model.centroid_share", much_doubted ? "0.9" : "0.8",
            "hidden layers know the samples of rare labels by heart");
  rules.set("model.classifiers", classifiers_for(rules.now(), facts, much_doubted),
            "linear classifiers correct what hidden layers get wrong");
  if (doubted)
    rules.set("model.rare_trust",
              !much_doubted          ? "0.7"
              : short_samples(facts) ? "0.5"
                                     : "0.25",
              "what is learned of few samples is too sure of itself");
}

// Beside a direct path, hidden layers learn what is common to many labels, and larger steps take them there in
// fewer passes (docs/studies/recipes.md). With softmax the samples of a rare label would be learned by heart.
void choose_learning_rate(Rules& rules, const DataFacts& facts) {
  if (rules.now().model.centroids && rules.now().model.loss == Loss::kSigmoid)
    return rules.set("train.learning_rate", "0.01", "large steps, since a direct path knows the rare labels");
  const double scale = std::min(1.0, std::sqrt(static_cast<double>(rules.now().train.batch) / 256));
  rules.set(
      "train.learning_rate", fmt::format("{:.3g}", (facts.dense() ? 3e-3 : 5e-3) * scale),
      facts.dense() ? "measurements change every weight in each step" : "sparse features are seen rarely");
}

// Batch, epochs and learning rate are chosen together: what counts is the number of steps and their size.
void choose_pace(Rules& rules, const DataFacts& facts) {
  const auto rows = static_cast<double>(std::max<uint64_t>(facts.rows, 1));
  const uint32_t batch =
      by_size(rows, std::array<UpTo, 5>{{{1000, 32}, {4000, 64}, {16000, 128}, {2e6, 256}, {0, 512}}});
  rules.set("train.batch", std::to_string(batch), "small data needs small steps to have enough of them");
  constexpr double kUsualRows = 40000, kManyRows = 200000, kUsualEpochs = 10, kEpochsWithCentroids = 9,
                   kEpochsWithClassifiers = 7;
  const bool centroids = rules.now().model.centroids, classifiers = has_classifiers(rules.now().model);
  double epochs = centroids ? kEpochsWithCentroids : kUsualEpochs;
  // More passes would only learn samples by heart, and classifiers know what is missing. Softmax over few
  // labels was not measured.
  const bool measured =
      rules.now().model.loss == Loss::kSigmoid || mostly_rare(facts) || one_of_many(rules.now(), facts);
  if (classifiers && measured) epochs = kEpochsWithClassifiers;
  if (rows < kUsualRows)
    epochs *= std::pow(kUsualRows / rows, !centroids                                        ? 0.3
                                          : classifiers && rich_samples(rules.now(), facts) ? 0.2
                                                                                            : 0.4);
  if (rows > kManyRows) epochs *= std::sqrt(kManyRows / rows);
  rules.set("train.epochs", std::to_string(std::clamp<int64_t>(std::llround(epochs), 2, 60)),
            fmt::format("{} samples", facts.rows));
  choose_learning_rate(rules, facts);
  rules.set("train.schedule", "linear", "the last passes settle what the first ones found");
  rules.set("optimizer.row_clocks", "true", "rare features and labels are not pushed too far at first");
}

// Draws of a step. Frequent labels are in most batches anyway, so with many steps few draws are enough for rare ones.
// Where each label has a classifier, which meets hard negatives of its own, a few for each sample of the batch teach
// as much as many more. Not with softmax (docs/studies/recipes.md).
void choose_draws(Rules& rules, const DataFacts& facts) {
  const Experiment& now = rules.now();
  if (now.sampling.mode == SamplingMode::kFull) return;
  constexpr uint64_t kFewest = 512, kUsual = 2048, kMost = 4096, kManyRows = 100000;
  uint64_t least = kUsual;
  if (has_classifiers(now.model) && now.model.loss == Loss::kSigmoid)
    least = std::clamp<uint64_t>((mostly_rare(facts) ? 4 : 2) * now.train.batch, kFewest, kUsual);
  if (mostly_rare(facts) && facts.rows > kManyRows) least = kFewest;
  const uint64_t draws = std::clamp<uint64_t>(std::bit_floor(facts.labels / 128), least, kMost);
  rules.set("sampling.uniform", std::to_string(draws),
            "some of the labels: more teach more, and take longer");
}

void choose_dropout(Rules& rules, const DataFacts& facts) {
  const uint32_t width = width_of(rules.now());
  const bool few_passes = rules.now().train.epochs <= 2;
  const bool strong = width >= 512 || (facts.rows <= kFewSamples && has_classifiers(rules.now().model) &&
                                       rich_samples(rules.now(), facts));
  const double rate = few_passes || facts.dense() || width < 256 ? 0.1 : strong ? 0.5 : 0.3;
  rules.set("train.hidden_dropout", fmt::format("{}", rate),
            few_passes ? "nothing is seen often enough to be learned by heart"
                       : "wide layers learn samples by heart without it");
}

void choose_modelets(Rules& rules) {
  const uint32_t first = rules.now().model.hidden.front();
  rules.set("modelets.hidden_columns",
            std::to_string(std::clamp<uint32_t>(std::bit_floor(first / 8), 16, 128)),
            "wide rows are read faster; up to eight nodes can share the layer");
}

// Without held-out samples, the weights of the last step are the result, so test data is needed only once. And
// a run of a few minutes needs no checkpoints on its way.
void choose_bookkeeping(Rules& rules, const DataFacts& facts) {
  if (rules.now().data.validation > 0)
    rules.set("train.evaluate_every", "1", "the held-out samples tell which epoch did best");
  else
    rules.set("train.evaluate_every", "0", "the test data is used once, at the end");
  constexpr double kLongRun = 4e13;  // of training_cost(): about six minutes on two cores
  if (training_cost(rules.now(), facts) < kLongRun)
    rules.set("train.checkpoint_every", "1000000000", "a short run: only at its end, and when it is stopped");
}

void choose_for_running_text(Rules& rules) {
  rules.set("model.hidden", "[128]", "the usual length of word vectors");
  rules.set("train.epochs", "3", "running text repeats itself");
  rules.set("train.batch", "1024", "a word is a small sample");
  rules.set("train.learning_rate", "2e-3", "found good for word vectors");
  rules.set("train.hidden_dropout", "0", "a vector of a word is not redundant");
}

}  // namespace

Experiment with_settings(const Experiment& experiment, std::span<const Setting> settings) {
  std::vector<std::string> overrides;
  for (const Setting& setting : settings) overrides.push_back(setting.key + "=" + setting.value);
  return parse_experiment(to_toml(experiment), "the chosen recipe", overrides);
}

GivenKeys given_settings(const std::string& origin, std::vector<std::string> settings) {
  struct Implied {
    const char *given, *neutral;  // with this value, as toml_text() writes it, the key needs nothing
    const char *key, *value;
  };
  constexpr std::array<Implied, 2> kImplied = {
      {{"model.exclude_own", "false", "model.centroids", "true"},
       {"model.rare_trust", "1", "model.loss", "sigmoid"}}};
  const std::map<std::string, std::string> values = given_values("", origin, settings);
  std::set<std::string> keys = given_keys("", origin, settings);
  for (const Implied& each : kImplied) {
    const auto given = values.find(each.given);
    if (given == values.end() || given->second == each.neutral) continue;
    if (!keys.insert(each.key).second) continue;
    settings.push_back(std::string(each.key) + "=" + each.value);
  }
  return {parse_experiment("", origin, settings), std::move(keys)};
}

std::vector<Setting> reading_settings(const GivenKeys& given) {
  const std::filesystem::path train = given.experiment.data.train;
  Rules rules(given);
  if (shard::is_prepared(train)) {
    const bool scaled = shard::Dataset::open(train, false, shard::no_labels()).normalize() == Normalize::kL2;
    rules.set("data.normalize", scaled ? "l2" : "none", "as the file was prepared");
    return rules.take();
  }
  const std::string extension = extension_of(train);
  if (extension == ".csv" || extension == ".tsv") {
    rules.set("data.format", "csv", "the file's name ends with " + extension);
    if (extension == ".tsv") rules.set("csv.delimiter", "tab", "the file's name ends with .tsv");
  }
  const DataFormat format = shard::format_of(train, encoding_of(rules.now()));
  if (format == DataFormat::kText || format == DataFormat::kCsv) {
    rules.set("text.weight", "tfidf", "rare words say more than common ones");
    rules.set("data.normalize", "l2", "a long text weighs as much as a short one");
  }
  return rules.take();
}

std::vector<Setting> scaling_settings(const GivenKeys& given, const DataFacts& facts) {
  constexpr float kLarge = 4;  // measurements up to this size can be learned without scaling
  const DataFormat format = given.experiment.data.format;
  Rules rules(given);
  if (facts.unit_rows)
    rules.set("data.normalize", "none", "every sample has length 1 already");
  else if (format == DataFormat::kTable || format == DataFormat::kCriteo || format == DataFormat::kWords)
    rules.set("data.normalize", "none", "columns and words have values of their own");
  else if (facts.dense() && std::max(-facts.smallest, facts.largest) <= kLarge)
    rules.set("data.normalize", "none", "measurements of about 1, whose size may matter");
  else
    rules.set("data.normalize", "l2", "samples of different lengths weigh the same");
  return rules.take();
}

std::vector<Setting> recipe_settings(const GivenKeys& given, const DataFacts& facts, const Machine& machine) {
  Rules rules(given);
  choose_loss(rules, facts);
  choose_sampling_mode(rules, facts);
  if (rules.now().data.format == DataFormat::kWords) {
    choose_for_running_text(rules);
  } else {
    choose_width(rules, facts, machine);
    choose_direct_path(rules, facts, machine);
    choose_pace(rules, facts);
    choose_dropout(rules, facts);
  }
  choose_draws(rules, facts);
  choose_precision(rules, facts, machine);
  choose_modelets(rules);
  choose_bookkeeping(rules, facts);
  return rules.take();
}

std::vector<Alternative> alternatives(const GivenKeys& given, const DataFacts& facts,
                                      const Experiment& recipe) {
  std::vector<Alternative> all;
  const auto offer = [&](const std::string& name, std::vector<Setting> settings) {
    if (std::ranges::none_of(settings, [&](const Setting& s) { return given.keys.contains(s.key); }))
      all.push_back({name, std::move(settings)});
  };
  const bool classifiers = has_classifiers(recipe.model);
  // If most labels are rare, a short trial would favour softmax, which learns the frequent ones first.
  if (classifiers && facts.labels >= kManyLabels) return all;  // studies of such data have decided everything
  if (recipe.model.loss == Loss::kSigmoid && facts.labels >= 2 && all_have_labels(recipe, facts))
    offer("loss softmax", {{"model.loss", "softmax", "labels compete for a sample"}});
  else if (recipe.model.loss == Loss::kSoftmax)
    offer("loss sigmoid", {{"model.loss", "sigmoid", "each label is a question of its own"}});
  if (recipe.model.centroids) return all;
  const float rate = recipe.train.learning_rate;
  const std::string slower = fmt::format("{:.3g}", 0.4 * static_cast<double>(rate));
  offer("learning rate " + slower, {{"train.learning_rate", slower, "smaller steps"}});
  return all;
}

Cost cost_of(const Experiment& experiment, const DataFacts& facts) {
  const auto labels = static_cast<double>(facts.labels), width = static_cast<double>(width_of(experiment));
  // Only about half as many, because samples of a batch share labels.
  const double of_batch = 0.5 * static_cast<double>(experiment.train.batch) * facts.labels_per_row;
  double drawn = static_cast<double>(experiment.sampling.uniform);
  if (experiment.sampling.sparsity > 0) drawn = static_cast<double>(experiment.sampling.sparsity) * labels;
  const double active =
      experiment.sampling.mode == SamplingMode::kFull ? labels : std::min(labels, drawn + of_batch);
  double hidden = facts.features_per_row * static_cast<double>(experiment.model.hidden.front());
  for (size_t layer = 1; layer < experiment.model.hidden.size(); ++layer)
    hidden += static_cast<double>(experiment.model.hidden[layer - 1]) * experiment.model.hidden[layer];
  constexpr double kProductsOfAStep = 3;  // logits, hidden gradient, weight gradient
  return {.train = kProductsOfAStep * (hidden + active * width),
          .score = hidden + labels * width,
          .propose = hidden + (labels - static_cast<double>(facts.unseen_labels)) * width};
}

double training_cost(const Experiment& experiment, const DataFacts& facts) {
  return static_cast<double>(experiment.train.epochs) * static_cast<double>(facts.rows) *
         cost_of(experiment, facts).train;
}

SampleSeconds seconds_between(const Measured& cheap, const Measured& dear) {
  if (cheap.cost >= dear.cost) return {.per_cost = dear.seconds / dear.cost};
  const double slope = std::max(0.0, (dear.seconds - cheap.seconds) / (dear.cost - cheap.cost));
  const double beside = cheap.seconds - slope * cheap.cost;
  if (beside < 0) return {.per_cost = dear.seconds / dear.cost};
  return {.beside = beside, .per_cost = slope};
}

double seconds_of(const Experiment& experiment, const DataFacts& facts, const Pace& pace,
                  uint64_t scored_rows) {
  const Cost cost = cost_of(experiment, facts);
  const double held_out = experiment.data.validation * static_cast<double>(facts.rows);
  const double rows = static_cast<double>(facts.rows) - held_out;
  const uint32_t epochs = experiment.train.epochs, every = experiment.train.evaluate_every;
  const uint32_t evaluations = every == 0 ? 1 : (epochs + every - 1) / every;
  // If samples are held out, the test data is scored once, at the end.
  const auto scored = static_cast<double>(scored_rows);
  double seconds =
      pace.start + epochs * rows * pace.train.at(cost.train) +
      (held_out > 0 ? evaluations * held_out + scored : evaluations * scored) * pace.score.at(cost.score);
  if (has_classifiers(experiment.model))
    seconds += evaluations * (static_cast<double>(classifier_rows(static_cast<size_t>(rows))) *
                                  pace.score.at(cost.propose) +
                              rows * pace.fit);
  return seconds;
}

uint64_t model_bytes(const Experiment& experiment, const DataFacts& facts) {
  uint64_t bytes = 0;
  const DataShape shape{.features = facts.features,
                        .labels = facts.labels,
                        .train_rows = facts.rows,
                        .features_per_row = facts.features_per_row,
                        .labels_per_row = facts.labels_per_row,
                        .occurring_features = facts.occurring_features};
  for (const ModeletSpec& modelet : partition_model(experiment, shape))
    bytes += modelet_bytes(modelet, experiment) + pair_bytes(modelet, experiment, shape);
  return bytes;
}

namespace {

// What makes a recipe so many times as wide, with so many epochs, with or without its classifiers, as far as
// these are free.
std::vector<Setting> resized(const GivenKeys& given, const DataFacts& facts, const Experiment& recipe,
                             double multiple, uint32_t epochs, bool classifiers) {
  const GivenKeys from{recipe, given.keys};
  Rules rules(from);
  const auto width = static_cast<uint32_t>(multiple * width_of(recipe)) / 16 * 16;
  if (recipe.model.hidden.size() == 1 && width != width_of(recipe))
    rules.set("model.hidden", list_of(std::clamp(width, std::min(kNarrowest, width_of(recipe)), kWidest)),
              "what the time allows");
  if (epochs != recipe.train.epochs)
    rules.set("train.epochs", std::to_string(epochs), "what the time allows");
  if (!classifiers && has_classifiers(recipe.model))
    rules.set("model.classifiers", "0", "the time is better spent on the network");
  if (multiple != 1) choose_modelets(rules);
  if (multiple != 1 || epochs != recipe.train.epochs) choose_dropout(rules, facts);
  return rules.take();
}

}  // namespace

Fitted fit_to_time(const GivenKeys& given, const DataFacts& facts, const Machine& machine,
                   const Experiment& recipe, double seconds, const Pace& pace, uint64_t scored_rows) {
  // Widths as multiples of the recipe's, and with each the most and the fewest epochs, as multiples of the
  // recipe's. Half the width costs less of what is learned than half the epochs, and classifiers pay even beside a
  // sixteenth of the width (docs/studies/recipes.md).
  struct Rung {
    double width, most, fewest;
    bool classifiers = true;
  };
  constexpr std::array<Rung, 11> kLadder = {{{2, 1, 1},
                                             {1, 1, 0.8},
                                             {0.75, 1, 0.8},
                                             {0.5, 1, 0.6},
                                             {0.25, 1, 0.6},
                                             {0.125, 0.8, 0.4},
                                             {0.0625, 0.8, 0.4},
                                             {0.25, 0.8, 0.5, false},
                                             {0.125, 0.6, 0.3, false},
                                             {0.0625, 0.4, 0.2, false},
                                             {0, 0.3, 0, false}}};
  const auto limit = kMemoryShare * static_cast<double>(machine.memory_bytes);
  const auto epochs_of = [&](double multiple) {
    return std::max(1u, static_cast<uint32_t>(std::lround(multiple * recipe.train.epochs)));
  };
  Fitted fitted;
  for (const Rung& rung : kLadder) {
    for (uint32_t epochs = epochs_of(rung.most); epochs >= epochs_of(rung.fewest); --epochs) {
      fitted.settings = resized(given, facts, recipe, rung.width, epochs, rung.classifiers);
      const Experiment tried = with_settings(recipe, fitted.settings);
      if (rung.width > 1 && static_cast<double>(model_bytes(tried, facts)) > limit) break;
      if (seconds_of(tried, facts, pace, scored_rows) <= seconds) return fitted;
      if (given.keys.contains("train.epochs")) break;
    }
  }
  fitted.fits = false;
  return fitted;
}

}  // namespace modelet::agent
