#include "scheduler/cli/verbs/data.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/experiment/column_use.h"
#include "base/system/file.h"
#include "base/text/printable.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/cli/options/output.h"
#include "scheduler/cli/options/recipe.h"
#include "scheduler/client/report.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/encode/guess.h"
#include "shard/data/read/json_lines.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/prepared.h"
#include "shard/modelet/checkpoint.h"
#include "shard/synth/synth.h"
#include "shard/synth/synth_accounts.h"
#include "shard/synth/synth_clicks.h"

namespace modelet::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using shard::Dataset;

// What require_writable() finds free may be taken when it is written.
Existing existing_files(bool force) { return force ? Existing::kReplace : Existing::kKeep; }

// ---- prepare

struct PrepareOptions {
  std::string in, out, normalize, like, labels;
  bool force = false, json = false;
  ReadingArguments reading;
};

// How the text of a prepared file, or of a run's data, was read.
struct Reading {
  std::vector<std::byte> encoder;
  Normalize normalize;
};

Reading reading_of(const std::string& like) {
  if (fs::is_directory(like)) {
    const shard::Checkpoint checkpoint = shard::Checkpoint::open(shard::find_checkpoint(like));
    return {checkpoint.read_encoder(), checkpoint.index().experiment.data.normalize};
  }
  const Dataset data = Dataset::open(like, true);
  return {{data.encoder().begin(), data.encoder().end()}, data.normalize()};
}

// Names of labels, one a line; each once.
std::vector<std::string> names_in(const fs::path& file) {
  std::vector<std::string> names;
  std::unordered_set<std::string> known;
  std::string_view line;
  for (shard::LineReader lines(file); lines.next(line);) {
    if (line.empty()) lines.fail("a label without a name");
    shard::require_label_length(line, [&](const std::string& what) { lines.fail(what); });
    if (!known.insert(names.emplace_back(line)).second) lines.fail("the label " + shard::quoted(line) + " is there twice");
  }
  if (names.empty()) throw FormatError(file.string() + ": has no label");
  return names;
}

// Of text whose features are hashed and whose labels are listed: no data is needed to know them.
std::vector<std::byte> hashed_reading(const PrepareOptions& options) {
  Encoding encoding = options.reading.load();
  encoding.format = shard::format_of(options.in, encoding);
  return shard::hashed_encoder(encoding, names_in(options.labels))->state();
}

void prepare(const PrepareOptions& options) {
  if (shard::is_prepared(options.in))
    throw UsageError(options.in + ": is prepared already; give the text it was made of");
  require_writable(options.out, options.force, {options.in, options.like});
  Reporter reporter(options.json);
  const shard::PrepareProgress progress = report_preparing(reporter, options.in);
  const Normalize normalize = options.normalize == "l2" ? Normalize::kL2 : Normalize::kNone;
  if (!options.labels.empty()) {
    shard::prepare_data(options.in, normalize, hashed_reading(options), options.out, progress, existing_files(options.force));
  } else if (options.like.empty()) {
    shard::prepare_training_data(options.in, normalize, options.reading.load(), options.out, progress,
                                 existing_files(options.force));
  } else {
    const Reading like = reading_of(options.like);
    if (!options.normalize.empty() && options.normalize != spelling(like.normalize))
      throw UsageError(options.like + ": has the normalisation '" + std::string(spelling(like.normalize)) +
                       "', and what is --like it too; leave --normalize out");
    shard::prepare_data(options.in, like.normalize, like.encoder, options.out, progress,
                        existing_files(options.force));
  }
  const Dataset data = Dataset::open(options.out);
  reporter.clear_progress();
  note_unknown_labels(data.unknown_labels(), data.rows(), options.in, reporter);
  if (options.json)
    return print_line(ordered_json{{"event", "prepared"},
                                   {"file", options.out},
                                   {"rows", data.rows()},
                                   {"features", data.features()},
                                   {"labels", data.labels()},
                                   {"nonzeros", data.nonzeros()}});
  std::cout << options.out << ": " << data.rows() << " rows, " << data.features() << " features, "
            << data.labels() << " labels, " << data.nonzeros() << " non-zeros\n";
}

