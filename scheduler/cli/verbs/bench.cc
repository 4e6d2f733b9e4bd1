#include "scheduler/cli/verbs/bench.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parallel/thread_pool.h"
#include "base/system/clock.h"
#include "base/system/program.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/step/whole_step.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/cli/options/output.h"
#include "shard/bench/data_rates.h"
#include "shard/bench/machine_rates.h"
#include "shard/bench/step_kernels.h"
#include "shard/data/store/prepared.h"
#include "shard/inference/model.h"
#include "shard/kernels/simd/instruction_set.h"

namespace modelet::cli {
namespace {

namespace bench = shard::bench;
using nlohmann::ordered_json;

constexpr double kGiga = 1e9, kMilli = 1e-3;
constexpr size_t kWidths[] = {128, 512};

// ---- kernels

struct KernelOptions {
  unsigned threads = 0;
  double seconds = 0.3;
  bool json = false;
};

// What the machine can do with some number of threads, for each Bound.
struct Limits {
  double fp32 = 0, bf16 = 0, read = 0, copy = 0, update = 0;

  double of(bench::Bound bound) const {
    switch (bound) {
      case bench::Bound::kFp32:
        return fp32;
      case bench::Bound::kBf16:
        return bf16;
      case bench::Bound::kRead:
        return read;
      case bench::Bound::kCopy:
        return copy;
      case bench::Bound::kUpdate:
        return update;
    }
    MODELET_CHECK(false, "bound out of range");
    return 0;
  }
};

Limits measure_limits(ThreadPool& pool, double seconds) {
  const auto stream = [&](bench::Stream kind) {
    return bench::stream_bytes(pool, kind, bench::kBeyondCaches, seconds);
  };
  return {bench::peak_flops(pool, Precision::kFp32, seconds),
          bench::peak_flops(pool, Precision::kBf16, seconds), stream(bench::Stream::kRead),
          stream(bench::Stream::kCopy), stream(bench::Stream::kUpdate)};
}

const char* unit_of(bench::Bound bound) {
  return bound == bench::Bound::kFp32 || bound == bench::Bound::kBf16 ? "GFLOP/s" : "GB/s";
}

// Prints a line of the table. For each number of threads it has a figure and, if there is a limit, the share
// of the limit. At the end it says how many times faster all threads are than one.
void print_row(const std::string& name, const char* unit, const std::vector<double>& figures,
               const std::vector<double>& shares, double faster) {
  std::cout << fmt::format("{:<32}{:<8}", name, unit);
  for (size_t i = 0; i < figures.size(); ++i) {
    std::cout << fmt::format("{:>12.1f}", figures[i]);
    std::cout << (shares.empty() ? std::string(8, ' ') : fmt::format("{:>6.0f} %", 100 * shares[i]));
  }
  if (figures.size() > 1) std::cout << fmt::format("{:>9.2f}x", faster);
  std::cout << '\n' << std::flush;  // flushed, because the next figures take seconds
}

void print_rates(const std::string& name, const char* unit, const std::vector<double>& rates,
                 const std::vector<double>& limits) {
  std::vector<double> figures, shares;
  for (const double rate : rates) figures.push_back(rate / kGiga);
  for (size_t i = 0; i < limits.size(); ++i) shares.push_back(rates[i] / limits[i]);
  print_row(name, unit, figures, shares, rates.back() / rates.front());
}

// Seconds that the kinds of work of a step would take one after the other at the peak rates of the machine.
struct StepLimit {
  double products = 0, sums = 0, reading = 0, changing = 0;

  StepLimit(const agent::StepWork& work, Precision precision, const Limits& limits)
      : products(work.products / (precision == Precision::kFp32 ? limits.fp32 : limits.bf16)),
        sums(work.sums / limits.fp32),
        reading(work.bytes_read / limits.read),
        changing(work.bytes_changed / limits.update) {}

  double all() const { return products + sums + reading + changing; }
};

class KernelBench {
 public:
  explicit KernelBench(const KernelOptions& options) : options_(options) {
    const unsigned all = options.threads > 0 ? options.threads : agent::usable_cores();
    threads_ = all == 1 ? std::vector<unsigned>{1} : std::vector<unsigned>{1, all};
  }

  void run() {
    for (const unsigned threads : threads_) {
      ThreadPool pool(threads);
      limits_.push_back(measure_limits(pool, options_.seconds));
    }
    print_machine();
    for (const size_t width : kWidths) measure_width(width);
    for (const size_t width : kWidths) measure_steps(width);
  }

