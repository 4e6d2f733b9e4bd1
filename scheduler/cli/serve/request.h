// Parses the body of a question to `modelet serve`: from JSON to samples as text in the format of the model
// (docs/serving.md). The body comes from anywhere, so every limit is checked here. Errors are FormatErrors
// that say where the mistake is and what to write instead. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/experiment/experiment.h"

namespace modelet::cli {

struct RequestLimits {
  size_t samples = 1000;  // of one question
  size_t k = 100;         // labels for each sample
};

// One sample.
struct Query {
  std::string text;   // in the model's format, with its header if it has one; or XMC text
  bool ids = false;   // `text` is XMC text
  std::string where;  // its place in the question, for messages: "samples[3].text"
};

struct PredictRequest {
  std::vector<Query> queries;  // at least one
  bool single = true;          // the question has one sample, and no list of samples
  size_t k = 5;
  std::optional<bool> sparse;
};

// `encoding`: how the model reads text (QueryEncoder::encoding()).
PredictRequest parse_request(std::string_view body, const Encoding& encoding, const RequestLimits& limits);

}  // namespace modelet::cli
