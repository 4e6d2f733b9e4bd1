#include "scheduler/cli/verbs/model.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/experiment/towers.h"
#include "base/system/clock.h"
#include "base/system/program.h"
#include "node_agent/machine/capacity.h"
#include "scheduler/cli/model/prediction_writer.h"
#include "scheduler/cli/model/run_samples.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/cli/options/output.h"
#include "scheduler/client/report.h"
#include "scheduler/plan/placement.h"
#include "scheduler/plan/task_plan.h"
#include "shard/data/batch/split.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/query_encoder.h"
#include "shard/inference/metrics.h"
#include "shard/inference/model.h"

namespace modelet::cli {
namespace {

using nlohmann::json;

struct ModelOptions {
  std::string checkpoint, data, labels, queries, calibrate, among;
  std::vector<size_t> ks;
  std::vector<std::string> metrics;  // empty: all
  std::vector<float> propensity;     // A, B; empty: the experiment's
  size_t k = 5, limit = 0;
  WantedReasons reasons;
  std::optional<double> threshold;
  uint32_t threads = 0;
  PredictionFormat format = PredictionFormat::kText;
  bool sparse = false, json = false, proba = false;
};

// What a verb does with samples: it compares answers with their labels, or only answers.
enum class Purpose : uint8_t { kCompare, kAnswer };

// The samples that a verb is given: a data set, or a stream.
class Input {
 public:
  // Opens the data set, and prepares the model for sparse scoring if that is wanted.
  Input(shard::Model& model, const ModelOptions& options, Purpose purpose)
      : model_(model), options_(options), purpose_(purpose) {
    if (!options.among.empty()) among_ = model.read_label_set(options.among);
    if (!shard::is_stream(options.data)) data_ = load_samples(model, options.data);
    if (!options.sparse) return;
    if (!options.queries.empty()) {
      model.prepare_sparse(load_samples(model, options.queries));
      return;
    }
    if (!data_)
      throw UsageError(
          "--sparse tunes itself on the data, and a stream can be read only once: give --queries FILE with "
          "samples like these (labels are not needed), or leave --sparse out");
    model.prepare_sparse(*data_);
  }

  // The k best labels of all samples, a batch at a time.
  void predict(size_t k, const shard::Model::OnBatch& on_batch) {
    const auto count = [&](const shard::Batch& batch, const shard::TopK& best) {
      samples_ += batch.size();
      labels_ += batch.labels.size();
      on_batch(batch, best);
    };
    if (data_) {
      const size_t limit = options_.limit > 0 ? options_.limit : data_->rows();
      return model_.predict(*data_, shard::all_rows(std::min(limit, data_->rows())), k, mode(), count,
                            among());
    }
    const shard::QueryEncoder& encoder = model_.query_encoder();
    auto stream = shard::LineReader::of_stream(options_.data);
    const auto reader = purpose_ == Purpose::kAnswer ? encoder.open_requests(std::move(stream))
                                                     : encoder.open(std::move(stream));
    model_.predict(*reader, options_.limit, k, mode(), count, among());
    Reporter reporter(false);
    note_unknown_labels(reader->unknown_labels(), samples_,
                        options_.data == "-" ? "standard input" : options_.data, reporter);
  }

  shard::SearchMode mode() const {
    return options_.sparse ? shard::SearchMode::kSparse : shard::SearchMode::kDense;
  }
  uint64_t samples() const { return samples_; }  // that predict() has passed on
  uint64_t labels() const { return labels_; }    // of these samples

 private:
  const shard::LabelSet* among() const { return among_ ? &*among_ : nullptr; }

