#include "scheduler/cli/serve/request.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/experiment/table_layout.h"
#include "base/text/strict_json.h"
#include "base/text/suggest.h"
#include "shard/data/read/csv.h"

namespace modelet::cli {
namespace {

using Value = nlohmann::json;

constexpr int kMostNested = 5;  // {"samples": [{"features": {"ids": [7]}}]}

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw FormatError(where + ": " + what);
}

void require_known_keys(const Value& object, std::span<const std::string> known, const std::string& where) {
  for (const auto& member : object.items())
    if (std::ranges::count(known, member.key()) == 0)
      refuse(where, "there is no key '" + member.key() + "'" + suggestion(member.key(), known));
}

// ---- Words and columns as text ----

std::string as_one_line(std::string text, std::string_view separators) {
  std::ranges::replace_if(
      text, [&](char c) { return separators.find(c) != std::string_view::npos; }, ' ');
  return text;
}

bool is_table(const Encoding& encoding) {
  return encoding.format == DataFormat::kTable || encoding.format == DataFormat::kCriteo;
}

bool has_header(const Encoding& encoding) {
  return encoding.format != DataFormat::kCriteo && encoding.csv.header;
}

shard::CsvDialect dialect_of(const Encoding& encoding) {
  return encoding.format == DataFormat::kCriteo ? shard::kTabSeparated : shard::csv_dialect(encoding.csv);
}

std::string record_of(const std::vector<std::string>& fields, const shard::CsvDialect& dialect) {
  std::string record;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) record += dialect.delimiter;
    if (!dialect.quotes) {
      record += as_one_line(fields[i], "\t\r\n");
      continue;
    }
    record += '"';
    for (const char c : fields[i]) record.append(c == '"' ? 2 : 1, c);
    record += '"';
  }
  return record + '\n';
}

// The columns that a sample may name. They are found once for a question, which may have many samples.
std::vector<std::string> columns_of(const Encoding& encoding) {
  if (encoding.format == DataFormat::kCsv) return encoding.csv.text;
  if (!is_table(encoding)) return {};
  const TableLayout layout = table_layout(encoding.table, encoding.format);
  std::vector<std::string> columns;
  for (size_t column = 0; column < layout.columns.size(); ++column)
    if (std::ranges::count(layout.labels, column) == 0) columns.push_back(layout.columns[column]);
  return columns;
}

// One record, after a header if the format has one. `fields` has the values of `columns`.
std::string table_of(const Encoding& encoding, const std::vector<std::string>& columns,
                     std::vector<std::string> fields) {
  const shard::CsvDialect dialect = dialect_of(encoding);
  if (has_header(encoding)) return record_of(columns, dialect) + record_of(fields, dialect);
  if (is_table(encoding)) return record_of(fields, dialect);
  // Columns are numbers from 1. Columns without a value, such as the one for labels, stay empty.
  std::vector<std::string> places;
  const auto place = [&](const std::string& column) -> std::string& {
    size_t number = 0;
    std::from_chars(column.data(), column.data() + column.size(), number);
    MODELET_CHECK(number >= 1 && number <= shard::kMaxCsvFields, "columns of a model are numbers");
    if (places.size() < number) places.resize(number);
    return places[number - 1];
  };
  place(encoding.csv.labels);
  for (size_t i = 0; i < columns.size(); ++i) place(columns[i]) = std::move(fields[i]);
  return record_of(places, dialect);
}

std::string query_of_text(const std::string& text, const Encoding& encoding,
                          const std::vector<std::string>& columns, const std::string& where) {
  switch (encoding.format) {
    case DataFormat::kText:
    case DataFormat::kWords:
      return as_one_line(text, std::string_view("\n\r", 2)) + '\n';
    case DataFormat::kCsv: {
      std::vector<std::string> fields(columns.size());
      fields.front() = text;
      return table_of(encoding, columns, std::move(fields));
    }
    case DataFormat::kTable:
    case DataFormat::kCriteo:
      refuse(where, "this model reads columns: give 'fields', an object of columns and their values");
    default:
      refuse(where, "this model does not read text: give 'features'");
  }
}

std::string field_of(const Value& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  if (value.is_null()) return "";
  refuse(where, "a string, a number or null (nothing is known) is expected");
}

std::string query_of_fields(const Value& object, const Encoding& encoding,
                            const std::vector<std::string>& columns, const std::string& where) {
  if (!is_table(encoding) && encoding.format != DataFormat::kCsv)
    refuse(where, "this model does not read columns: give 'text' or 'features'");
  if (!object.is_object()) refuse(where, "an object of columns and their values is expected");
  std::vector<std::string> fields;
  size_t known = 0;
  for (const std::string& column : columns) {
    const auto found = object.find(column);
    known += found == object.end() ? 0 : 1;
    fields.push_back(found == object.end() ? "" : field_of(*found, where + "." + column));
  }
  if (known < object.size()) require_known_keys(object, columns, where);
  return table_of(encoding, columns, std::move(fields));
}

