// modelet data split: a data set as the data sets of several owners.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/file.h"
#include "base/system/process.h"
#include "base/text/suggest.h"
#include "scheduler/cli/options/arguments.h"
#include "scheduler/cli/options/output.h"
#include "scheduler/cli/verbs/data.h"
#include "shard/data/read/csv.h"
#include "shard/data/read/line_reader.h"
#include "shard/format/safetensors.h"

namespace modelet::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kMostOwners = 1000;
constexpr uint64_t kOwnersStream = 100;  // of random numbers; those of synthetic data have smaller ones

struct SplitOptions {
  std::string in, out, by = "random";
  uint32_t owners = 2;
  uint64_t seed = 1;
  bool force = false, json = false;
};

// The records of a text, a sample each: lines of XMC or labelled text, or rows of CSV below a header.
class Records {
 public:
  explicit Records(const std::string& path) : name_(path) {
    fs::path plain = path;
    if (plain.extension() == ".xz" || plain.extension() == ".gz") plain = plain.stem();
    const std::string extension = plain.extension().string();
    if (extension == ".csv" || extension == ".tsv") {
      if (extension == ".tsv") dialect_ = shard::kTabSeparated;
      csv_.emplace(shard::LineReader(path), dialect_);
      if (!csv_->next(fields_)) throw FormatError(path + ": is empty; a header and rows are expected");
      for (const std::string_view field : fields_) columns_.emplace_back(field);
      header_ = csv_line();
      return;
    }
    lines_.emplace(path);
    if (!lines_->next(record_)) throw FormatError(path + ": is empty; samples are expected");
    if (const auto counts = xmc_counts(record_); !counts.empty())
      counts_ = counts;
    else
      kept_ = true;  // the first line is a sample
  }

  bool next() {
    if (csv_) {
      if (!csv_->next(fields_)) return false;
      line_ = csv_line();
      record_ = line_;
      return true;
    }
    if (std::exchange(kept_, false)) return true;
    do {
      if (!lines_->next(record_)) return false;
    } while (record_.empty());
    return true;
  }

  std::string_view text() const { return record_; }
  // What stands above the records of a file with so many; without a line end. Empty: nothing.
  std::string header(uint64_t records) const {
    if (counts_.empty()) return header_;
    return std::to_string(records) + ' ' + std::to_string(counts_[1]) + ' ' + std::to_string(counts_[2]);
  }
  size_t column(const std::string& name) const {
    if (!csv_)
      throw UsageError(name_ + ": has no columns; a name that ends with .csv or .tsv stands for a table");
    const auto found = std::ranges::find(columns_, name);
    if (found == columns_.end())
      throw UsageError(name_ + ": has no column '" + name + "'" + suggestion(name, columns_));
    return static_cast<size_t>(found - columns_.begin());
  }
  std::string_view field(size_t column) const { return fields_[column]; }
  // The sample's first label: in a table the value of the first column.
  std::string_view label() const {
    if (csv_) return fields_.front();
    const std::string_view first = record_.substr(0, record_.find(' '));
    return counts_.empty()                             ? first
           : first.find(':') == std::string_view::npos ? first.substr(0, first.find(','))
                                                       : "";
  }

 private:
  // The three numbers of a header; empty: it is none.
  static std::vector<uint64_t> xmc_counts(std::string_view line) {
    std::vector<uint64_t> counts;
    const char* at = line.data();
    const char* const end = at + line.size();
    while (at != end) {
      uint64_t value = 0;
      const auto [rest, error] = std::from_chars(at, end, value);
      if (error != std::errc() || (rest != end && *rest != ' ')) return {};
      counts.push_back(value);
      at = std::find_if(rest, end, [](char c) { return c != ' '; });
    }
    return counts.size() == 3 ? counts : std::vector<uint64_t>();
  }

  // The fields of the present record, quoted where they must be.
  std::string csv_line() const {
    std::string line;
    for (size_t f = 0; f < fields_.size(); ++f) {
      const std::string_view field = fields_[f];
      if (f > 0) line += dialect_.delimiter;
      if (!dialect_.quotes || field.find_first_of("\",\n\r") == std::string_view::npos) {
        line += field;
        continue;
      }
      line += '"';
      for (const char c : field) line.append(c == '"' ? 2 : 1, c);
      line += '"';
    }
    return line;
  }

  std::string name_, header_, line_;
  shard::CsvDialect dialect_;
  std::optional<shard::CsvReader> csv_;
  std::optional<shard::LineReader> lines_;
  std::span<const std::string_view> fields_;
  std::vector<std::string> columns_;
  std::vector<uint64_t> counts_;  // of the header of XMC text
  std::string_view record_;
  bool kept_ = false;  // the first line is a sample that next() has yet to return
};