 private:
  void print_machine() const {
    if (options_.json) {
      for (size_t i = 0; i < threads_.size(); ++i)
        print_line(ordered_json{{"event", "machine"},
                                {"threads", threads_[i]},
                                {"instruction_set", shard::kernels::instruction_set()},
                                {"gflops", limits_[i].fp32 / kGiga},
                                {"bf16_gflops", limits_[i].bf16 / kGiga},
                                {"read_gbps", limits_[i].read / kGiga},
                                {"copy_gbps", limits_[i].copy / kGiga},
                                {"update_gbps", limits_[i].update / kGiga}});
      return;
    }
    std::cout << fmt::format("{:<40}", "machine, " + shard::kernels::instruction_set());
    for (const unsigned threads : threads_)
      std::cout << fmt::format("{:>12}{:>8}", fmt::format("{} thread{}", threads, threads > 1 ? "s" : ""),
                               "");
    std::cout << '\n';
    const auto row = [&](const char* name, bench::Bound bound) {
      std::vector<double> rates;
      for (const Limits& limits : limits_) rates.push_back(limits.of(bound));
      print_rates(name, unit_of(bound), rates, {});
    };
    row("  multiply-adds, fp32", bench::Bound::kFp32);
    row("  multiply-adds, bf16", bench::Bound::kBf16);
    row("  memory read", bench::Bound::kRead);
    row("  memory copy", bench::Bound::kCopy);
    row("  memory update", bench::Bound::kUpdate);
  }

  using Measure = std::function<std::vector<bench::KernelRate>(ThreadPool&)>;

  void measure_width(size_t width) const {
    const bench::StepShape shape{.width = width};
    print_shape("kernels", shape);
    const auto output = [&](Precision precision) {
      return [&, precision](ThreadPool& pool) {
        return bench::measure_output_kernels(pool, shape, precision, options_.seconds);
      };
    };
    print_kernels(width, "fp32", output(Precision::kFp32));
    print_kernels(width, "bf16", output(Precision::kBf16));
    print_kernels(width, "fp32", [&](ThreadPool& pool) {
      return bench::measure_input_kernels(pool, shape, options_.seconds);
    });
  }

  void print_shape(const char* what, const bench::StepShape& shape) const {
    if (!options_.json)
      std::cout << fmt::format("\n{}: batch {}, {} active neurons, {} features a row, width {}\n", what,
                               shape.batch, shape.active, shape.features_per_row, shape.width);
  }

  void measure_steps(size_t width) const {
    const bench::StepShape shape{.width = width};
    print_shape("whole step", shape);
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      std::vector<agent::MeasuredStep> steps;
      for (const unsigned threads : threads_) {
        ThreadPool pool(threads);
        steps.push_back(agent::measure_step(pool, shape, precision, options_.seconds));
      }
      print_steps(shape, precision == Precision::kFp32 ? "fp32" : "bf16", precision, steps);
    }
  }

  void print_steps(const bench::StepShape& shape, const char* name, Precision precision,
                   const std::vector<agent::MeasuredStep>& steps) const {
    std::vector<StepLimit> limits;
    for (size_t i = 0; i < steps.size(); ++i) {
      const StepLimit& limit = limits.emplace_back(steps[i].work, precision, limits_[i]);
      if (options_.json)
        print_line(ordered_json{{"event", "step"},
                                {"precision", name},
                                {"width", shape.width},
                                {"threads", threads_[i]},
                                {"milliseconds", steps[i].seconds / kMilli},
                                {"limit", limit.all() / kMilli},
                                {"products", limit.products / kMilli},
                                {"sums", limit.sums / kMilli},
                                {"reading", limit.reading / kMilli},
                                {"changing", limit.changing / kMilli},
                                {"share_of_limit", limit.all() / steps[i].seconds}});
    }
    if (options_.json) return;
    std::vector<double> shares;
    for (size_t i = 0; i < steps.size(); ++i) shares.push_back(limits[i].all() / steps[i].seconds);
    const auto row = [&](const std::string& label, const auto& seconds_of, const std::vector<double>& of) {
      std::vector<double> milliseconds;
      for (size_t i = 0; i < steps.size(); ++i) milliseconds.push_back(seconds_of(i) / kMilli);
      print_row(label, "ms", milliseconds, of, milliseconds.front() / milliseconds.back());
    };
    row(
        fmt::format("  step, {}", name), [&](size_t i) { return steps[i].seconds; }, shares);
    row("    at peak rates", [&](size_t i) { return limits[i].all(); }, {});
    row("      products", [&](size_t i) { return limits[i].products; }, {});
    row("      sums of rows", [&](size_t i) { return limits[i].sums; }, {});
    row("      rows read", [&](size_t i) { return limits[i].reading; }, {});
    row("      rows changed", [&](size_t i) { return limits[i].changing; }, {});
  }

