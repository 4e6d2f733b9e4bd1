// Parses the body of a request to `modelet serve`: from JSON to samples as the model reads them
// (docs/serving.md). The body comes from anywhere, so every limit is checked here. Errors are FormatErrors or
// UsageErrors that say where the mistake is and what to write instead. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shard/data/encode/columns.h"

namespace modelet::cli {

struct RequestLimits {
  size_t samples = 1000;  // of one request
  size_t k = 100;         // labels for each sample
  size_t among = 100000;  // labels that a request may name
  size_t reasons = 100;   // features for each answer
};

// One sample.
struct Query {
  std::string text;
  shard::Row row;     // a value for each of the model's columns; empty: `text` is the request
  bool ids = false;   // `text` is XMC text
  std::string where;  // its place in the request, for messages: "samples[3].text"
};

struct PredictRequest {
  std::vector<Query> queries;  // at least one
  bool single = true;          // the request has one sample, and no list of samples
  size_t k = 5;
  std::optional<bool> sparse;
  // Labels among which to choose: a set that the server knows by name, or names and numbers; nothing: all.
  std::string subset;
  std::vector<std::variant<std::string, uint64_t>> among;
  std::optional<double> threshold;
  size_t reasons = 0;  // features that explain each answer
};

// Throws if an object has another key.
void require_known_keys(const nlohmann::json& object, std::span<const std::string> known, const std::string& where);

// The member `samples` of a request as text that the model reads: it is text, or a list of objects of columns and their
// values, which may have nested values in columns that are not used.
inline constexpr int kMostNestedInSamples = 16;
std::string text_of_samples(const nlohmann::json& body);

// `columns`: those of the model (QueryEncoder::columns()).
PredictRequest parse_request(std::string_view body, const shard::Columns& columns,
                             const RequestLimits& limits);

}  // namespace modelet::cli