void add_prepare(CLI::App& data) {
  auto options = std::make_shared<PrepareOptions>();
  CLI::App* verb = data.add_subcommand("prepare", "Turn text into a memory-mapped binary file");
  verb->footer(
      "IN is text in one of the formats of docs/data_format.md; plain, .xz or .gz. Training does this by "
      "itself through a cache; prepare a file to ship it or to check it.\n"
      "Words and labels get their ids from training data: prepare that first, other data --like it.\n\n"
      "Examples:\n"
      "  modelet data prepare train.txt.xz train.mlt\n"
      "  modelet data prepare --normalize l2 --set data.format=text --set text.word_ngrams=2 train.txt "
      "train.mlt\n"
      "  modelet data prepare --like train.mlt test.txt test.mlt\n"
      "  modelet data prepare --labels names.txt --set text.buckets=65536 test.txt test.mlt   # for owners' private text");
  verb->add_option("IN", options->in, "text (plain, .xz, .gz)")->required();
  verb->add_option("OUT", options->out, "prepared file to write")->required();
  verb->add_option(
          "--normalize", options->normalize,
          "scale each sample's features: none (default) or l2 (length one); must equal the experiment's "
          "data.normalize, which --like knows")
      ->check(CLI::IsMember({"none", "l2"}));
  options->reading.add_to(*verb);
  verb->add_option("--like", options->like,
                   "prepared training data, or a run: read IN as that was read, with its ids of labels and "
                   "features and its normalisation")
      ->check(CLI::ExistingPath)
      ->excludes("--set");
  verb->add_option("--labels", options->labels,
                   "a label's name on each line: read IN with these labels, and with every feature that hashing words and "
                   "categories can give (text.buckets, table.hash_features), so that no training data is needed to know them")
      ->check(CLI::ExistingFile)
      ->excludes("--like");
  add_force_flag(*verb, options->force);
  verb->add_flag("--json", options->json, "JSON Lines on standard output; the last line is the result");
  verb->callback([options] { prepare(*options); });
}

// ---- describe

struct DescribeOptions {
  std::string file, target, label_names;
  bool json = false, recipe = false;
  ReadingArguments reading;
};

struct Spread {
  size_t min = 0, max = 0;
  double mean = 0;
};

Spread spread_of(const std::vector<size_t>& counts) {
  if (counts.empty()) return {};
  const auto [min, max] = std::minmax_element(counts.begin(), counts.end());
  double sum = 0;
  for (const size_t count : counts) sum += static_cast<double>(count);
  return {*min, *max, sum / static_cast<double>(counts.size())};
}

void to_json(ordered_json& json, const Spread& spread) {
  json = {{"min", spread.min}, {"mean", spread.mean}, {"max", spread.max}};
}

// How often labels occur.
struct LabelFrequencies {
  std::vector<uint32_t> by_frequency;  // ids, most frequent first (ties: lower id first)
  std::vector<uint64_t> counts;        // [labels] occurrences of an id

  explicit LabelFrequencies(const Dataset& data) : by_frequency(data.labels()), counts(data.labels()) {
    for (size_t row = 0; row < data.rows(); ++row)
      for (const uint32_t label : data.sample(row).labels) ++counts[label];
    for (size_t i = 0; i < by_frequency.size(); ++i) by_frequency[i] = static_cast<uint32_t>(i);
    std::stable_sort(by_frequency.begin(), by_frequency.end(),
                     [this](uint32_t a, uint32_t b) { return counts[a] > counts[b]; });
  }

