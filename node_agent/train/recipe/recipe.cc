#include "node_agent/train/recipe/recipe.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/experiment/column_use.h"
#include "base/experiment/fields.h"
#include "base/experiment/reader.h"
#include "base/experiment/towers.h"
#include "base/system/file.h"
#include "node_agent/train/recipe/regime.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/encode/guess.h"
#include "shard/data/encode/sessions_encoder.h"
#include "shard/data/read/json_lines.h"
#include "shard/data/store/prepared.h"

namespace modelet::agent {
namespace {

// The model and its optimiser's state get at most half of the memory. The other half is for the data that
// the machine keeps in memory.
constexpr double kMemoryShare = 0.5;
constexpr uint32_t kNarrowest = 32, kWidest = 4096;
// Of sessions (docs/studies/sequences.md). Items that come again and votes are worth more than what hidden layers learn, so
// these are narrow, and training is short.
constexpr float kOwnWeight = 100, kVotes = 100;
constexpr float kLittleOwnWeight = 1;  // where items seldom come again; votes need a weight
constexpr double kOftenOwn = 0.05;
constexpr uint32_t kSessionsWidth = 64, kSessionsEpochs = 2;
constexpr uint32_t kMostPairs = 1024;  // of a label, if all of them would take too much
constexpr float kInputDropout = 0.3f;  // of small tables
constexpr const char* kManyColumns = "no column is relied upon alone";
constexpr uint32_t kFewBins = 8;  // of a column of numbers: as many as a few hundred samples tell apart

// The choice in the first row of `limits` whose limit is at least `value`. The last row is for all larger
// values.
struct UpTo {
  double limit;
  uint32_t choice;
};
uint32_t by_size(double value, std::initializer_list<UpTo> limits) {
  for (const UpTo& row : limits)
    if (value <= row.limit) return row.choice;
  return std::rbegin(limits)->choice;
}

// With three digits.
float rounded(double value) {
  const double digit = std::pow(10, std::floor(std::log10(value)) - 2);
  return static_cast<float>(std::round(value / digit) * digit);
}

// The largest width up to this one that kernels can process.
uint32_t whole_vectors(uint32_t width) { return width - width % kColumnAlignment; }

// ".csv" of "train.csv.xz".
std::string extension_of(std::filesystem::path path) {
  if (path.extension() == ".xz" || path.extension() == ".gz") path.replace_extension();
  return path.extension().string();
}

bool too_large(const Experiment& now, const DataFacts& facts, const Machine& machine) {
  return static_cast<double>(model_bytes(now, facts)) >
         kMemoryShare * static_cast<double>(machine.memory_bytes);
}

bool has_label_columns(const Experiment& now) {
  const DataFormat format = now.data.format;
  if (format == DataFormat::kTable || format == DataFormat::kCriteo) return true;
  return format == DataFormat::kColumns &&
         std::ranges::any_of(column_uses(now.columns),
                             [](const auto& each) { return each.second.type == ColumnType::kLabel; });
}

// Softmax learns nothing from samples without a label. Where labels are columns of 0 and 1, these are the negatives.
bool all_have_labels(const Experiment& now, const DataFacts& facts) {
  constexpr double kNearlyAll = 0.95;
  return facts.labels_per_row > kNearlyAll && !has_label_columns(now);
}

// Chooses settings one after the other. Each may depend on those before it. Given keys stay unchanged.
class Rules {
 public:
  explicit Rules(const GivenKeys& given, const DataFacts& facts = {}, const Machine& machine = {})
      : given_(given.keys),
        wants_towers_(given.towers),
        facts_(facts),
        machine_(machine),
        recipe_{.experiment = given.experiment} {}

