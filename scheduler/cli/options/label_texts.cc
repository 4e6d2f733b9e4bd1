#include "scheduler/cli/options/label_texts.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_set>

#include "base/error.h"
#include "base/experiment/column_use.h"
#include "base/system/file.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/encode/guess.h"
#include "shard/data/read/csv.h"
#include "shard/data/read/line_reader.h"

namespace modelet::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceWords = 8, kMostPieces = 32;

std::string joined(const std::vector<std::string>& words, size_t first, size_t count) {
  std::string text;
  for (size_t word = first; word < std::min(words.size(), first + count); ++word) text += (text.empty() ? "" : " ") + words[word];
  return text;
}

}  // namespace

std::vector<std::string> pieces_of(std::string_view text) {
  std::vector<std::string> words;
  std::istringstream stream{std::string(text)};
  for (std::string word; stream >> word;) words.push_back(word);
  if (words.empty()) return {};
  std::vector<std::string> pieces = {joined(words, 0, words.size())};
  // At least two parts of a short text.
  const size_t length = std::min(kPieceWords, (words.size() + 1) / 2), step = std::max<size_t>(1, length / 2);
  const size_t runs = words.size() <= length ? 0 : (words.size() - length + step - 1) / step + 1;
  const size_t used = std::min(runs, kMostPieces);
  for (size_t piece = 0; piece < used; ++piece) {
    const size_t run = used == 1 ? 0 : piece * (runs - 1) / (used - 1);
    pieces.push_back(joined(words, std::min(run * step, words.size() - length), length));
  }
  return pieces;
}

LabelledLine::LabelledLine(const fs::path& like, const Encoding& encoding) : prefix_(encoding.text.label_prefix) {
  if (shard::format_of(like, encoding) != DataFormat::kText)
    throw UsageError(like.string() +
                     ": is no labelled text, and --label-texts are words: they go with labelled text, or with a table and --target");
}

std::string LabelledLine::record(std::string_view label, std::string_view piece) {
  if (label.find_first_of(" \t") != std::string_view::npos)
    throw FormatError(fmt::format("the label {} has a blank in its name, which labelled text cannot have", shard::quoted(label)));
  if (piece.starts_with(prefix_) || piece.find(" " + prefix_) != std::string_view::npos)
    throw FormatError(fmt::format("a word of the text begins with {}, as a label: take it out", shard::quoted(prefix_)));
  return fmt::format("{}{} {}\n", prefix_, label, piece);
}

TableRecord::TableRecord(const fs::path& like, const std::string& target, const Experiment& given, bool has_delimiter,
                         bool others)
    : target_(target) {
  Experiment::Csv csv = given.csv;
  if (!csv.header) throw UsageError("--label-texts needs names of columns: csv.header = false has none");
  if (!has_delimiter && !shard::is_json_lines(like)) csv.delimiter = shard::guess_delimiter(like);
  ColumnUses uses = column_uses(given.columns);
  const shard::ColumnGuess guess = shard::guess_columns(like, csv, uses, {target});
  for (const shard::GuessedColumn& column : guess.columns) {
    columns_.push_back(column.name);
    if (column.use.type == ColumnType::kText && text_.empty()) text_ = column.name;
  }
  if (text_.empty())
    throw UsageError(like.string() + ": has no column of text, in which --label-texts could stand; name one with --set columns.NAME=text");
  if (others) read_others(like, guess, csv);
  if (guess.json) return;
  delimiter_ = shard::character(csv.delimiter);
  shard::LineReader lines(like);
  std::string_view line;
  if (lines.next(line)) head_ = std::string(line) + '\n';
}

void TableRecord::read_others(const fs::path& like, const shard::ColumnGuess& guess, const Experiment::Csv& csv) {
  constexpr size_t kMost = 1000;
  shard::CsvReader table(shard::LineReader(like), shard::csv_dialect(csv));
  std::span<const std::string_view> fields;
  if (table.is_json()) {
    std::vector<shard::JsonKey> keys;
    for (const std::string& name : columns_) keys.push_back({name, {}, false});
    table.read_keys(std::move(keys));
  } else {
    table.next(fields);  // the header
  }
  while (others_.size() < kMost && table.next(fields)) {
    shard::Row& row = others_.emplace_back(columns_.size());
    for (size_t column = 0; column < columns_.size(); ++column) {
      const ColumnType type = guess.columns[column].use.type;
      if (type == ColumnType::kNumber || type == ColumnType::kDate || type == ColumnType::kCategory) row[column] = fields[column];
    }
  }
}

std::string TableRecord::ending() const { return delimiter_ == 0 ? ".jsonl" : delimiter_ == '\t' ? ".tsv" : ".csv"; }

std::string TableRecord::record(std::string_view label, std::string_view piece) {
  const shard::Row none(others_.empty() ? columns_.size() : 0), &other = others_.empty() ? none : others_[next_++ % others_.size()];
  if (delimiter_ == 0) {
    nlohmann::json object = {{target_, label}, {text_, piece}};
    for (size_t column = 0; column < columns_.size(); ++column)
      if (!other[column].empty() && !object.contains(columns_[column])) object[columns_[column]] = nlohmann::json::parse(other[column]);
    return object.dump() + '\n';
  }
  std::string line;
  for (size_t column = 0; column < columns_.size(); ++column) {
    if (column > 0) line += delimiter_;
    const std::string_view cell = columns_[column] == target_ ? label : columns_[column] == text_ ? piece : other[column];
    if (delimiter_ == '\t' || cell.empty()) {
      line += cell;
      continue;
    }
    line += '"';
    for (const char c : cell) line.append(c == '"' ? 2 : 1, c);
    line += '"';
  }
  return line + '\n';
}

TextsOfLabels add_label_texts(const fs::path& train, const fs::path& texts, SampleText& samples, const fs::path& folder) {
  fs::create_directories(folder);
  TextsOfLabels result{.train = folder / ("train-with-texts" + samples.ending())};
  AtomicFile file(result.train);
  std::string waiting = train.empty() ? samples.head() : "";
  const auto write = [&](size_t at_least) {
    if (waiting.size() < at_least) return;
    file.write(std::string_view(waiting));
    waiting.clear();
  };
  constexpr size_t kTogether = size_t{1} << 20;  // bytes
  std::string_view line;
  if (!train.empty())
    for (shard::LineReader lines(train); lines.next(line); write(kTogether)) waiting.append(line).push_back('\n');
  std::unordered_set<std::string> labels;
  for (shard::LineReader lines(texts); lines.next(line); write(kTogether)) {
    if (line.empty()) continue;
    const size_t tab = line.find('\t');
    if (tab == 0 || tab == std::string_view::npos) lines.fail("a label's name, a tab and its text are expected");
    const std::vector<std::string> pieces = pieces_of(line.substr(tab + 1));
    if (pieces.empty()) lines.fail("the label has no text; leave the line out");
    try {
      for (const std::string& piece : pieces) waiting += samples.record(line.substr(0, tab), piece);
    } catch (const FormatError& error) {
      lines.fail(error.what());
    } catch (const nlohmann::json::type_error&) {
      lines.fail("is not UTF-8");
    }
    labels.emplace(line.substr(0, tab));
    result.pieces += pieces.size();
  }
  if (labels.empty()) throw FormatError(texts.string() + ": has no text of a label");
  write(0);
  file.commit();
  result.labels = labels.size();
  return result;
}

}  // namespace modelet::cli