  size_t never_seen() const { return static_cast<size_t>(std::count(counts.begin(), counts.end(), 0u)); }
  // A share `q` of the labels occurs at most this many times.
  uint64_t quantile(double q) const {
    const auto place = static_cast<size_t>(q * static_cast<double>(by_frequency.size() - 1));
    return counts[by_frequency[by_frequency.size() - 1 - place]];
  }
  // The share of all occurrences that belongs to the most frequent 1 % of the labels.
  double top_percent_share() const {
    const size_t top = (by_frequency.size() + 99) / 100;
    uint64_t all = 0, of_top = 0;
    for (size_t i = 0; i < by_frequency.size(); ++i) {
      all += counts[by_frequency[i]];
      if (i < top) of_top += counts[by_frequency[i]];
    }
    return all == 0 ? 0 : static_cast<double>(of_top) / static_cast<double>(all);
  }
};

ordered_json describe_labels(const Dataset& data, const std::vector<std::string>& names) {
  const LabelFrequencies frequencies(data);
  ordered_json json;
  json["never_seen"] = frequencies.never_seen();
  ordered_json& quantiles = json["frequency_quantiles"];
  static constexpr std::pair<const char*, double> kQuantiles[] = {
      {"min", 0}, {"p25", 0.25}, {"p50", 0.5}, {"p75", 0.75}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1}};
  for (const auto& [name, q] : kQuantiles) quantiles[name] = data.labels() == 0 ? 0 : frequencies.quantile(q);
  json["top_1_percent_share"] = frequencies.top_percent_share();
  constexpr size_t kShown = 10;
  ordered_json& frequent = json["most_frequent"] = ordered_json::array();
  for (size_t i = 0; i < std::min(kShown, data.labels()); ++i) {
    const uint32_t id = frequencies.by_frequency[i];
    ordered_json entry{{"id", id}, {"count", frequencies.counts[id]}};
    if (!names.empty()) entry["name"] = names[id];
    frequent.push_back(std::move(entry));
  }
  return json;
}

// Opens a prepared file, whose checksums are verified, or text.
Dataset open_any(const std::string& path, const Encoding& encoding) {
  if (shard::is_prepared(path)) return Dataset::open(path, true);
  Reporter reporter(false);
  Dataset data =
      shard::load_training_data(path, Normalize::kNone, encoding, {}, report_preparing(reporter, path));
  reporter.clear_progress();
  return data;
}

// What training would do with the columns of a table.
ordered_json describe_columns(const DescribeOptions& options) {
  Encoding encoding = options.reading.load();
  const auto given_delimiter = std::ranges::any_of(
      options.reading.overrides, [](const std::string& key) { return key.starts_with("csv.delimiter"); });
  if (!given_delimiter && !shard::is_json_lines(fs::path(options.file)))
    encoding.csv.delimiter = shard::guess_delimiter(options.file);
  ColumnUses given = column_uses(encoding.columns);
  if (!options.target.empty()) given.try_emplace(options.target, ColumnUse{.type = ColumnType::kTarget});
  const shard::ColumnGuess guess = shard::guess_columns(options.file, encoding.csv, given, {options.target});
  ordered_json json;
  json["file"] = options.file;
  json["format"] = spelling(DataFormat::kColumns);
  if (!guess.json) json["delimiter"] = spelling(encoding.csv.delimiter);
  json["records"] = guess.records;
  json["whole"] = guess.whole;
  ordered_json& columns = json["columns"] = ordered_json::array();
  for (const shard::GuessedColumn& column : guess.columns)
    columns.push_back({{"name", column.name},
                       {"use", to_text(column.use)},
                       {"reason", column.reason},
                       {"missing", column.missing},
                       {"distinct", column.distinct},
                       {"examples", column.examples}});
  return json;
}