  Recipe for_reading() {
    const Experiment::Data& data = now_.data;
    if (shard::is_prepared(data.train)) {
      set(data.normalize, shard::Dataset::open(data.train, false, shard::no_labels()).normalize(),
          "as the file was prepared");
      return std::move(recipe_);
    }
    if (!now_.columns.empty() && free(data.format)) return for_columns();  // such as the target
    const std::string extension = extension_of(data.train);
    if (extension == ".csv" || extension == ".tsv") {
      set(data.format, DataFormat::kCsv, "the file's name ends with " + extension);
      if (extension == ".tsv") set(now_.csv.delimiter, Delimiter::kTab, "the file's name ends with .tsv");
    }
    const DataFormat format = shard::format_of(data.train, encoding_of(now_));
    if (format == DataFormat::kText || format == DataFormat::kCsv) {
      set(now_.text.weight, TextWeight::kTfIdf, "rare words say more than common ones");
      set(data.normalize, Normalize::kL2, "a long text weighs as much as a short one");
    }
    if (format == DataFormat::kSessions) last_items();
    return std::move(recipe_);
  }

  Recipe for_scaling() {
    constexpr float kLarge = 4;  // measurements up to this size can be learned without scaling
    const DataFormat format = now_.data.format;
    const Normalize& normalize = now_.data.normalize;
    if (facts_.unit_rows)
      set(normalize, Normalize::kNone, "every sample has length 1 already");
    else if (bags_of_sessions())
      set(normalize, Normalize::kNone, "the newest item has the same value in short and long sessions");
    else if (format == DataFormat::kTable || format == DataFormat::kCriteo || format == DataFormat::kWords)
      set(normalize, Normalize::kNone, "columns and words have values of their own");
    else if (facts_.dense() && std::max(-facts_.smallest, facts_.largest) <= kLarge)
      set(normalize, Normalize::kNone, "measurements of about 1, whose size may matter");
    else
      set(normalize, Normalize::kL2, "samples of different lengths weigh the same");
    return std::move(recipe_);
  }

  Recipe for_training() {
    if (wants_towers_) towers();
    if (model_.towers == 1) loss();
    sampling_mode();
    if (now_.data.format == DataFormat::kWords) {
      running_text();
    } else {
      width();
      direct_path();
      pace();
      dropout();
    }
    draws();
    weights();
    modelets();
    bookkeeping();
    return std::move(recipe_);
  }

  // Scales the width and sets the epochs of a complete recipe, and takes its classifiers away if so asked.
  Recipe resized(double multiple, uint32_t epochs, bool classifiers) {
    const bool other_width = multiple != 1, other_epochs = epochs != train_.epochs;
    const uint32_t before = model_.hidden.back();
    const uint32_t width = whole_vectors(static_cast<uint32_t>(multiple * before));
    if (model_.hidden.size() == 1 && width != before)
      set(model_.hidden, {std::clamp(width, std::min(kNarrowest, before), kWidest)}, "what the time allows");
    if (other_epochs) set(train_.epochs, epochs, "what the time allows");
    if (!classifiers && has_classifiers(model_))
      set(model_.classifiers, 0, "the time is better spent on the network");
    if (other_width) modelets();
    if (other_width || other_epochs) dropout();
    return std::move(recipe_);
  }

 private:
  // What next items need (docs/studies/sequences.md): a long bag, for items that come again and for votes, in which the
  // newest items count most. Places and pairs teach votes nothing.
  void last_items() {
    constexpr double kDirected = 0.5;
    if (free(now_.sessions.positions) && free(now_.sessions.pairs) &&
        shard::session_direction(shard::LineReader(now_.data.train)) > kDirected)
      return;  // places and pairs stay: they tell the order
    const Experiment::Sessions& sessions = now_.sessions;
    set(sessions.window, 50, "an item may come again long after");
    set(sessions.decay, 0.9f, "the newest items say most");
    set(sessions.positions, 0, "the bag tells how far back items are");
    set(sessions.pairs, 0, "a pair is too rare to say more than its items");
  }

