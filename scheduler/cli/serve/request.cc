#include "scheduler/cli/serve/request.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/text/strict_json.h"
#include "base/text/suggest.h"
#include "shard/data/read/json_lines.h"

namespace modelet::cli {
namespace {

using Value = nlohmann::json;

constexpr int kMostNested = 7;  // {"samples": [{"fields": {"history": [{"tags": ["a"]}]}}]}

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw FormatError(where + ": " + what);
}

// ---- Columns ----

std::string field_of(const Value& value, std::optional<char> separator, const std::string& where) {
  return shard::json_cell(value, separator, [&](const std::string& what) { refuse(where, what); });
}

shard::Row row_of_list(const Value& list, const shard::Columns& columns, const std::string& where) {
  columns.require_whole(list.size(), where);
  shard::Row row;
  for (const Value& value : list)
    row.push_back(field_of(value, columns.separators()[row.size()], fmt::format("{}[{}]", where, row.size())));
  return row;
}

shard::Row row_of_object(const Value& object, const shard::Columns& columns, const std::string& where) {
  std::vector<std::string> named;
  for (const auto& member : object.items()) named.push_back(member.key());
  shard::Row row;
  for (const size_t place : columns.places(named, where))
    row.push_back(place == shard::Columns::kAbsent ? ""
                                                   : field_of(object[named[place]], columns.separators()[row.size()],
                                                              where + "." + named[place]));
  if (const auto history = object.find(shard::Columns::kHistory); columns.takes_histories() && history != object.end())
    row.push_back(history->dump());
  return row;
}

shard::Row row_of_fields(const Value& fields, const shard::Columns& columns, const std::string& where) {
  if (columns.names().empty()) refuse(where, "this model does not read columns: give 'text' or 'features'");
  if (fields.is_array()) return row_of_list(fields, columns, where);
  if (!fields.is_object())
    refuse(where, "an object of columns and their values is expected, or a list of values");
  return row_of_object(fields, columns, where);
}

void require_text(const shard::Columns& columns, const std::string& where) {
  switch (columns.format()) {
    case DataFormat::kTable:
    case DataFormat::kCriteo:
    case DataFormat::kColumns:
      refuse(where, "this model reads columns: give 'fields', an object of columns and their values");
    case DataFormat::kXmc:
      refuse(where, "this model does not read text: give 'features'");
    default:
      break;
  }
}

// ---- Features ----

// "7:0.5 9:1", or {"ids": [7, 9], "values": [0.5, 1]}. Without "values" all values are 1.
std::string query_of_features(const Value& value, const std::string& where) {
  if (value.is_string()) {
    std::string text = value.get<std::string>();
    std::ranges::replace_if(
        text, [](char c) { return c == '\n' || c == '\r'; }, ' ');
    // A reader takes numbers without a value for labels, which no request has.
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

// ---- The request ----

constexpr const char* kKinds[] = {"text", "fields", "features"};

Query query_of(const Value& object, const shard::Columns& columns, const std::string& where) {
  const std::string inside = where.empty() ? "" : where + ".";
  const char* kind = nullptr;
  for (const char* each : kKinds) {
    if (!object.contains(each)) continue;
    if (kind != nullptr)
      refuse(inside + each, fmt::format("there is '{}' already; a sample has one of them", kind));
    kind = each;
  }
  if (kind == nullptr)
    refuse(where.empty() ? "the request" : where, "one of 'text', 'fields' and 'features' is expected" +
                                                      std::string(where.empty() ? ", or 'samples'" : ""));
  Query query{.ids = kind == kKinds[2], .where = inside + kind};
  const Value& value = object[kind];
  if (query.ids) {
    query.text = query_of_features(value, query.where);
  } else if (kind == kKinds[1]) {
    query.row = row_of_fields(value, columns, query.where);
  } else {
    if (!value.is_string()) refuse(query.where, "a string is expected");
    require_text(columns, query.where);
    query.text = value.get<std::string>();
  }
  return query;
}

void read_among(const Value& among, const RequestLimits& limits, PredictRequest& request) {
  if (among.is_string()) {
    request.subset = among.get<std::string>();
    return;
  }
  if (!among.is_array() || among.empty())
    refuse("among", "a list of labels is expected, or the name of a set that the server knows (--subset)");
  if (among.size() > limits.among)
    refuse("among", fmt::format("{} labels; a request may name {}: give the server the set as --subset",
                                among.size(), limits.among));
  for (const Value& label : among) {
    if (label.is_string())
      request.among.emplace_back(label.get<std::string>());
    else if (label.is_number_unsigned())
      request.among.emplace_back(label.get<uint64_t>());
    else
      refuse("among", "names of labels are expected, or their numbers");
  }
}

// Of the answers: among which labels they are, from where on they are good enough, and whether they are explained.
void read_wishes(const Value& json, const RequestLimits& limits, PredictRequest& request) {
  if (const auto among = json.find("among"); among != json.end()) read_among(*among, limits, request);
  if (const auto threshold = json.find("threshold"); threshold != json.end()) {
    if (!threshold->is_number()) refuse("threshold", "a number is expected");
    request.threshold = threshold->get<double>();
  }
  if (json.contains("explain")) {
    request.reasons = unsigned_at(json, "explain", "the request");
    if (request.reasons < 1 || request.reasons > limits.reasons)
      refuse("explain", fmt::format("{} features are asked for; 1 to {} is what this server gives",
                                    request.reasons, limits.reasons));
  }
}

}  // namespace

void require_known_keys(const Value& object, std::span<const std::string> known, const std::string& where) {
  for (const auto& member : object.items())
    if (std::ranges::count(known, member.key()) == 0)
      refuse(where, "there is no key '" + member.key() + "'" + suggestion(member.key(), known));
}

std::string text_of_samples(const Value& body) {
  const Value& samples = member_at(body, "samples", "the request");
  if (samples.is_string()) return samples.get<std::string>();
  constexpr const char* kExpected =
      "text as that of the training data is expected, or a list of objects of columns and their values";
  if (!samples.is_array()) refuse("samples", kExpected);
  std::string lines;
  for (const Value& sample : samples) {
    if (!sample.is_object()) refuse("samples", kExpected);
    lines += sample.dump() + "\n";
  }
  return lines;
}

PredictRequest parse_request(std::string_view body, const shard::Columns& columns,
                             const RequestLimits& limits) {
  static const std::vector<std::string> kOfSample = {"text", "fields", "features"};
  static const std::vector<std::string> kKnown = {"text",  "fields", "features",  "samples", "k",
                                                  "among", "sparse", "threshold", "explain"};
  const Value json = shard::parse_json_values(body, "the request", kMostNested);  // a number may be a category
  if (!json.is_object()) refuse("the request", "a JSON object is expected");
  require_known_keys(json, kKnown, "the request");
  PredictRequest request;
  if (json.contains("k")) {
    request.k = unsigned_at(json, "k", "the request");
    if (request.k < 1 || request.k > limits.k)
      refuse("k",
             fmt::format("{} labels are asked for; 1 to {} is what this server gives", request.k, limits.k));
  }
  request.k = std::min(request.k, limits.k);
  if (const auto sparse = json.find("sparse"); sparse != json.end()) {
    if (!sparse->is_boolean()) refuse("sparse", "true or false is expected");
    request.sparse = sparse->get<bool>();
  }
  read_wishes(json, limits, request);
  const auto samples = json.find("samples");
  if (samples == json.end()) {
    request.queries.push_back(query_of(json, columns, ""));
    return request;
  }
  request.single = false;
  for (const std::string& each : kOfSample)
    if (json.contains(each)) refuse(each, "belongs into an entry of 'samples', if there are any");
  if (!samples->is_array() || samples->empty()) refuse("samples", "a list of samples is expected");
  if (samples->size() > limits.samples)
    refuse("samples", fmt::format("{} samples; this server answers {} at a time: send several requests",
                                  samples->size(), limits.samples));
  for (size_t i = 0; i < samples->size(); ++i) {
    const std::string where = fmt::format("samples[{}]", i);
    if (!(*samples)[i].is_object())
      refuse(where, "an object with 'text', 'fields' or 'features' is expected");
    require_known_keys((*samples)[i], kOfSample, where);
    request.queries.push_back(query_of((*samples)[i], columns, where));
  }
  return request;
}

}  // namespace modelet::cli