uint64_t key_of(std::string_view text) { return shard::xxh3_of(std::as_bytes(std::span(text))); }

// Marsaglia, Tsang, "A simple method for generating gamma variables" (ACM TOMS 26, 2000).
double gamma_draw(double shape, Rng& rng) {
  if (shape < 1) return gamma_draw(shape + 1, rng) * std::pow(1 - rng.uniform_double(), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = rng.normal(), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - rng.uniform_double()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

std::vector<uint32_t> at_random(Records& records, const SplitOptions& options) {
  std::vector<uint32_t> owners;
  Rng rng(options.seed, {kStreamSynth, kOwnersStream});
  while (records.next()) owners.push_back(rng.below(options.owners));
  return owners;
}

// Records with the same value have the same owner; values go to the owner with the fewest records, the largest first.
// `value_of`: of the present record.
std::vector<uint32_t> by_value(Records& records, const SplitOptions& options,
                               const std::function<std::string_view()>& value_of) {
  std::map<std::string, uint32_t, std::less<>> number_of;
  std::vector<uint32_t> values;
  std::vector<uint64_t> rows;
  while (records.next()) {
    const auto [value, is_new] = number_of.try_emplace(std::string(value_of()), number_of.size());
    if (is_new) rows.push_back(0);
    values.push_back(value->second);
    ++rows[value->second];
  }
  std::vector<uint32_t> order(rows.size()), owner_of(rows.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](uint32_t value) { return rows[value]; });
  std::vector<uint64_t> total(options.owners);
  for (const uint32_t value : order) {
    const auto fewest = std::ranges::min_element(total);
    *fewest += rows[value];
    owner_of[value] = static_cast<uint32_t>(fewest - total.begin());
  }
  for (uint32_t& value : values) value = owner_of[value];
  return values;
}

// A file with a line for each sample: what it belongs to.
std::vector<uint32_t> by_lines(Records& records, const SplitOptions& options, const std::string& file) {
  shard::LineReader lines(file);
  uint64_t read = 0;
  std::string_view line;
  std::vector<uint32_t> owners = by_value(records, options, [&] {
    if (!lines.next(line))
      throw UsageError(file + ": has " + std::to_string(read) + " lines, and " + options.in +
                       " has more samples; give a line for each sample, in the same order");
    ++read;
    return line;
  });
  if (lines.next(line))
    throw UsageError(file + ": has more lines than the " + std::to_string(read) + " samples of " + options.in +
                     "; give a line for each sample, in the same order");
  return owners;
}

// Each label's samples are divided by shares that are drawn from a Dirichlet distribution (Hsu, Qi, Brown, "Measuring
// the effects of non-identical data distribution", 2019): the smaller alpha, the fewer owners have a label.
std::vector<uint32_t> by_dirichlet(Records& records, const SplitOptions& options, double alpha) {
  std::map<uint64_t, std::vector<double>> limits_of;  // by label: cumulated shares
  std::vector<uint32_t> owners;
  const Rng seeded(options.seed, {kStreamSynth, kOwnersStream});
  Rng draws = seeded.stream(0);
  while (records.next()) {
    const uint64_t label = key_of(records.label());
    std::vector<double>& limits = limits_of[label];
    if (limits.empty()) {
      Rng of_label = seeded.stream(1).stream(label);
      for (uint32_t owner = 0; owner < options.owners; ++owner) limits.push_back(gamma_draw(alpha, of_label));
      std::partial_sum(limits.begin(), limits.end(), limits.begin());
    }
    const auto found = std::ranges::upper_bound(limits, draws.uniform_double() * limits.back());
    owners.push_back(std::min(static_cast<uint32_t>(found - limits.begin()), options.owners - 1));
  }
  return owners;
}

// The owner of each record.
std::vector<uint32_t> divide(Records& records, const SplitOptions& options) {
  const std::string kind = options.by.substr(0, options.by.find(':'));
  const std::string value = kind.size() < options.by.size() ? options.by.substr(kind.size() + 1) : "";
  if (kind == "random" && value.empty()) return at_random(records, options);
  if (kind == "column" && !value.empty())
    return by_value(records, options, [&records, column = records.column(value)] { return records.field(column); });
  if (kind == "lines" && !value.empty()) return by_lines(records, options, value);
  if (kind == "dirichlet") {
    constexpr double kLeast = 1e-3, kMost = 1e6;
    double alpha = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), alpha);
    if (error == std::errc() && end == value.data() + value.size() && alpha >= kLeast && alpha <= kMost)
      return by_dirichlet(records, options, alpha);
  }
  throw UsageError("--by is '" + options.by +
                   "'; write random, column:NAME, lines:FILE, or dirichlet:ALPHA with a number from 0.001 to 1000000");
}