  // Some columns are given, such as the target. The others are guessed.
  Recipe for_columns() {
    set(now_.data.format, DataFormat::kColumns, "columns are given");
    if (!shard::is_json_lines(std::filesystem::path(now_.data.train)))
      set(now_.csv.delimiter, shard::guess_delimiter(now_.data.train), "the first line has it");
    ColumnUses given = column_uses(now_.columns);
    std::set<std::string> open;
    for (const auto& [name, use] : given)
      if (!given_.contains("columns." + name)) open.insert(name);
    const shard::ColumnGuess guess = shard::guess_columns(now_.data.train, now_.csv, given, open);
    bool words = false;
    for (const shard::GuessedColumn& column : guess.columns) {
      words |= column.use.type == ColumnType::kText;
      if (given.contains(column.name) && !open.contains(column.name)) continue;
      recipe_.experiment.columns[column.name] = to_text(column.use);
      recipe_.explain({"columns." + column.name, column.reason});
    }
    if (words) set(now_.text.weight, TextWeight::kTfIdf, "rare words say more than common ones");
    if (guess.whole && guess.records <= kFewSamples)
      set(now_.table.bins, kFewBins, "few samples fill few ranges of numbers");
    return std::move(recipe_);
  }

  // Two divisions of towers that are half as wide as one network learn what it learns (docs/studies/towers.md). More
  // towers learn a little less, so there are no more than the nodes can use at once.
  void towers() {
    constexpr uint64_t kFewLabels = 2048, kFewestOfTower = 1024;
    if (facts_.labels <= kFewLabels)
      return set(model_.towers, 1, fmt::format("{} labels are too few to be divided", facts_.labels));
    if (now_.data.format == DataFormat::kWords || (!free(model_.loss) && model_.loss == Loss::kSoftmax))
      return set(model_.towers, 1, "a softmax is over all labels");
    set(model_.loss, Loss::kSigmoid, "answers of towers are merged by logits, and those of a softmax cannot be compared");
    set(model_.divisions, 2, "two narrow towers for each label learn as much as one wide network");
    set(model_.tower_labels, TowerLabels::kMixed, "two divisions that differ complement each other");
    uint32_t count = by_size(static_cast<double>(facts_.labels), {{16384, 4}, {0, 8}});
    while (count * model_.divisions < machine_.nodes && facts_.labels / (2 * count) >= kFewestOfTower) count *= 2;
    set(model_.towers, count,
        fmt::format("{} labels{}", facts_.labels,
                    machine_.nodes > 1 ? fmt::format(", and {} nodes", machine_.nodes) : " are divided as asked for"));
  }

  void loss() {
    if (facts_.labels < 2)
      set(model_.loss, Loss::kSigmoid, "there is one label, which a sample has or not");
    else if (!facts_.one_label())
      set(model_.loss, Loss::kSigmoid,
          fmt::format("a sample has {:.1f} labels in the mean, each a question of its own",
                      facts_.labels_per_row));
    else if (all_have_labels(now_, facts_))
      set(model_.loss, Loss::kSoftmax, "a sample has one label, and labels exclude each other");
    else
      set(model_.loss, Loss::kSigmoid, "some samples have no label, and count as negatives");
  }

  // How weights and what the optimiser knows of them are kept. A large model takes a third of the memory: half by
  // bf16, and a third less without Adam's mean (decision 34).
  void weights() {
    constexpr uint64_t kSmallModel = uint64_t{16} << 20;  // bytes; smaller ones were not measured
    constexpr uint64_t kLargeModel = uint64_t{2} << 30;   // bytes with Adam in fp32
    Experiment usual = now_;
    usual.model.precision = Precision::kFp32;
    usual.optimizer.kind = OptimizerKind::kAdam;
    const bool large = model_bytes(usual, facts_) > kLargeModel || too_large(usual, facts_, machine_);
    if (large && model_.loss == Loss::kSigmoid)
      set(now_.optimizer.kind, OptimizerKind::kRmsprop,
          "a mean of gradients takes memory, and teaches nothing more");
    if (!machine_.bf16_products && !large)
      set(model_.precision, Precision::kFp32, "this processor multiplies floats as fast as bf16");
    else if (model_bytes(now_, facts_) > kSmallModel)
      set(model_.precision, Precision::kBf16,
          machine_.bf16_products ? "half the memory, and this processor multiplies it faster"
                                 : "half the memory");
    else
      set(model_.precision, Precision::kFp32, "the model is small");
  }