void print_columns(const ordered_json& json) {
  const std::string form = json.contains("delimiter") ? "delimiter " + json["delimiter"].get<std::string>() : "JSON Lines";
  std::printf("%s: a table, %s; %s %zu records\n", json["file"].get<std::string>().c_str(), form.c_str(),
              json["whole"].get<bool>() ? "all" : "the first", json["records"].get<size_t>());
  Table table({{"column", 9, false, 12},
               {"use", 8, false},
               {"missing", 5},
               {"distinct", 6},
               {"because", 7, false, 20},
               {"examples", 4, false, 20}});
  for (const ordered_json& column : json["columns"]) {
    std::string examples;
    for (const ordered_json& example : column["examples"])
      examples += (examples.empty() ? "" : ", ") + example.get<std::string>();
    table.add({printable(column["name"].get<std::string>()), column["use"].get<std::string>(),
               std::to_string(column["missing"].get<size_t>()), std::to_string(column["distinct"].get<size_t>()),
               column["reason"].get<std::string>(), examples});
  }
  print(table);
}

// Whether a file is to be described as a table: a table by its name, or with a column of labels, unless another format is
// given.
bool describes_columns(const DescribeOptions& options) {
  const DataFormat format = options.reading.load().format;
  if (format != DataFormat::kAuto) return false;
  const std::string ending = shard::plain_ending(options.file);
  return !options.target.empty() || ending == ".csv" || ending == ".tsv" || shard::is_json_lines(fs::path(options.file));
}

ordered_json describe(const DescribeOptions& options) {
  const bool prepared = shard::is_prepared(options.file);
  const Encoding encoding = options.reading.load();
  const Dataset data = open_any(options.file, encoding);
  const std::vector<std::string> names = options.label_names.empty()
                                             ? shard::label_names(data.encoder(), options.file)
                                             : shard::load_label_names(options.label_names, data.labels());
  std::vector<size_t> features, labels;
  for (size_t row = 0; row < data.rows(); ++row) {
    features.push_back(data.sample(row).features.size());
    labels.push_back(data.sample(row).labels.size());
  }
  ordered_json json;
  json["file"] = options.file;
  json["format"] = "prepared";
  if (!prepared) json["format"] = spelling(shard::format_of(options.file, encoding));
  if (prepared) json["checksums"] = "ok";  // a wrong checksum is an error
  json["normalize"] = spelling(data.normalize());
  json["rows"] = data.rows();
  json["features"] = data.features();
  json["labels"] = data.labels();
  json["nonzeros"] = data.nonzeros();
  json["features_per_row"] = spread_of(features);
  json["labels_per_row"] = spread_of(labels);
  json["rows_without_features"] = static_cast<size_t>(std::count(features.begin(), features.end(), 0u));
  json["rows_without_labels"] = static_cast<size_t>(std::count(labels.begin(), labels.end(), 0u));
  json["label_statistics"] = describe_labels(data, names);
  return json;
}

void print_spread(const char* what, const ordered_json& spread) {
  std::printf("%-24s min %zu, mean %.2f, max %zu\n", what, spread["min"].get<size_t>(),
              spread["mean"].get<double>(), spread["max"].get<size_t>());
}

void print_description(const ordered_json& json) {
  const auto count = [&](const char* what, const char* key) {
    std::printf("%-24s %zu\n", what, json[key].get<size_t>());
  };
  const std::string format = json["format"];
  std::printf("%s: %s, normalisation %s%s\n", json["file"].get<std::string>().c_str(), format.c_str(),
              json["normalize"].get<std::string>().c_str(),
              json.contains("checksums") ? ", checksums ok" : "");
  count("rows", "rows");
  count("features", "features");
  count("labels", "labels");
  count("non-zeros", "nonzeros");
  print_spread("features per row", json["features_per_row"]);
  print_spread("labels per row", json["labels_per_row"]);
  count("rows without features", "rows_without_features");
  count("rows without labels", "rows_without_labels");
  const ordered_json& labels = json["label_statistics"];
  std::printf("%-24s %zu\n", "labels never seen", labels["never_seen"].get<size_t>());
  std::printf("%-24s", "occurrences of a label");
  for (const auto& [name, value] : labels["frequency_quantiles"].items())
    std::printf(" %s %zu", name.c_str(), value.get<size_t>());
  std::printf("\n%-24s %.1f %% of all occurrences\n", "most frequent 1 %",
              100 * labels["top_1_percent_share"].get<double>());
  std::printf("most frequent labels\n");
  for (const ordered_json& label : labels["most_frequent"])
    std::printf("  %10zu times  %zu%s%s\n", label["count"].get<size_t>(), label["id"].get<size_t>(),
                label.contains("name") ? "  " : "", label.value("name", "").c_str());
}

