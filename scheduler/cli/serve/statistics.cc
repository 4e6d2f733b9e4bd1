#include "scheduler/cli/serve/statistics.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "scheduler/cli/serve/service.h"

namespace modelet::cli {
namespace {

// Escapes backslash, quote and line end in the value of a label.
std::string label_value(std::string_view text) {
  std::string value;
  for (const char c : text) {
    if (c == '\n') {
      value += "\\n";
    } else {
      if (c == '\\' || c == '"') value += '\\';
      value += c;
    }
  }
  return value;
}

}  // namespace

void Statistics::answered(const std::string& path, unsigned status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
  if (path != kPredictPath) return;
  ++latency_[static_cast<size_t>(std::ranges::lower_bound(kBuckets, seconds) - kBuckets.begin())];
  latency_sum_ += seconds;
}

std::string Statistics::text(const Model& model) const {
  std::string text;
  const auto family = [&](const char* name, const char* type, const char* help) {
    fmt::format_to(std::back_inserter(text), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  };
  const auto single = [&](const char* name, const char* type, const char* help, uint64_t value) {
    family(name, type, help);
    fmt::format_to(std::back_inserter(text), "{} {}\n", name, value);
  };
  const std::lock_guard lock(mutex_);
  family("modelet_requests_total", "counter", "Questions answered, by path and status.");
  for (const auto& [key, count] : requests_)
    fmt::format_to(std::back_inserter(text), "modelet_requests_total{{path=\"{}\",code=\"{}\"}} {}\n",
                   label_value(key.first), key.second, count);
  family("modelet_predict_seconds", "histogram", "From a whole question to its answer, without the network.");
  uint64_t sum = 0;
  for (size_t i = 0; i < latency_.size(); ++i) {
    sum += latency_[i];
    fmt::format_to(std::back_inserter(text), "modelet_predict_seconds_bucket{{le=\"{}\"}} {}\n",
                   i < kBuckets.size() ? fmt::format("{}", kBuckets[i]) : "+Inf", sum);
  }
  fmt::format_to(std::back_inserter(text),
                 "modelet_predict_seconds_sum {}\nmodelet_predict_seconds_count {}\n", latency_sum_, sum);
  single("modelet_samples_total", "counter", "Samples for which labels were found.", samples_);
  single("modelet_requests_in_flight", "gauge", "Questions that have come and are not yet answered.",
         in_flight_);
  single("modelet_connections", "gauge", "Open connections.", connections_);
  single("modelet_connections_refused_total", "counter", "Connections beyond the limit.", turned_away_);
  single("modelet_model_step", "gauge", "Training step of the model that is served.", model.step);
  family("modelet_model_info", "gauge", "The checkpoint that is served.");
  fmt::format_to(std::back_inserter(text), "modelet_model_info{{checkpoint=\"{}\"}} 1\n",
                 label_value(model.checkpoint));
  single("modelet_reloads_total", "counter", "Newer checkpoints that took over.", model.reloads);
  single("modelet_reloads_failed_total", "counter", "Newer checkpoints that could not be loaded.",
         model.failed_reloads);
  return text;
}

}  // namespace modelet::cli