  void print_kernels(size_t width, const char* precision, const Measure& measure) const {
    std::vector<std::vector<bench::KernelRate>> rates;  // [threads][kernel]
    for (const unsigned threads : threads_) {
      ThreadPool pool(threads);
      rates.push_back(measure(pool));
    }
    for (size_t kernel = 0; kernel < rates[0].size(); ++kernel) {
      const bench::KernelRate& first = rates[0][kernel];
      std::vector<double> here, limits;
      for (size_t i = 0; i < threads_.size(); ++i) {
        here.push_back(rates[i][kernel].per_second);
        limits.push_back(limits_[i].of(first.bound));
        if (options_.json)
          print_line(ordered_json{{"event", "kernel"},
                                  {"kernel", first.name},
                                  {"precision", precision},
                                  {"width", width},
                                  {"threads", threads_[i]},
                                  {"rate", here[i] / kGiga},
                                  {"unit", unit_of(first.bound)},
                                  {"limit", limits[i] / kGiga},
                                  {"share_of_limit", here[i] / limits[i]}});
      }
      if (!options_.json)
        print_rates(fmt::format("  {}, {}", first.name, precision), unit_of(first.bound), here, limits);
    }
    std::cout << std::flush;
  }

  const KernelOptions options_;
  std::vector<unsigned> threads_;
  std::vector<Limits> limits_;  // [threads_]
};

void add_kernels(CLI::App& bench_verb) {
  const auto options = std::make_shared<KernelOptions>();
  CLI::App& verb = *bench_verb.add_subcommand(
      "kernels", "Rates of the training step's kernels beside what the machine can do");
  verb.add_option("--threads", options->threads, "measured beside one thread; 0: all cores")
      ->check(CLI::Range(0u, 1024u))
      ->capture_default_str();
  verb.add_option("--seconds", options->seconds, "for each figure")
      ->check(number_between(0.001, 60.0))
      ->capture_default_str();
  verb.add_flag("--json", options->json, "JSON Lines on standard output");
  verb.footer(
      "The percentage is of the limit above: of the multiply-adds, or of the memory traffic of the same "
      "kind. What stays\nin a cache, like the softmax, may be over 100 %. A whole step is compared with the "
      "time that its products and\nits rows in memory would take at the peak rates, one after the other. "
      "Needs 512 MiB of memory; other work on\nthe machine lowers the figures.\n\n"
      "Examples:\n"
      "  modelet bench kernels\n"
      "  modelet bench kernels --threads 4 --seconds 1 --json\n"
      "  MODELET_SIMD=AVX2 modelet bench kernels");
  verb.callback([options] { KernelBench(*options).run(); });
}

// ---- data

struct DataOptions {
  std::string file;
  ReadingArguments reading;
  double seconds = 1;
  size_t batch = 256;
  bool json = false;
};

void bench_data(const DataOptions& options) {
  const bool prepared = shard::is_prepared(options.file);
  const Encoding encoding = options.reading.load();
  std::vector<bench::DataRate> rates;
  if (!prepared) rates = bench::measure_text(options.file, encoding);
  // The data is read as training reads it: text goes through the cache of prepared files.
  Reporter reporter(options.json);
  const shard::Dataset data = prepared
                                  ? shard::Dataset::open(options.file)
                                  : shard::load_training_data(options.file, Normalize::kNone, encoding, {},
                                                              report_preparing(reporter, options.file));
  reporter.clear_progress();
  if (data.rows() == 0) throw FormatError(options.file + ": has no samples");
  for (const bench::DataRate& rate : bench::measure_prepared(data, options.batch, options.seconds))
    rates.push_back(rate);
  if (!options.json) std::cout << fmt::format("{:<20}{:>12}{:>14}\n", "one thread", "MB/s", "rows/s");
  for (const bench::DataRate& rate : rates) {
    const double bytes = static_cast<double>(rate.bytes) / rate.seconds;
    const double rows = static_cast<double>(rate.rows) / rate.seconds;
    if (options.json)
      print_line(ordered_json{{"event", "data"},
                              {"pass", rate.name},
                              {"megabytes_per_second", bytes / 1e6},
                              {"rows_per_second", rows},
                              {"seconds", rate.seconds}});
    else
      std::cout << fmt::format("{:<20}{:>12.0f}{:>14.0f}\n", rate.name, bytes / 1e6, rows);
  }
}

void add_data(CLI::App& bench_verb) {
  const auto options = std::make_shared<DataOptions>();
  CLI::App& verb = *bench_verb.add_subcommand("data", "How fast a data file is read, on one thread");
  verb.add_option("FILE", options->file, "text (plain, .xz, .gz) or a prepared file")->required();
  options->reading.add_to(verb);
  verb.add_option("--batch", options->batch, "samples of a batch")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  verb.add_option("--seconds", options->seconds, "for each figure of prepared data; text is read once")
      ->check(number_between(0.001, 60.0))
      ->capture_default_str();
  verb.add_flag("--json", options->json, "JSON Lines on standard output");
  verb.footer(
      "lines    the lines of the text are found, decompressed if need be\n"
      "fit      the words, labels, bins of the text are counted, for a format that needs it\n"
      "parse    the lines are found, and samples are read out of them\n"
      "scan     prepared data is walked in order\n"
      "batches  shuffled batches are gathered from it, by sample and by feature, as a training step needs "
      "them\n\n"
      "Examples:\n"
      "  modelet bench data train.txt\n"
      "  modelet bench data clicks.tsv --set data.format=criteo\n"
      "  modelet bench data train.mlt --batch 1024 --json");
  verb.callback([options] { bench_data(*options); });
}

// ---- inference

struct InferenceOptions {
  std::string checkpoint, data;
  size_t queries = 1000;
  bool json = false;
};

constexpr size_t kLabels = 5;  // of an answer

// The answers that one way of scoring gave, and how long they took.
struct Answers {
  std::vector<double> microseconds;
  std::vector<uint32_t> best;
  size_t right = 0;

