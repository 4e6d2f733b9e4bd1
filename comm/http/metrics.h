// Metrics as text that Prometheus reads (format 0.0.4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace modelet::comm::http {

inline constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

// How long something took. Any thread.
class Histogram {
 public:
  void observe(double seconds);

 private:
  friend class MetricsText;
  // Seconds. A bucket counts what took no longer.
  static constexpr std::array<double, 14> kBounds = {1e-4,   2.5e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2,
                                                     2.5e-2, 5e-2,   0.1,  0.25, 0.5,  1,    5};

  mutable std::mutex mutex_;
  std::array<uint64_t, kBounds.size() + 1> counts_{};  // the last counts what took longer than all bounds
  double sum_ = 0;
};

// Writes metrics one after the other. Names and help need no escaping; values of labels may be any text.
class MetricsText {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // Begins a metric, of the type "counter" or "gauge". Its samples follow.
  void begin(const char* name, const char* type, const char* help);
  void sample(Labels labels, double value);
  // A metric with one sample.
  void counter(const char* name, const char* help, double value);
  void gauge(const char* name, const char* help, double value);
  void histogram(const char* name, const char* help, const Histogram& histogram);

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  const char* name_ = "";  // of the metric begun last
};

}  // namespace modelet::comm::http
