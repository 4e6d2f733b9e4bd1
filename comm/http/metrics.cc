#include "comm/http/metrics.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>

namespace modelet::comm::http {
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

void Histogram::observe(double seconds) {
  const std::lock_guard lock(mutex_);
  ++counts_[static_cast<size_t>(std::ranges::lower_bound(kBounds, seconds) - kBounds.begin())];
  sum_ += seconds;
}

void MetricsText::begin(const char* name, const char* type, const char* help) {
  fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  name_ = name;
}

void MetricsText::sample(Labels labels, double value) {
  text_ += name_;
  char before = '{';
  for (const auto& [label, text] : labels)
    fmt::format_to(std::back_inserter(text_), "{}{}=\"{}\"", std::exchange(before, ','), label,
                   label_value(text));
  fmt::format_to(std::back_inserter(text_), "{}{}\n", labels.size() > 0 ? "} " : " ", value);
}

void MetricsText::counter(const char* name, const char* help, double value) {
  begin(name, "counter", help);
  sample({}, value);
}

void MetricsText::gauge(const char* name, const char* help, double value) {
  begin(name, "gauge", help);
  sample({}, value);
}

void MetricsText::histogram(const char* name, const char* help, const Histogram& histogram) {
  begin(name, "histogram", help);
  const std::lock_guard lock(histogram.mutex_);
  uint64_t count = 0;
  for (size_t i = 0; i < histogram.counts_.size(); ++i) {
    count += histogram.counts_[i];
    const auto& bounds = Histogram::kBounds;
    fmt::format_to(std::back_inserter(text_), "{}_bucket{{le=\"{}\"}} {}\n", name,
                   i < bounds.size() ? fmt::format("{}", bounds[i]) : "+Inf", count);
  }
  fmt::format_to(std::back_inserter(text_), "{}_sum {}\n{}_count {}\n", name, histogram.sum_, name, count);
}

}  // namespace modelet::comm::http