void add_describe(CLI::App& data) {
  auto options = std::make_shared<DescribeOptions>();
  CLI::App* verb = data.add_subcommand("describe", "Check a data file and say what is in it");
  verb->footer(
      "Examples:\n"
      "  modelet data describe train.txt.xz --labels-file labels.txt.xz\n"
      "  modelet data describe orders.csv --target product     # what training would do with its columns\n"
      "  modelet data describe orders.csv --target product --recipe\n"
      "  modelet data describe train.mlt --json");
  verb->add_option("FILE", options->file, "text (plain, .xz, .gz) or a prepared file")->required();
  verb->add_option("--target", options->target, "column of the labels, if FILE is a table");
  options->reading.add_to(*verb);
  verb->add_option("--labels-file", options->label_names, "names of the labels, one a line");
  verb->add_flag("--recipe", options->recipe,
                 "also what modelet train would choose for FILE as training data, apart from what trials tell it");
  verb->add_flag("--json", options->json, "one JSON object instead of text, and the event of the recipe");
  verb->callback([options] {
    const bool columns = !shard::is_prepared(options->file) && describes_columns(*options);
    const ordered_json json = columns ? describe_columns(*options) : describe(*options);
    if (options->json) {
      print_line(json);
    } else if (columns) {
      print_columns(json);
    } else {
      print_description(json);
    }
    if (!options->recipe) return;
    Reporter reporter(options->json);
    const ExperimentArguments arguments{.file = options->file, .overrides = options->reading.overrides};
    RecipeArguments{.test = options->file, .target = options->target, .trial_share = 0}.make(arguments, {}, 1, reporter);
  });
}

// ---- synth

struct SynthVerbOptions {
  std::string out, preset;
  bool text = false, force = false, json = false;
  shard::SynthOptions shape;  // from the options that were given; the others come from the preset
};

// Each option that was given on the command line overrides the preset.
shard::SynthOptions merged(const CLI::App& verb, const SynthVerbOptions& given) {
  if (given.preset.empty()) return given.shape;
  shard::SynthOptions result = shard::synth_preset(given.preset);
  const auto take = [&](const char* option, auto member) {
    if (verb.count(option) > 0) result.*member = given.shape.*member;
  };
  using Options = shard::SynthOptions;
  take("--rows", &Options::rows_train);
  take("--rows-test", &Options::rows_test);
  take("--features", &Options::features);
  take("--labels", &Options::labels);
  take("--features-per-row", &Options::features_per_row);
  take("--labels-per-row", &Options::labels_per_row);
  take("--zipf", &Options::zipf);
  take("--noise", &Options::noise);
  take("--family", &Options::family);
  take("--shared", &Options::shared);
  take("--seed", &Options::seed);
  return result;
}

constexpr const char *kClicksPreset = "clicks", *kAccountsPreset = "accounts";

// The files that will be written. Throws UsageError if one exists already, unless `force` is set.
std::vector<std::string> output_files(const SynthVerbOptions& given,
                                      std::initializer_list<const char*> names) {
  std::vector<std::string> files;
  for (const char* name : names) files.push_back((fs::path(given.out) / name).string());
  for (const std::string& file : files) require_writable(file, given.force);
  return files;
}