  shard::Model& model_;
  const ModelOptions& options_;
  const Purpose purpose_;
  std::optional<shard::LabelSet> among_;  // empty: all labels
  std::optional<shard::Dataset> data_;    // empty: the input is a stream
  uint64_t samples_ = 0, labels_ = 0;
};

const std::vector<std::string> kMetricNames = {"p", "ndcg", "recall", "mrr", "psp", "auc", "log_loss"};

bool asked_for(const ModelOptions& options, const std::string& metric) {
  return options.metrics.empty() || std::ranges::count(options.metrics, metric) > 0;
}

// Makes the metrics. If the user names a metric that this model or way of scoring does not have, throws an
// error that says why.
shard::Metrics make_metrics(const shard::Model& model, const ModelOptions& options) {
  const size_t labels = model.shape().labels;
  Experiment::Metrics propensities = model.experiment().metrics;
  if (!options.propensity.empty()) propensities = {options.propensity[0], options.propensity[1]};
  const auto named = [&](const char* metric) { return std::ranges::count(options.metrics, metric) > 0; };
  std::vector<uint32_t> counts;
  if (asked_for(options, "psp")) counts = model.label_counts();
  if (named("psp") && counts.empty())
    throw UsageError(
        "psp needs the label frequencies of train, and this checkpoint has none: it is of an older program; "
        "resuming its run writes them");
  const bool auc = shard::has_auc(model.experiment().model.loss, labels) && !options.sparse;
  if ((named("auc") || named("log_loss")) && !auc)
    throw UsageError(fmt::format(
        "auc and log_loss need the scores of all labels, comparable over samples: they exist for sigmoid "
        "models (model.loss) of at most {} labels, without --sparse. For wide outputs use p, ndcg, recall, "
        "mrr and psp",
        shard::kMostLabelsForAuc));
  return {options.ks, shard::inverse_propensities(counts, model.shape().train_rows, propensities),
          auc && (asked_for(options, "auc") || asked_for(options, "log_loss")) ? labels : 0};
}

void evaluate(const ModelOptions& options) {
  shard::Model model = agent::load_model(options.checkpoint, options.threads);
  Input input(model, options, Purpose::kCompare);
  shard::Metrics metrics = make_metrics(model, options);
  const Stopwatch watch;
  input.predict(metrics.depth(),
                [&](const shard::Batch& batch, const shard::TopK& best) { metrics.add(batch, best); });
  if (input.labels() == 0)
    throw FormatError(
        options.data +
        ": none of its samples has a label that the model knows, so there is nothing to compare "
        "with; 'modelet predict' needs no labels");
  const double rate = static_cast<double>(input.samples()) / watch.seconds();
  std::vector<shard::Figure> figures = metrics.figures();
  std::erase_if(figures, [&](const shard::Figure& figure) {
    return !asked_for(options, figure.name.substr(0, figure.name.find("_at_")));
  });
  if (options.json) {
    json result = {{"event", "evaluated"},
                   {"step", model.step()},
                   {"samples", input.samples()},
                   {"samples_per_second", rate}};
    for (const shard::Figure& figure : figures) result[figure.name] = figure.value;
    return print_line(result);
  }
  for (const shard::Figure& figure : figures)
    std::cout << fmt::format("{:<10} {:.4f}\n", figure_title(figure.name), figure.value);
  std::cerr << fmt::format("{} samples, {:.0f} a second, checkpoint of step {}\n", input.samples(), rate,
                           model.step());
}

void predict(const ModelOptions& options) {
  shard::Model model = agent::load_model(options.checkpoint, options.threads, options.labels);
  Input input(model, options, Purpose::kAnswer);
  const auto note = [](const std::string& text) { std::cerr << text << '\n'; };
  note_missing_names(model, note);
  if (options.proba) calibrate(model, options.calibrate, input.mode(), note);
  const PredictionFormat format = options.json ? PredictionFormat::kJson : options.format;
  if (options.reasons.features > 0 && format == PredictionFormat::kTsv)
    throw UsageError("--explain: reasons do not fit into a table; use --format text or json");
  WantedReasons reasons = options.reasons;
  std::unique_ptr<const shard::NearestSamples> samples;
  if (reasons.examples > 0) samples = nearest_samples(model);
  reasons.samples = samples.get();
  PredictionWriter writer(std::cout, model,
                          {.format = format, .k = options.k, .threshold = options.threshold, .reasons = reasons});
  const bool waited_for = shard::is_stream(options.data);
  input.predict(model.depth(options.k), [&](const shard::Batch& batch, const shard::TopK& best) {
    writer.write(batch, best);
    // An endless stream would be read on for answers that nobody gets.
    if (waited_for) std::cout.flush();
    if (!std::cout) throw Error(errno_text("standard output"));
  });
}

void add_model_arguments(CLI::App& verb, ModelOptions& options) {
  verb.add_option("checkpoint", options.checkpoint, "run folder or checkpoint")
      ->required()
      ->check(CLI::ExistingDirectory);
  verb.add_option("data", options.data,
                  "text as the training data (also .xz, .gz) or prepared file; -: standard input")
      ->required()
      ->check(CLI::ExistingFile | CLI::IsMember({"-"}));
  verb.add_option("--threads", options.threads, "0: all cores")
      ->check(CLI::Range(0u, 1024u))
      ->capture_default_str();
  verb.add_flag(
      "--sparse", options.sparse,
      "score only the likeliest labels and what hash tables retrieve; tuned on DATA, at least 99 % of P@1");
  verb.add_option("--queries", options.queries,
                  "samples on which --sparse is tuned; needed if DATA is a stream (default: DATA)")
      ->check(CLI::ExistingFile);
  verb.add_flag("--json", options.json, "JSON Lines on standard output");
}

struct PlanOptions {
  ExperimentArguments experiment;
  uint32_t nodes = 4, cores = 0;
  double memory_gib = 0;
  double gbit_per_second = 1, round_trip_ms = 1;  // of the links between nodes
  // Node i gets entry i modulo the number of entries. Empty: the speed of this machine.
  std::vector<double> gflops, bf16_gflops, memory_gbps;
  bool json = false;
};

// The input of the simulator, as experiments/simulate/README.md describes it.
nlohmann::ordered_json to_json(const scheduler::Plan& plan, uint32_t micro_batches,
                               const std::vector<scheduler::NodeCapacity>& capacities,
                               const scheduler::Link& link) {
  using Json = nlohmann::ordered_json;
  constexpr std::array<const char*, scheduler::kStepPhases> kPhases = {"forward", "select", "output_forward",
                                                                       "backward", "update"};
  constexpr std::array<const char*, 4> kKinds = {"activations", "output", "gradient", "clip"};
  Json nodes = Json::array(), exchanges = Json::array();
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const scheduler::NodePlan& node = plan.nodes[i];
    Json layers = Json::array();
    for (const scheduler::PhaseSeconds& seconds : node.layers) {
      Json phases;
      for (size_t phase = 0; phase < seconds.size(); ++phase) phases[kPhases[phase]] = seconds[phase];
      layers.push_back(std::move(phases));
    }
    nodes.push_back({{"node", node.name},
                     {"cores", capacities[i].cores},
                     {"gflops", capacities[i].gflops},
                     {"bf16_gflops", capacities[i].bf16_gflops},
                     {"memory_gbps", capacities[i].memory_gbps},
                     {"modelets", node.modelets},
                     {"memory_bytes", node.memory_bytes},
                     {"compute_seconds", node.seconds_per_step},
                     {"bytes_sent_per_step", node.bytes_sent_per_step},
                     {"layers", std::move(layers)}});
  }
  for (const scheduler::StepExchange& exchange : plan.exchanges) {
    std::vector<std::vector<uint64_t>> bytes(exchange.bytes.size());  // [from][to]
    for (size_t from = 0; from < bytes.size(); ++from)
      for (size_t to = 0; to < bytes.size(); ++to) bytes[from].push_back(exchange.message(from, to));
    exchanges.push_back({{"exchange", kKinds[static_cast<size_t>(exchange.kind)]},
                         {"layer", exchange.layer},
                         {"samples", exchange.samples},
                         {"bytes", std::move(bytes)}});
  }
  return {{"parameters", plan.parameters},
          {"modelets", plan.partition.size()},
          {"seconds_per_step", plan.seconds_per_step},
          {"wire_seconds", scheduler::wire_seconds(plan, link)},
          {"alone_seconds", plan.alone_seconds},
          {"alone_memory_bytes", plan.alone_memory_bytes},
          {"dense_allreduce_bytes", plan.dense_allreduce_bytes},
          {"selects_by_activations", plan.selects_by_activations},
          {"replicas", plan.replicas},
          {"micro_batches", micro_batches},
          {"micro_batches_tried", kTriedMicroBatches},
          {"nodes", std::move(nodes)},
          {"exchanges", std::move(exchanges)}};
}

void plan(const PlanOptions& options) {
  Experiment experiment = options.experiment.load();
  experiment.data.labels.clear();  // names change no plan
  Reporter reporter(false);
  const DataShape shape = load_data(experiment, reporter).shape;
  // Unless options say otherwise, nodes are as fast as this machine: the speed of `cores` of its cores
  // together, since they share its memory.
  const uint32_t cores = options.cores > 0 ? options.cores : agent::usable_cores();
  const uint32_t measured_cores = std::min(cores, agent::usable_cores());
  const bool declared = !options.gflops.empty() && !options.memory_gbps.empty();
  const agent::Speed here = declared ? agent::Speed{} : agent::measure_speed(measured_cores);
  const auto speed_of = [&](const std::vector<double>& speeds, uint32_t node, double measured) {
    return speeds.empty() ? measured * cores / measured_cores : speeds[node % speeds.size()];
  };
  std::vector<scheduler::NodeCapacity> nodes;
  for (uint32_t i = 0; i < options.nodes; ++i)
    nodes.push_back(
        {.name = "node-" + std::to_string(i),
         .cores = cores,
         .memory_bytes = options.memory_gib > 0 ? static_cast<uint64_t>(options.memory_gib * 0x1p30)
                                                : agent::known_memory("give that of a node, --memory-gib"),
         .gflops = speed_of(options.gflops, i, here.gflops),
         .memory_gbps = speed_of(options.memory_gbps, i, here.memory_gbps),
         .bf16_gflops = speed_of(options.bf16_gflops.empty() ? options.gflops : options.bf16_gflops, i,
                                 here.bf16_gflops)});
  constexpr double kBytesOfGbit = 1e9 / 8;
  const scheduler::Link link{.bytes_per_second = options.gbit_per_second * kBytesOfGbit,
                             .round_trip_seconds = options.round_trip_ms / 1e3};
  if (tower_tasks(experiment.model) > 1) {
    const scheduler::TaskPlan tasks = scheduler::plan_tasks(experiment, shape, nodes, link);
    if (!options.json) return static_cast<void>(std::cout << scheduler::to_text(tasks));
    return print_line(json{{"tasks", tasks.tasks},
                           {"task_seconds", tasks.seconds},
                           {"task_memory_bytes", tasks.memory_bytes},
                           {"seconds", tasks.makespan},
                           {"network_seconds", tasks.network.seconds},
                           {"network_nodes", tasks.network.nodes}});
  }
  const scheduler::Plan plan = scheduler::make_plan(experiment, shape, nodes);
  if (options.json) return print_line(to_json(plan, experiment.exchange.micro_batches, nodes, link));
  std::cout << scheduler::to_text(plan, link);
}

}  // namespace