  void width() {
    if (!free(model_.hidden)) return;
    if (votes())
      return set(model_.hidden, {kSessionsWidth}, "beside votes, a wide layer learns nothing more");
    uint32_t width =
        by_size(static_cast<double>(facts_.rows), {{2000, 128}, {kFewSamples, 256}, {20000, 512}, {0, 1024}});
    std::string reason = fmt::format("{} samples", facts_.rows);
    if (facts_.labels <= 64 || facts_.dense()) {
      width = std::min(width, facts_.dense() || facts_.labels < kSeveralLabels ? 256u : 512u);
      reason += facts_.dense() ? " of measurements" : fmt::format(", only {} labels", facts_.labels);
    }
    if (free(model_.centroids) || model_.centroids) {
      constexpr uint32_t kWideForFewSamples = 256;
      if (rich()) width = std::max(width, kWideForFewSamples);
      const Widest& limit = regime().widest;
      const uint32_t widest = facts_.rows <= kManySamples ? limit.usual : limit.many_samples;
      if (width > widest) reason += fmt::format(fmt::runtime(limit.reason), facts_.labels_per_row);
      width = std::min(width, widest);
    }
    if (model_.towers > 1) {
      width = width_of_tower(width);
      reason += fmt::format(", divided between {} towers", model_.towers);
    }
    set(model_.hidden, {width}, reason);
    weights();
    width = with_towers(width);
    while (width > kNarrowest && too_large_with_pairs()) {
      width = std::max(kNarrowest, whole_vectors(width / 2));
      set(model_.hidden, {width}, "a wider one would take more than half of the memory");
    }
  }

  // Whether the network is, with the direct path that may be chosen later.
  bool too_large_with_pairs() {
    Experiment whole = now_;
    if (free(model_.centroids)) whole.model.centroids = true;
    if (free(model_.centroid_pairs)) whole.model.centroid_pairs = kMostPairs;
    return too_large(whole, facts_, machine_);
  }

  // A tower has fewer labels to tell apart (docs/studies/towers.md).
  uint32_t width_of_tower(uint32_t width) const {
    constexpr uint32_t kNarrowestTower = 128;
    return std::min(width, std::max(kNarrowestTower, whole_vectors(width / (model_.divisions > 1 ? 2 : 3))));
  }

  // Divides a network that is too large into towers, of which only one is in memory. Returns the width.
  uint32_t with_towers(uint32_t width) {
    constexpr uint64_t kFewestLabels = 64;  // of a tower
    if (!too_large_with_pairs() || !free(model_.towers) || model_.loss != Loss::kSigmoid) return width;
    for (uint32_t towers = 2 * model_.towers;
         towers <= kMostTowers && facts_.labels / towers >= kFewestLabels && too_large_with_pairs();
         towers *= 2) {
      set(model_.towers, towers,
          "one network would take more than half of the memory, and only one tower is in memory");
      set(model_.hidden, {width_of_tower(width)},
          fmt::format("{} samples, divided between towers", facts_.rows));
    }
    return model_.hidden.back();
  }

  void sampling_mode() {
    constexpr uint64_t kFew = 2048;
    if (facts_.labels <= kFew)
      set(now_.sampling.mode, SamplingMode::kFull,
          fmt::format("{} labels are few enough for all to take part", facts_.labels));
    else
      set(now_.sampling.mode, SamplingMode::kUniform,
          fmt::format("{} labels are too many for each step", facts_.labels));
  }

  // Whether samples are bags of sessions, whose order says little.
  bool bags_of_sessions() const {
    return now_.data.format == DataFormat::kSessions && shard::reads_both_ways(now_.sessions);
  }
  // Whether next items may be in such a bag already.
  bool votes() {
    return bags_of_sessions() && !facts_.own_excluded && !model_.exclude_own &&
           (free(model_.own_weight) || model_.own_weight > 0);
  }