// Reports the progress of the work, as preparing text does.
shard::SynthProgress report_making(Reporter& reporter, const std::string& folder) {
  return [report = report_preparing(reporter, folder)](uint64_t rows, uint64_t total) {
    report(rows, 0, static_cast<double>(rows) / static_cast<double>(total));
  };
}

void report_made(const std::string& train, uint64_t train_rows, const std::string& test, uint64_t test_rows) {
  print_line(ordered_json{{"event", "made"},
                          {"train", train},
                          {"train_rows", train_rows},
                          {"test", test},
                          {"test_rows", test_rows}});
}

// The columns of a click log, and of a graph of accounts, are fixed: only length and seed can be chosen.
void require_fixed_columns(const CLI::App& verb, const SynthVerbOptions& given) {
  for (const char* option : {"--features", "--labels", "--features-per-row", "--labels-per-row", "--zipf",
                             "--noise", "--family", "--shared", "--text"})
    if (verb.count(option) > 0)
      throw UsageError(std::string(option) +
                       " does not go with --preset " + given.preset + "; --rows, --rows-test and --seed do");
}

// Length and seed, as far as they are given.
template <class Options>
Options fixed_columns(const CLI::App& verb, const SynthVerbOptions& given) {
  require_fixed_columns(verb, given);
  Options options;
  if (verb.count("--rows") > 0) options.rows_train = given.shape.rows_train;
  if (verb.count("--rows-test") > 0) options.rows_test = given.shape.rows_test;
  if (verb.count("--seed") > 0) options.seed = given.shape.seed;
  return options;
}

void synth_accounts(const CLI::App& verb, const SynthVerbOptions& given) {
  const auto options = fixed_columns<shard::AccountOptions>(verb, given);
  const std::vector<std::string> files = output_files(given, {"nodes.csv", "edges.csv", "truth.json"});
  const shard::AccountTruth truth = shard::write_accounts(options, given.out, existing_files(given.force));
  if (given.json) return report_made(files[0], options.rows_train, files[0], options.rows_test);
  std::printf("%s: %llu accounts, %llu of them for the test, %.1f %% of these fraudulent\n%s\n", files[0].c_str(),
              static_cast<unsigned long long>(options.rows_train + options.rows_test),
              static_cast<unsigned long long>(options.rows_test), 100 * truth.fraud_rate, files[1].c_str());
  std::printf(
      "best possible on the test accounts        AUC %.4f, log-loss %.4f (by the true probabilities)\n"
      "best possible without the graph           AUC %.4f\n",
      truth.auc, truth.log_loss, truth.own_auc);
}

void synth_clicks(const CLI::App& verb, const SynthVerbOptions& given) {
  const auto options = fixed_columns<shard::ClickOptions>(verb, given);
  const std::vector<std::string> files = output_files(given, {"train.tsv", "test.tsv", "truth.json"});
  Reporter reporter(given.json);
  const shard::ClickTruth truth = shard::write_clicks(options, given.out, report_making(reporter, given.out),
                                                      existing_files(given.force));
  reporter.clear_progress();
  if (given.json) return report_made(files[0], options.rows_train, files[1], options.rows_test);
  std::printf("%s: %llu rows\n%s: %llu rows, %.1f %% of them clicks\n", files[0].c_str(),
              static_cast<unsigned long long>(options.rows_train), files[1].c_str(),
              static_cast<unsigned long long>(options.rows_test), 100 * truth.click_rate);
  std::printf(
      "best possible on the test rows            AUC %.4f, log-loss %.4f (by the true probabilities)\n"
      "best possible without interactions        AUC %.4f, log-loss %.4f\n",
      truth.auc, truth.log_loss, truth.additive_auc, truth.additive_log_loss);
}