// owner-03.txt
std::string file_of(const SplitOptions& options, uint32_t owner) {
  fs::path plain = options.in;
  if (plain.extension() == ".xz" || plain.extension() == ".gz") plain = plain.stem();
  const size_t digits = std::to_string(options.owners - 1).size();
  std::string number = std::to_string(owner);
  number.insert(0, digits - number.size(), '0');
  return (fs::path(options.out) / ("owner-" + number + plain.extension().string())).string();
}

void split(const SplitOptions& options) {
  shard::require_regular_file(options.in);
  std::vector<std::string> names;
  for (uint32_t owner = 0; owner < options.owners; ++owner) {
    names.push_back(file_of(options, owner));
    require_writable(names.back(), options.force, {options.in});
  }
  constexpr uint64_t kOtherFiles = 20;
  require_descriptors(options.owners + kOtherFiles, "--owners " + std::to_string(options.owners));
  Records records(options.in);
  const std::vector<uint32_t> owner_of = divide(records, options);
  std::vector<uint64_t> rows(options.owners);
  for (const uint32_t owner : owner_of) ++rows[owner];
  if (const auto none = std::ranges::find(rows, 0u); none != rows.end())
    throw UsageError(options.in + ": of its " + std::to_string(owner_of.size()) + " samples, owner " +
                     std::to_string(none - rows.begin()) +
                     " would get none; take fewer owners, another --seed or a larger alpha");
  fs::create_directories(options.out);
  std::vector<std::unique_ptr<AtomicFile>> files;
  std::vector<std::string> waiting(options.owners);  // texts, written many at once
  for (uint32_t owner = 0; owner < options.owners; ++owner) {
    files.push_back(
        std::make_unique<AtomicFile>(names[owner], options.force ? Existing::kReplace : Existing::kKeep));
    if (const std::string header = records.header(rows[owner]); !header.empty())
      files[owner]->write(header + "\n");
  }
  constexpr size_t kAtOnce = 64 << 10;
  Records again(options.in);
  for (const uint32_t owner : owner_of) {
    if (!again.next()) throw FormatError(options.in + ": has become shorter while it was read");
    (waiting[owner] += again.text()) += '\n';
    if (waiting[owner].size() < kAtOnce) continue;
    files[owner]->write(waiting[owner]);
    waiting[owner].clear();
  }
  for (uint32_t owner = 0; owner < options.owners; ++owner) {
    files[owner]->write(waiting[owner]);
    files[owner]->commit();
    if (options.json)
      print_line(nlohmann::ordered_json{{"event", "split"}, {"file", names[owner]}, {"rows", rows[owner]}});
    else
      std::cout << names[owner] << ": " << rows[owner] << " rows\n";
  }
}

}  // namespace

void add_split(CLI::App& data) {
  const auto options = std::make_shared<SplitOptions>();
  CLI::App* verb =
      data.add_subcommand("split", "Divide a data set among several owners, to try what they learn together");
  verb->footer(
      "IN is XMC text, labelled text (a sample a line), or CSV (.csv, .tsv) with a header; plain, .xz or .gz. Each sample\n"
      "goes to one file, OUT_DIR/owner-0.txt and so on; IN, the options and the seed decide which.\n"
      "  --by random           every sample by itself\n"
      "  --by column:NAME      rows with the same value of a column have the same owner\n"
      "  --by lines:FILE       the same for the lines of a file, one for each sample: its section, its shop\n"
      "  --by dirichlet:ALPHA  owners have different labels: shares of each label are drawn from a Dirichlet distribution\n"
      "                        (0.1: most labels have one owner or two; 100: nearly even). In CSV the first column counts\n\n"
      "Examples:\n"
      "  modelet data split train.txt.xz owners --owners 16 --by dirichlet:0.1\n"
      "  modelet data split orders.csv shops --owners 4 --by column:shop\n"
      "  modelet data split train.txt.xz owners --owners 4 --by lines:sections.txt");
  verb->add_option("IN", options->in, "text (plain, .xz, .gz)")->required();
  verb->add_option("OUT_DIR", options->out, "folder of the files to write")->required();
  verb->add_option("--owners", options->owners, "how many")
      ->check(CLI::Range(2u, kMostOwners))
      ->capture_default_str();
  verb->add_option("--by", options->by, "random, column:NAME, lines:FILE or dirichlet:ALPHA")->capture_default_str();
  verb->add_option("--seed", options->seed, "seed")->capture_default_str();
  add_force_flag(*verb, options->force);
  verb->add_flag("--json", options->json, "JSON Lines on standard output");
  verb->callback([options] { split(*options); });
}

}  // namespace modelet::cli
