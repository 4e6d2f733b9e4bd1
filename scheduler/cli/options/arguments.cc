#include "scheduler/cli/options/arguments.h"

#include <spdlog/fmt/chrono.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <ctime>
#include <filesystem>

#include "base/error.h"
#include "node_agent/train/data/private_samples.h"
#include "shard/modelet/checkpoint.h"

namespace modelet::cli {

void ExperimentArguments::add_to(CLI::App& verb) {
  verb.add_option("experiment", file, "experiment file (TOML; docs/experiment.md)")
      ->required()
      ->check(CLI::ExistingFile);
  verb.add_option("--set", overrides, "section.key=value: override a key of the experiment (repeatable)")
      ->take_all()
      ->allow_extra_args(false);
}

Experiment ExperimentArguments::load() const { return load_experiment(file, overrides); }

std::string ExperimentArguments::run_name() const {
  std::string name = std::filesystem::path(file).stem().string();
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_' && c != '-') c = '_';
  return name.empty() ? "run" : name;
}

void ReadingArguments::add_to(CLI::App& verb) {
  verb.add_option("--set", overrides,
                  "section.key=value of the experiment that says how the text is read: data.format and what "
                  "belongs to it, docs/experiment.md (repeatable)")
      ->take_all()
      ->allow_extra_args(false);
}

Encoding ReadingArguments::load() const { return parse_encoding("", "options", overrides); }

namespace {

constexpr const char* kCorrectLabels =
    "; it is data.labels of the experiment: correct it there, or give --set data.labels=PATH";

// Predictions would miss the names, long after the training.
void require_names(const Experiment::Data& data, size_t labels) {
  if (data.labels.empty()) return;
  try {
    shard::load_label_names(data.labels, labels);
  } catch (const Error& error) {
    throw UsageError(error.what() + std::string(kCorrectLabels));
  }
}

}  // namespace

ExperimentData load_data(const Experiment& experiment, Reporter& reporter,
                         const shard::LabelSelection& labels) {
  const Experiment::Data& data = experiment.data;
  const auto require = [](const std::string& key, const std::string& path) {
    const bool folder = std::filesystem::is_directory(path);
    if (folder || !std::filesystem::exists(path))
      throw Error(path + (folder ? ": is a folder, a file is expected" : ": no such file") + "; it is " +
                  key + " of the experiment: correct it there, or give --set " + key + "=PATH");
  };
  require("data.test", data.test);
  if (!data.labels.empty()) require("data.labels", data.labels);
  if (is_private(experiment)) {
    if (!labels.neurons)
      throw UsageError("data.train is " + data.train + ": keys cannot be chosen for samples that nobody sees");
    ExperimentData loaded{.train = {},
                          .test = agent::load_public_test(data.test, data.normalize,
                                                          report_preparing(reporter, data.test)),
                          .shape = {}};
    reporter.clear_progress();
    require_names(data, loaded.test.labels());
    loaded.shape = shard::describe_private_shape(experiment, loaded.test);
    return loaded;
  }
  require("data.train", data.train);
  ExperimentData loaded{.train = shard::load_training_data(data.train, data.normalize, encoding_of(experiment),
                                                           labels, report_preparing(reporter, data.train)),
                        .test = {},
                        .shape = {}};
  const auto require_some = [&](size_t count, const char* what) {
    if (count == 0)
      throw Error(data.train + ": there is nothing to learn from it: " + what +
                  "; is it the right file, and data.format right?");
  };
  require_some(loaded.train.features(), "it has no features");
  require_some(loaded.train.label_entries(), "none of its samples has a label");
  require_names(data, loaded.train.labels());
  loaded.test = shard::load_dataset(data.test, data.normalize, loaded.train.encoder(), shard::no_labels(),
                                    report_preparing(reporter, data.test));
  reporter.clear_progress();
  note_unknown_labels(loaded.test.unknown_labels(), loaded.test.rows(), data.test, reporter);
  if (loaded.test.label_entries() == 0)
    reporter.note(data.test +
                  ": none of its samples has a label that the training data has, so figures of it "
                  "will be 0; is it the right file?");
  loaded.shape = shard::describe_shape(loaded.train, loaded.test);
  return loaded;
}

void note_unknown_labels(uint64_t labels, uint64_t rows, const std::string& path, Reporter& reporter) {
  if (labels > 0)
    reporter.note(path + ": " + std::to_string(labels) + " labels of its " + std::to_string(rows) +
                  " samples do not occur in the training data and are left out");
}

void require_writable(const std::string& file, bool force, const std::vector<std::string>& sources) {
  std::error_code missing;
  if (!std::filesystem::exists(file, missing)) return;
  for (const std::string& source : sources)
    if (std::filesystem::equivalent(file, source, missing))
      throw UsageError(file + ": is the file that is read; give another file to write to");
  if (!std::filesystem::is_regular_file(file))
    throw UsageError(file + ": is not a file, and would be replaced by one; give another name");
  if (!force) throw UsageError(file + ": exists already; give another name, or --force to replace it");
}

void add_force_flag(CLI::App& verb, bool& force) {
  verb.add_flag("--force", force, "replace files that are there already");
}

RunPlace::RunPlace(const std::string& out, const std::filesystem::path& resumed, const std::string& name) {
  if (!out.empty())
    path_ = absolute(out);
  else if (!resumed.empty())
    path_ = shard::run_of(resumed);
  if (!path_.empty()) return;
  const std::string first =
      absolute(fmt::format("runs/{}-{:%Y%m%d-%H%M%S}", name, fmt::localtime(std::time(nullptr))));
  std::error_code failure;
  const std::filesystem::path parent = std::filesystem::path(first).parent_path();
  made_parent_ = std::filesystem::create_directories(parent, failure);
  if (failure)
    throw Error(parent.string() + ": " + failure.message() +
                " (making the folder of runs); choose another with --out");
  path_ = first;
  for (int number = 2; !(made_ = ::mkdir(path_.c_str(), 0777) == 0); ++number) {
    if (errno != EEXIST)
      throw Error(errno_text(path_.string()) + " (making the run's folder); choose another with --out");
    path_ = fmt::format("{}-{}", first, number);
  }
}

RunPlace::~RunPlace() {
  if (made_ && ::rmdir(path_.c_str()) == 0 && made_parent_) ::rmdir(path_.parent_path().c_str());
}

std::string absolute(const std::string& path) {
  return path.empty() ? path : std::filesystem::absolute(path).lexically_normal().string();
}

}  // namespace modelet::cli
