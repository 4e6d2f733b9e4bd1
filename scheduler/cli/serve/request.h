// The body of a question to `modelet serve`: JSON to samples as text of the model's format (docs/serving.md). It
// comes from anywhere: every limit is kept here, and what is wrong is a FormatError that says where, and what
// to write instead. Pure functions.
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
  size_t k = 100;         // labels of a sample
};

// One sample.
struct Query {
  std::string text;   // of the model's format, or XMC text; where the format has a header, with one
  bool ids = false;   // XMC text
  std::string where;  // in the question, for messages: "samples[3].text"
};

struct PredictRequest {
  std::vector<Query> queries;  // at least one
  bool single = true;          // the question is about one sample, and not a list of one
  size_t k = 5;
  std::optional<bool> sparse;
};

// `encoding`: how the model reads text (QueryEncoder::encoding()).
PredictRequest parse_request(std::string_view body, const Encoding& encoding, const RequestLimits& limits);

}  // namespace modelet::cli