  // A word or an item says something about labels by itself. A measurement does so only together with others.
  void direct_path() {
    if (labels_of(facts_) < Labels::kSeveral || now_.sampling.mode == SamplingMode::kLshPerSample) return;
    set(model_.centroids, true,
        facts_.labels < kManyLabels
            ? std::string("the mean samples of the labels have the features that classifiers weigh")
            : fmt::format("{} of {} labels occur once or twice: their mean sample says more "
                          "than a hidden layer keeps",
                          facts_.rare_labels, facts_.labels));
    if (too_large(now_, facts_, machine_))
      set(model_.centroid_pairs, kMostPairs, "all of them would take more than half of the memory");
    if (!model_.centroids) return;
    if (facts_.own_excluded)
      set(model_.exclude_own, true, "features and labels are the same items, and no sample has one as both");
    if (now_.sampling.mode == SamplingMode::kUniform)
      set(now_.sampling.prior, regime().prior, "drawing labels makes rare ones too likely");
    set(model_.centroid_share, regime().centroid_share,
        "hidden layers know the samples of rare labels by heart");
    if (votes()) {
      set(model_.own_weight, facts_.own_share >= kOftenOwn ? kOwnWeight : kLittleOwnWeight,
          fmt::format("{:.0f} % of the next items are in the session already", 100 * facts_.own_share));
      set(model_.classifiers, kVotes,
          "sessions with the same items vote for what came next");
      return;
    }
    set(model_.classifiers, regime().classifiers(facts_),
        "linear classifiers correct what hidden layers get wrong");
    if (const float trust = regime().rare_trust(facts_); trust < 1)
      set(model_.rare_trust, trust, "what is learned of few samples is too sure of itself");
  }

  // Beside a direct path, hidden layers learn what is common to many labels, and larger steps take them there in
  // fewer passes (docs/studies/recipes.md). With softmax the samples of a rare label would be learned by heart.
  void learning_rate() {
    const double scale = std::min(1.0, std::sqrt(static_cast<double>(train_.batch) / 256));
    if (model_.centroids && model_.loss == Loss::kSigmoid)
      set(train_.learning_rate, 0.01f, "large steps, since a direct path knows the rare labels");
    else if (facts_.dense())
      set(train_.learning_rate, rounded(3e-3 * scale), "measurements change every weight in each step");
    else
      set(train_.learning_rate, rounded(5e-3 * scale), "sparse features are seen rarely");
  }

  // Batch, epochs and learning rate are chosen together: what counts is the number of steps and their size.
  void pace() {
    const auto rows = static_cast<double>(std::max<uint64_t>(facts_.rows, 1));
    const uint32_t batch = by_size(rows, {{1000, 32}, {4000, 64}, {16000, 128}, {2e6, 256}, {0, 512}});
    set(train_.batch, batch, "small data needs small steps to have enough of them");
    // Beside classifiers, more passes would only learn samples by heart.
    const bool centroids = model_.centroids, classifiers = has_classifiers(model_);
    const bool softmax = model_.loss == Loss::kSoftmax;
    double epochs = !centroids ? 10 : !classifiers ? 9 : softmax ? regime().softmax_epochs : 7;
    const double growth = !centroids ? 0.3 : classifiers && rich() ? 0.2 : 0.4;
    constexpr double kUsualRows = 40000, kManyRows = 200000;
    if (rows < kUsualRows) epochs *= std::pow(kUsualRows / rows, growth);
    if (rows > kManyRows) epochs *= std::sqrt(kManyRows / rows);
    if (votes()) epochs = kSessionsEpochs;
    set(train_.epochs, static_cast<uint32_t>(std::clamp<int64_t>(std::llround(epochs), 2, 60)),
        fmt::format("{} samples", facts_.rows));
    learning_rate();
    set(train_.schedule, ScheduleKind::kLinear, "the last passes settle what the first ones found");
    set(now_.optimizer.row_clocks, true, "rare features and labels are not pushed too far at first");
  }

  // Draws of a step. Frequent labels are in most batches anyway, so with many steps few draws are enough for rare ones.
  // Where each label has a classifier, which meets hard negatives of its own, a few for each sample of the batch teach
  // as much as many more. Not with softmax (docs/studies/recipes.md).
  void draws() {
    if (now_.sampling.mode == SamplingMode::kFull) return;
    constexpr uint32_t kFewest = 512, kUsual = 2048, kMost = 4096;
    const bool rare = labels_of(facts_) >= Labels::kMixed;
    uint32_t least = kUsual;
    if (rare && facts_.rows > kManySamples)
      least = kFewest;
    else if (has_classifiers(model_) && model_.loss == Loss::kSigmoid)
      least = std::clamp((rare ? 4 : 2) * train_.batch, kFewest, kUsual);
    const uint32_t fewest_of_tower = model_.divisions > 1 ? 256 : 128;
    if (model_.towers > 1) least = std::max(fewest_of_tower, least / model_.towers);
    const auto draws =
        std::clamp<uint64_t>(std::bit_floor(facts_.labels / model_.towers / 128), least, kMost);
    set(now_.sampling.uniform, static_cast<uint32_t>(draws),
        "some of the labels: more teach more, and take longer");
  }

