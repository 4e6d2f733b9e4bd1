#include "scheduler/core/values/balance.h"

#include <algorithm>
#include <array>
#include <utility>

namespace modelet::scheduler {
namespace {

constexpr double kLongestStep = 1e6;  // seconds
constexpr size_t kFewestReports = 3;  // one slow report may be a burst of other work on the machine

}  // namespace

bool is_plausible(const StepSeconds& times) {
  return std::ranges::all_of(std::array{times.compute(), times.codec(), times.wait()},
                             [](double seconds) { return seconds >= 0 && seconds <= kLongestStep; });
}

std::optional<Straggler> find_straggler(std::span<const StepSeconds> nodes) {
  if (nodes.size() < 2) return std::nullopt;
  double sum = 0;
  size_t slowest = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    sum += nodes[i].compute();
    if (nodes[i].compute() > nodes[slowest].compute()) slowest = i;
  }
  const double others = (sum - nodes[slowest].compute()) / static_cast<double>(nodes.size() - 1);
  if (others <= 0) return std::nullopt;
  return Straggler{slowest, nodes[slowest].compute() / others - 1};
}

std::optional<size_t> Balance::notably_slow() const {
  if (latest_.size() == 1) {
    const bool late = planned_ > 0 && latest_[0].compute() > (1 + kNotableDelay) * planned_;
    return late ? std::optional<size_t>(0) : std::nullopt;
  }
  const auto straggler = find_straggler(latest_);
  if (!straggler || straggler->excess < kNotableExcess) return std::nullopt;
  return straggler->node;
}

void Balance::add(double now, std::vector<StepSeconds> nodes) {
  latest_ = std::move(nodes);
  const auto slow = notably_slow();
  if (!slow) return forget();
  if (reports_ == 0 || *slow != slow_) {
    forget();
    slow_ = *slow;
    since_ = now;
    sums_.assign(latest_.size(), 0);
  }
  for (size_t i = 0; i < latest_.size(); ++i) sums_[i] += latest_[i].compute();
  ++reports_;
}

void Balance::forget() { reports_ = 0; }

std::vector<double> Balance::lasting(double now, double seconds) const {
  if (reports_ < kFewestReports || now - since_ < seconds) return {};
  std::vector<double> means = sums_;
  for (double& mean : means) mean /= static_cast<double>(reports_);
  return means;
}

}  // namespace modelet::scheduler