void add_model_verbs(CLI::App& app) {
  const auto eval_options = std::make_shared<ModelOptions>();
  CLI::App& eval_verb = *app.add_subcommand("eval", "Evaluate a checkpoint on a data set");
  add_model_arguments(eval_verb, *eval_options);
  eval_verb.add_option("--k", eval_options->ks, "figures at these ranks, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(1, 1000))
      ->default_val(std::vector<size_t>{1, 3, 5});
  eval_verb
      .add_option("--metrics", eval_options->metrics,
                  "comma-separated; default: all that the model has (docs/metrics.md)")
      ->delimiter(',')
      ->check(CLI::IsMember(kMetricNames));
  eval_verb
      .add_option("--propensity", eval_options->propensity,
                  "A,B of psp (default: metrics.propensity_a and _b of the experiment)")
      ->delimiter(',')
      ->expected(2)
      ->check(number_between(0.001, 1000.0));
  eval_verb.footer(
      "Examples:\n  modelet eval runs/quickstart-20260101-120000 test.txt.xz --k 1,5\n"
      "  modelet eval runs/amazon test.mlt --metrics psp --propensity 0.6,2.6");
  eval_verb.callback([eval_options] { evaluate(*eval_options); });

  const auto predict_options = std::make_shared<ModelOptions>();
  CLI::App& predict_verb =
      *app.add_subcommand("predict", "Print the best labels of each sample, a line each");
  add_model_arguments(predict_verb, *predict_options);
  predict_verb.add_option("--k", predict_options->k, "labels a sample")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  predict_verb.add_option("--labels", predict_options->labels,
                          "names of the labels, one a line (default: data.labels of the experiment)");
  predict_verb
      .add_option(
          "--among", predict_options->among,
          "a file of labels, one a line: answers are the best of these (names, or numbers if labels have none)")
      ->check(CLI::ExistingFile);
  predict_verb.add_option("--threshold", predict_options->threshold,
                          "leave out labels below this score, or with --proba below this probability");
  predict_verb
      .add_option(
          "--explain", predict_options->reasons.features,
          "say of each label which features speak for and against it, so many of them; all parts add up to the "
          "score")
      ->check(CLI::Range(1, 1000));
  predict_verb
      .add_option("--examples", predict_options->reasons.examples,
                  "with --explain: so many training samples that have the label and are most like the sample")
      ->check(CLI::Range(1, 1000))
      ->needs("--explain");
  predict_verb.add_option("--limit", predict_options->limit, "only the first samples; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  CLI::Option* proba = predict_verb.add_flag(
      "--proba", predict_options->proba,
      "the probability that each label is right; calibrated on labelled samples, once for a checkpoint");
  predict_verb
      .add_option("--calibrate", predict_options->calibrate,
                  "labelled samples, not of training, for --proba (default: what the run held out for "
                  "validation, else its test data)")
      ->check(CLI::ExistingFile)
      ->needs(proba);
  predict_verb
      .add_option_function<std::string>(
          "--format",
          [predict_options](const std::string& name) {
            predict_options->format = kPredictionFormats.at(name);
          },
          "text: NAME:SCORE ...; tsv: a line a label, names escaped; json: as --json")
      ->check(CLI::IsMember(kPredictionFormats))
      ->default_str("text");
  predict_verb.footer(
      "Examples:\n  modelet predict runs/quickstart-20260101-120000 test.txt.xz --k 3 --limit 10\n"
      "  echo \"some words\" | modelet predict runs/sections - --proba\n"
      "  zcat new.csv.gz | modelet predict runs/tags - --format tsv > tags.tsv\n"
      "  modelet predict runs/products orders.csv --among in-stock.txt --proba --threshold 0.2");
  predict_verb.callback([predict_options] { predict(*predict_options); });

  const auto plan_options = std::make_shared<PlanOptions>();
  CLI::App& plan_verb = *app.add_subcommand("plan", "Show which node would hold what, without training");
  plan_options->experiment.add_to(plan_verb);
  plan_verb.add_option("--nodes", plan_options->nodes, "nodes of the group")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  plan_verb.add_option("--cores", plan_options->cores, "of each node; 0: as this machine")
      ->check(CLI::Range(0u, 4096u))
      ->capture_default_str();
  plan_verb.add_option("--memory-gib", plan_options->memory_gib, "of each node; 0: as this machine")
      ->check(number_between(0.0, 1e9))
      ->capture_default_str();
  plan_verb
      .add_option(
          "--gflops", plan_options->gflops,
          "of a node's cores together, fp32, comma-separated, repeated in turn (default: measured here)")
      ->delimiter(',')
      ->check(number_between(1e-3, 1e9));
  plan_verb
      .add_option("--bf16-gflops", plan_options->bf16_gflops,
                  "the same in bf16 (default: as --gflops if that is given, else measured here)")
      ->delimiter(',')
      ->check(number_between(1e-3, 1e9));
  plan_verb
      .add_option("--memory-gbps", plan_options->memory_gbps,
                  "GB/s of row updates of a node, comma-separated, repeated in turn (default: measured here)")
      ->delimiter(',')
      ->check(number_between(1e-3, 1e9));
  plan_verb.add_option("--gbit-per-second", plan_options->gbit_per_second, "of each node's link, each way")
      ->check(number_between(1e-6, 1e6))
      ->capture_default_str();
  plan_verb.add_option("--round-trip-ms", plan_options->round_trip_ms, "between two nodes, in milliseconds")
      ->check(number_between(0.0, 1e5))
      ->capture_default_str();
  plan_verb.add_flag("--json", plan_options->json,
                     "one line of JSON, with the phases of a step and the bytes of every exchange");
  plan_verb.footer("Example:\n  modelet plan experiments/quickstart.toml --nodes 8 --cores 4 --memory-gib 8");
  plan_verb.callback([plan_options] { plan(*plan_options); });
}

}  // namespace modelet::cli