  // Times score(sample), which returns a TopK.
  template <class Score>
  void time(const shard::Sample& sample, const Score& score) {
    const Stopwatch watch;
    const shard::TopK& top = score(sample);
    microseconds.push_back(watch.seconds() * 1e6);
    best.push_back(top.labels(0)[0]);
    right += std::ranges::binary_search(sample.labels, best.back()) ? 1 : 0;
  }
  double quantile(double q) const {
    std::vector<double> sorted = microseconds;
    const auto at = sorted.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(sorted.size() - 1));
    std::nth_element(sorted.begin(), at, sorted.end());
    return *at;
  }
  double precision() const { return static_cast<double>(right) / static_cast<double>(best.size()); }
};

struct Comparison {
  Answers dense, sparse;

  size_t queries() const { return dense.best.size(); }
  // The share of queries for which both ways found the same best label.
  double agreement() const {
    size_t agreed = 0;
    for (size_t i = 0; i < queries(); ++i) agreed += dense.best[i] == sparse.best[i] ? 1 : 0;
    return static_cast<double>(agreed) / static_cast<double>(queries());
  }
};

// Measures both ways in turns, so that other work of the machine affects both alike.
Comparison compare(const shard::Model& model, const shard::Dataset& data, size_t queries) {
  constexpr size_t kTurn = 50;  // queries that one way answers before the other has its turn
  shard::Model::Session session = model.session();
  const auto sparse = [&](const shard::Sample& s) -> const shard::TopK& {
    return session.sparse(s, kLabels);
  };
  const auto dense = [&](const shard::Sample& s) -> const shard::TopK& { return session.dense(s, kLabels); };
  // These samples lie halfway between those on which the index was tuned.
  const auto query = [&](size_t i) { return data.sample((2 * i + 1) * data.rows() / (2 * queries)); };
  sparse(query(0));  // warms up
  dense(query(0));
  Comparison result;
  for (size_t first = 0; first < queries; first += kTurn) {
    const size_t last = std::min(queries, first + kTurn);
    for (size_t i = first; i < last; ++i) result.sparse.time(query(i), sparse);
    for (size_t i = first; i < last; ++i) result.dense.time(query(i), dense);
  }
  return result;
}

