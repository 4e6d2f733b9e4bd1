#include "node_agent/train/progress/step_times.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace modelet::agent {
namespace {

constexpr double kNanosecond = 1e-9;

uint64_t nanoseconds(double seconds) { return static_cast<uint64_t>(seconds / kNanosecond); }

}  // namespace

void StepTimes::begin(const RankGrid::Totals& totals) { before_ = totals; }

void StepTimes::end(double seconds, const RankGrid::Totals& totals) {
  sums_.seconds += seconds;
  sums_.codec += totals.codec_seconds - before_.codec_seconds;
  const double wait = totals.wait_seconds - before_.wait_seconds;
  sums_.wait += wait;
  total_wait_ += wait;
  ++steps_;
}

nlohmann::json StepTimes::report(RankGrid& grid, comm::Tag tag) {
  const double steps = steps_ > 0 ? static_cast<double>(steps_) : 1;
  const double compute = std::max(0.0, sums_.seconds - sums_.codec - sums_.wait);
  const std::vector<uint64_t> mine = {nanoseconds(compute / steps), nanoseconds(sums_.codec / steps),
                                      nanoseconds(sums_.wait / steps)};
  sums_ = {};
  steps_ = 0;
  const std::vector<size_t> counts(static_cast<size_t>(grid.size()), mine.size());
  nlohmann::json nodes = nlohmann::json::array();
  for (const auto& numbers : grid.all_gather_numbers(tag, mine, counts)) {
    const auto seconds = [&](size_t i) { return static_cast<double>(numbers[i]) * kNanosecond; };
    nodes.push_back({{"node", grid.node_name(static_cast<int>(nodes.size()))},
                     {"compute_seconds", seconds(0)},
                     {"codec_seconds", seconds(1)},
                     {"wait_seconds", seconds(2)}});
  }
  return nodes;
}

}  // namespace modelet::agent