  void dropout() {
    const uint32_t width = model_.hidden.back();
    const bool few_passes = train_.epochs <= 2, little = few_passes || facts_.dense() || width < 256;
    const bool strong = width >= 512 || (facts_.rows <= kFewSamples && has_classifiers(model_) && rich());
    set(train_.hidden_dropout,
        little   ? 0.1f
        : strong ? 0.5f
                 : 0.3f,
        few_passes ? "nothing is seen often enough to be learned by heart"
                   : "wide layers learn samples by heart without it");
    if (facts_.rows <= kFewSamples && is_small_table(now_, facts_)) set(train_.input_dropout, kInputDropout, kManyColumns);
  }

  void modelets() {
    set(now_.modelets.hidden_columns,
        std::clamp<uint32_t>(std::bit_floor(model_.hidden.front() / 8), 16, 128),
        "wide rows are read faster; up to eight nodes can share the layer");
  }

  // Without held-out samples, the weights of the last step are the result, so test data is needed only once. And
  // a run of a few minutes needs no checkpoints on its way.
  void bookkeeping() {
    if (now_.data.validation > 0)
      set(train_.evaluate_every, 1, "the held-out samples tell which epoch did best");
    else
      set(train_.evaluate_every, 0, "the test data is used once, at the end");
    constexpr double kLongRun = 4e13;  // of training_cost(): about six minutes on two cores
    if (training_cost(now_, facts_) < kLongRun)
      set(train_.checkpoint_every, 1000000000, "a short run: only at its end, and when it is stopped");
  }

  void running_text() {
    set(model_.hidden, {128}, "the usual length of word vectors");
    set(train_.epochs, 3, "running text repeats itself");
    set(train_.batch, 1024, "a word is a small sample");
    set(train_.learning_rate, 2e-3f, "found good for word vectors");
    set(train_.hidden_dropout, 0, "a vector of a word is not redundant");
  }

  // `value`: a member of now_, which stands for its key.
  template <class T>
  bool free(const T& value) {
    return !given_.contains(std::string(field_of(recipe_.experiment, value).key));
  }
  template <class T>
  void set(const T& value, const std::type_identity_t<T>& chosen, const std::string& reason) {
    if (!free(value)) return;
    const Field& field = field_of(recipe_.experiment, value);
    *std::get<T*>(field.target(recipe_.experiment)) = chosen;
    recipe_.explain({std::string(field.key), reason});
  }

  const Regime& regime() const { return regime_of(facts_, model_.loss); }
  // Whether few samples need a wider layer with more dropout, and fewer passes.
  bool rich() const {
    return labels_of(facts_) >= Labels::kFrequent && !short_samples(facts_) && model_.loss == Loss::kSigmoid;
  }