void synth(const CLI::App& verb, const SynthVerbOptions& given) {
  if (given.preset == kClicksPreset) return synth_clicks(verb, given);
  if (given.preset == kAccountsPreset) return synth_accounts(verb, given);
  const shard::SynthOptions options = merged(verb, given);
  const std::vector<std::string> files =
      given.text ? output_files(given, {"train.mlt", "test.mlt", "train.txt", "test.txt"})
                 : output_files(given, {"train.mlt", "test.mlt"});
  Reporter reporter(given.json);
  shard::write_synth(options, given.out, given.text, report_making(reporter, given.out),
                     existing_files(given.force));
  reporter.clear_progress();
  if (given.json) return report_made(files[0], options.rows_train, files[1], options.rows_test);
  std::cout << files[0] << ": " << options.rows_train << " rows\n"
            << files[1] << ": " << options.rows_test << " rows\n";
}

void add_synth(CLI::App& data) {
  auto options = std::make_shared<SynthVerbOptions>();
  shard::SynthOptions& shape = options->shape;
  CLI::App* verb = data.add_subcommand("synth", "Make synthetic data that can be learned, of any shape");
  verb->footer(
      "Writes train.mlt and test.mlt to OUT_DIR. The seed and the other options determine every row.\n"
      "--preset clicks writes a click log in Criteo's layout, train.tsv and test.tsv, and what the best "
      "possible model\n"
      "reaches on it to truth.json (docs/clicks.md). --preset accounts writes a graph, nodes.csv and edges.csv, with some\n"
      "fraudulent nodes, and the same of it (docs/columns.md).\n\n"
      "Examples:\n"
      "  modelet data synth small --rows 5000 --rows-test 1000 --labels 2000\n"
      "  modelet data synth amazon --preset amazon-670k --rows 100000 --rows-test 10000\n"
      "  modelet data synth families --preset confusable --family 50 --shared 0.9\n"
      "  modelet data synth clicks --preset clicks\n"
      "  modelet data synth fraud --preset accounts");
  verb->add_option("OUT_DIR", options->out, "folder to write to")->required();
  std::vector<std::string> presets = shard::synth_preset_names();
  presets.emplace_back(kClicksPreset);
  presets.emplace_back(kAccountsPreset);
  verb->add_option("--preset", options->preset, "start from a known shape; other options change it")
      ->check(CLI::IsMember(presets));
  verb->add_option("--rows", shape.rows_train, "training rows")->capture_default_str();
  verb->add_option("--rows-test", shape.rows_test, "test rows")->capture_default_str();
  verb->add_option("--features", shape.features, "number of features")->capture_default_str();
  verb->add_option("--labels", shape.labels, "number of labels")->capture_default_str();
  verb->add_option("--features-per-row", shape.features_per_row, "mean non-zeros of a row")
      ->capture_default_str();
  verb->add_option("--labels-per-row", shape.labels_per_row, "mean labels of a row")->capture_default_str();
  verb->add_option("--zipf", shape.zipf, "exponent of the labels' frequencies")->capture_default_str();
  verb->add_option("--noise", shape.noise, "share of features that say nothing, 0 to 1")
      ->capture_default_str();
  verb->add_option("--family", shape.family,
                   "labels in a family, whose members share features; 1: no families")
      ->capture_default_str();
  verb->add_option("--shared", shape.shared, "share of a label's features that its family has, 0 to below 1")
      ->capture_default_str();
  verb->add_option("--seed", shape.seed, "seed")->capture_default_str();
  verb->add_flag("--text", options->text, "also write train.txt and test.txt (XMC)");
  add_force_flag(*verb, options->force);
  verb->add_flag("--json", options->json, "JSON Lines on standard output; the last line is the result");
  verb->callback([options, verb] { synth(*verb, *options); });
}

}  // namespace

void add_data_verbs(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Prepare, describe, make and divide data sets");
  data->require_subcommand(1);
  add_prepare(*data);
  add_describe(*data);
  add_synth(*data);
  add_split(*data);
  add_graph(*data);
}

}  // namespace modelet::cli