ordered_json to_json(const Comparison& result, const shard::Model& model, size_t labels,
                     double prepare_seconds) {
  const shard::SparseSettings& settings = model.sparse_settings().settings;
  return {{"event", "inference"},
          {"queries", result.queries()},
          {"labels", labels},
          {"dense_p50_us", result.dense.quantile(0.5)},
          {"dense_p99_us", result.dense.quantile(0.99)},
          {"dense_p_at_1", result.dense.precision()},
          {"sparse_p50_us", result.sparse.quantile(0.5)},
          {"sparse_p99_us", result.sparse.quantile(0.99)},
          {"sparse_p_at_1", result.sparse.precision()},
          {"agreement", result.agreement()},
          {"prepare_seconds", prepare_seconds},
          {"index_bytes", model.sparse_bytes()},
          {"rows", settings.rows},
          {"head", settings.head},
          {"tables", settings.tables},
          {"bits", settings.bits},
          {"bucket", settings.bucket},
          {"candidates", settings.candidates}};
}

std::string to_text(const Comparison& result, const shard::Model& model, size_t labels,
                    double prepare_seconds) {
  const auto& [dense, sparse] = result;
  const shard::SparseSettings& settings = model.sparse_settings().settings;
  std::string text = fmt::format("{:<8}{:>12}{:>12}{:>10}\n", "", "p50 us", "p99 us", "P@1");
  const auto row = [&](const char* name, const Answers& answers) {
    text += fmt::format("{:<8}{:>12.1f}{:>12.1f}{:>10.4f}\n", name, answers.quantile(0.5),
                        answers.quantile(0.99), answers.precision());
  };
  row("dense", dense);
  row("sparse", sparse);
  text += fmt::format(
      "\np50 {:.1f} times as fast, p99 {:.1f} times; P@1 {:.2f} % of dense, the same best label for {:.2f} %\n",
      dense.quantile(0.5) / sparse.quantile(0.5), dense.quantile(0.99) / sparse.quantile(0.99),
      100 * sparse.precision() / std::max(dense.precision(), 1e-9), 100 * result.agreement());
  text += fmt::format(
      "{} queries, {} labels; index of {} rows, {:.1f} MB, built in {:.1f} s: {} always scored, {} tables of "
      "2^{} buckets, {} rows of a bucket, {} candidates\n",
      result.queries(), labels, settings.rows, static_cast<double>(model.sparse_bytes()) / 1e6,
      prepare_seconds, settings.head, settings.tables, settings.bits, settings.bucket, settings.candidates);
  return text;
}

void bench_inference(const InferenceOptions& options) {
  shard::Model model(options.checkpoint);
  const shard::Dataset data = model.load_data(options.data);
  const Stopwatch preparation;
  model.prepare_sparse(data);
  const double prepare_seconds = preparation.seconds();
  const Comparison result = compare(model, data, std::min(options.queries, data.rows()));
  if (options.json)
    print_line(to_json(result, model, data.labels(), prepare_seconds));
  else
    std::cout << to_text(result, model, data.labels(), prepare_seconds);
}

void add_inference(CLI::App& bench_verb) {
  const auto options = std::make_shared<InferenceOptions>();
  CLI::App& verb = *bench_verb.add_subcommand(
      "inference", "Latency of single queries to a model, dense and sparse, on one thread");
  verb.add_option("CHECKPOINT", options->checkpoint, "run folder or checkpoint")
      ->required()
      ->check(CLI::ExistingDirectory);
  verb.add_option("DATA", options->data, "samples to ask for, as for modelet eval")
      ->required()
      ->check(CLI::ExistingFile);
  verb.add_option("--queries", options->queries, "samples that are asked for, spread over DATA")
      ->check(CLI::Range(1u, 1000000u))
      ->capture_default_str();
  verb.add_flag("--json", options->json, "JSON on standard output");
  verb.footer(
      "A query is one sample: from its features to its five best labels. Dense and sparse answer in turns of "
      "50 queries.\nThe sparse index is tuned on other samples of DATA, as far as there are enough.\n\n"
      "Example:\n"
      "  modelet bench inference runs/quickstart-20260101-120000 test.txt.xz --queries 2000");
  verb.callback([options] { bench_inference(*options); });
}

}  // namespace

void add_bench_verbs(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("bench", "Measure this machine, the kernels, the readers of data, inference");
  verb->require_subcommand(1);
  add_kernels(*verb);
  add_data(*verb);
  add_inference(*verb);
}

}  // namespace modelet::cli