  const std::set<std::string> given_;
  const bool wants_towers_;
  const DataFacts facts_;
  const Machine machine_;
  Recipe recipe_;
  const Experiment& now_ = recipe_.experiment;  // with what was set so far
  const Experiment::Model& model_ = now_.model;
  const Experiment::Train& train_ = now_.train;
};

}  // namespace

void Recipe::explain(Reason reason) {
  std::erase_if(chosen, [&](const Reason& before) { return before.key == reason.key; });
  chosen.push_back(std::move(reason));
}

namespace {

// Of given values: the keys. Adds to `settings` what they imply.
GivenKeys keys_of(const std::map<std::string, std::string>& values, std::vector<std::string>& settings) {
  struct Implied {
    const char *given, *neutral;  // with this value, as toml_text() writes it, the key needs nothing
    const char *key, *value;
  };
  constexpr Implied kImplied[] = {{"model.exclude_own", "false", "model.centroids", "true"},
                                  {"model.own_weight", "0", "model.centroids", "true"},
                                  {"model.rare_trust", "1", "model.loss", "sigmoid"},
                                  {"model.towers", "1", "model.loss", "sigmoid"}};
  GivenKeys given;
  for (const auto& [key, value] : values) given.keys.insert(key);
  if (const auto towers = values.find("model.towers"); towers != values.end() && towers->second == "\"auto\"") {
    if (given.keys.contains("model.divisions"))
      throw UsageError("model.divisions: is chosen together with model.towers = auto; leave it out, or give both");
    given.towers = true;
    given.keys.erase("model.towers");
    settings.emplace_back("model.towers=1");
  }
  for (const Implied& each : kImplied)
    if (given.keys.contains(each.given) && values.at(each.given) != each.neutral && given.keys.insert(each.key).second)
      settings.push_back(std::string(each.key) + "=" + each.value);
  return given;
}

}  // namespace

GivenKeys given_settings(const std::string& origin, std::vector<std::string> settings) {
  GivenKeys given = keys_of(given_values("", origin, settings), settings);
  given.experiment = parse_experiment("", origin, settings);
  return given;
}

GivenKeys given_in_file(const std::filesystem::path& file, std::vector<std::string> settings) {
  constexpr size_t kMostFileBytes = size_t{1} << 20;
  GivenKeys given = keys_of(given_values(read_text_file(file, kMostFileBytes), file, settings), settings);
  given.experiment = load_experiment(file, settings);
  return given;
}

Recipe reading_recipe(const GivenKeys& given) { return Rules(given).for_reading(); }

Recipe scaling_recipe(const GivenKeys& given, const DataFacts& facts) {
  return Rules(given, facts).for_scaling();
}

Recipe training_recipe(const GivenKeys& given, const DataFacts& facts, const Machine& machine) {
  return Rules(given, facts, machine).for_training();
}

bool is_small_table(const Experiment& recipe, const DataFacts& facts) {
  constexpr uint64_t kFewestRows = 100, kMostLabels = 64;
  constexpr double kQuickTraining = 2e10;  // of training_cost(): some seconds
  return recipe.data.format == DataFormat::kColumns && !recipe.model.centroids && facts.one_label() &&
         facts.rows >= kFewestRows && facts.labels <= kMostLabels && training_cost(recipe, facts) <= kQuickTraining;
}

namespace {

void smaller_steps(Experiment& experiment) {
  float& rate = experiment.train.learning_rate;
  rate = rounded(0.4 * static_cast<double>(rate));
}

// What decides how much a model of a small table learns by heart.
std::vector<Alternative> alternatives_of_table(const Experiment& recipe, const DataFacts& facts) {
  std::vector<Alternative> all;
  if (recipe.train.input_dropout > 0)
    all.push_back({"no input dropout",
                   {{"train.input_dropout", "each column counts"}},
                   [](Experiment& experiment) { experiment.train.input_dropout = 0; }});
  else
    all.push_back({fmt::format("input dropout {}", kInputDropout),
                   {{"train.input_dropout", kManyColumns}},
                   [](Experiment& experiment) { experiment.train.input_dropout = kInputDropout; }});
  if (recipe.table.bins > kFewBins)
    all.push_back({fmt::format("{} ranges", kFewBins),
                   {{"table.bins", "wide ranges of numbers"}},
                   [](Experiment& experiment) { experiment.table.bins = kFewBins; }});
  else
    all.push_back({fmt::format("{} ranges", Experiment::Table().bins),
                   {{"table.bins", "narrow ranges of numbers"}},
                   [](Experiment& experiment) { experiment.table.bins = Experiment::Table().bins; }});
  all.push_back({"linear classifiers",
                 {{"model.centroids", "for the classifiers"},
                  {"model.classifiers", "linear classifiers correct what the hidden layer gets wrong"}},
                 [](Experiment& experiment) {
                   experiment.model.centroids = true;
                   experiment.model.classifiers = 2.5f;
                 }});
  all.push_back({"smaller steps", {{"train.learning_rate", "smaller steps"}}, smaller_steps});
  all.push_back({"a quarter of the passes",
                 {{"train.epochs", "more passes learn the samples by heart"}},
                 [](Experiment& experiment) { experiment.train.epochs = std::max(2u, experiment.train.epochs / 4); }});
  if (facts.rows <= kFewSamples)
    all.push_back({"three times the passes",
                   {{"train.epochs", "few samples are few steps"}},
                   [](Experiment& experiment) { experiment.train.epochs *= 3; }});
  return all;
}

}  // namespace

std::vector<Alternative> alternatives(const GivenKeys& given, const DataFacts& facts,
                                      const Experiment& recipe) {
  std::vector<Alternative> all;
  const auto offer = [&](Alternative alternative) {
    if (std::ranges::none_of(alternative.chosen, [&](const Reason& each) { return given.keys.contains(each.key); }))
      all.push_back(std::move(alternative));
  };
  if (is_small_table(recipe, facts)) {
    for (Alternative& each : alternatives_of_table(recipe, facts)) offer(std::move(each));
    return all;
  }
  // Studies of data with many labels have decided everything. If most of these are rare, a short trial would
  // favour softmax, which learns the frequent ones first.
  if (has_classifiers(recipe.model) && facts.labels >= kManyLabels) return all;
  const bool needs_sigmoid =
      recipe.model.rare_trust != 1 || recipe.model.towers > 1 || !all_have_labels(recipe, facts);
  if (recipe.model.loss == Loss::kSigmoid && facts.labels >= 2 && !needs_sigmoid)
    offer({"loss softmax", {{"model.loss", "labels compete for a sample"}},
           [](Experiment& experiment) { experiment.model.loss = Loss::kSoftmax; }});
  else if (recipe.model.loss == Loss::kSoftmax)
    offer({"loss sigmoid", {{"model.loss", "each label is a question of its own"}},
           [](Experiment& experiment) { experiment.model.loss = Loss::kSigmoid; }});
  if (recipe.model.centroids) return all;
  Experiment slower = recipe;
  smaller_steps(slower);
  offer({fmt::format("learning rate {}", slower.train.learning_rate), {{"train.learning_rate", "smaller steps"}},
         smaller_steps});
  return all;
}

Fitted fit_to_time(const GivenKeys& given, const DataFacts& facts, const Machine& machine,
                   const Experiment& recipe, double seconds, const Pace& pace, uint64_t scored_rows) {
  // Widths as multiples of the recipe's, and with each the most and the fewest epochs, as multiples of the
  // recipe's. Half the width costs less of what is learned than half the epochs, and classifiers pay even beside a
  // sixteenth of the width (docs/studies/recipes.md).
  struct Size {
    double width, most, fewest;
    bool classifiers = true;
  };
  constexpr Size kSizes[] = {{2, 1, 1},
                             {1, 1, 0.8},
                             {0.75, 1, 0.8},
                             {0.5, 1, 0.6},
                             {0.25, 1, 0.6},
                             {0.125, 0.8, 0.4},
                             {0.0625, 0.8, 0.4},
                             {0.25, 0.8, 0.5, false},
                             {0.125, 0.6, 0.3, false},
                             {0.0625, 0.4, 0.2, false},
                             {0, 0.3, 0, false}};
  const auto epochs_of = [&](double multiple) {
    return std::max(1u, static_cast<uint32_t>(std::lround(multiple * recipe.train.epochs)));
  };
  Fitted fitted;
  for (const Size& size : kSizes) {
    for (uint32_t epochs = epochs_of(size.most); epochs >= epochs_of(size.fewest); --epochs) {
      fitted.recipe = Rules({recipe, given.keys}, facts).resized(size.width, epochs, size.classifiers);
      const Experiment& tried = fitted.recipe.experiment;
      if (size.width > 1 && too_large(tried, facts, machine)) break;
      if (seconds_of(tried, facts, pace, scored_rows) <= seconds) return fitted;
      if (given.keys.contains("train.epochs")) break;
    }
  }
  fitted.fits = false;
  return fitted;
}

}  // namespace modelet::agent