// ---- Features ----

// "7:0.5 9:1", or {"ids": [7, 9], "values": [0.5, 1]}. Without "values" all values are 1.
std::string query_of_features(const Value& value, const std::string& where) {
  if (value.is_string()) {
    const std::string text = as_one_line(value.get<std::string>(), std::string_view("\n\r", 2));
    // A reader takes numbers without a value for labels, which no question has.
    if (text.find_first_not_of(" \t") != std::string::npos && text.find(':') == std::string::npos)
      refuse(where,
             "a string like \"7:0.5 9:1\" is expected, with a value after each id; without values, give an "
             "object with 'ids'");
    return text + '\n';
  }
  if (!value.is_object())
    refuse(where, "a string like \"7:0.5 9:1\" or an object with 'ids' and 'values' is expected");
  require_known_keys(value, std::vector<std::string>{"ids", "values"}, where);
  const Value& ids = member_at(value, "ids", where);
  if (!ids.is_array()) refuse(where + ".ids", "a list of whole numbers is expected");
  const auto values = value.find("values");
  if (values != value.end() && (!values->is_array() || values->size() != ids.size()))
    refuse(where + ".values", fmt::format("a list of {} numbers is expected, one for each id", ids.size()));
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!ids[i].is_number_unsigned()) refuse(where + ".ids", "a list of whole numbers is expected");
    if (values != value.end() && !(*values)[i].is_number())
      refuse(where + ".values", "a list of numbers is expected");
    fmt::format_to(std::back_inserter(text), "{}:{} ", ids[i].get<uint64_t>(),
                   values == value.end() ? 1 : (*values)[i].get<double>());
  }
  return text + '\n';
}

// ---- The question ----

constexpr const char* kKinds[] = {"text", "fields", "features"};

Query query_of(const Value& object, const Encoding& encoding, const std::vector<std::string>& columns,
               const std::string& where) {
  const std::string inside = where.empty() ? "" : where + ".";
  const char* kind = nullptr;
  for (const char* each : kKinds) {
    if (!object.contains(each)) continue;
    if (kind != nullptr)
      refuse(inside + each, fmt::format("there is '{}' already; a sample has one of them", kind));
    kind = each;
  }
  if (kind == nullptr)
    refuse(where.empty() ? "the question" : where, "one of 'text', 'fields' and 'features' is expected" +
                                                       std::string(where.empty() ? ", or 'samples'" : ""));
  Query query{.ids = kind == kKinds[2], .where = inside + kind};
  const Value& value = object[kind];
  if (query.ids) {
    query.text = query_of_features(value, query.where);
  } else if (kind == kKinds[1]) {
    query.text = query_of_fields(value, encoding, columns, query.where);
  } else {
    if (!value.is_string()) refuse(query.where, "a string is expected");
    query.text = query_of_text(value.get<std::string>(), encoding, columns, query.where);
  }
  return query;
}

}  // namespace

PredictRequest parse_request(std::string_view body, const Encoding& encoding, const RequestLimits& limits) {
  static const std::vector<std::string> kOfSample = {"text", "fields", "features"};
  static const std::vector<std::string> kKnown = {"text", "fields", "features", "samples", "k", "sparse"};
  const Value json = parse_strict_json(body, "the question", kMostNested);
  if (!json.is_object()) refuse("the question", "a JSON object is expected");
  require_known_keys(json, kKnown, "the question");
  PredictRequest request;
  if (json.contains("k")) {
    request.k = unsigned_at(json, "k", "the question");
    if (request.k < 1 || request.k > limits.k)
      refuse("k",
             fmt::format("{} labels are asked for; 1 to {} is what this server gives", request.k, limits.k));
  }
  request.k = std::min(request.k, limits.k);
  if (const auto sparse = json.find("sparse"); sparse != json.end()) {
    if (!sparse->is_boolean()) refuse("sparse", "true or false is expected");
    request.sparse = sparse->get<bool>();
  }
  const std::vector<std::string> columns = columns_of(encoding);
  const auto samples = json.find("samples");
  if (samples == json.end()) {
    request.queries.push_back(query_of(json, encoding, columns, ""));
    return request;
  }
  request.single = false;
  for (const std::string& each : kOfSample)
    if (json.contains(each)) refuse(each, "belongs into an entry of 'samples', if there are any");
  if (!samples->is_array() || samples->empty()) refuse("samples", "a list of samples is expected");
  if (samples->size() > limits.samples)
    refuse("samples", fmt::format("{} samples; this server answers {} at a time: send several questions",
                                  samples->size(), limits.samples));
  for (size_t i = 0; i < samples->size(); ++i) {
    const std::string where = fmt::format("samples[{}]", i);
    if (!(*samples)[i].is_object())
      refuse(where, "an object with 'text', 'fields' or 'features' is expected");
    require_known_keys((*samples)[i], kOfSample, where);
    request.queries.push_back(query_of((*samples)[i], encoding, columns, where));
  }
  return request;
}

}  // namespace modelet::cli
