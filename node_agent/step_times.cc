#include "node_agent/step_times.h"

#include <nlohmann/json.hpp>

#include "node_agent/gather_numbers.h"

namespace modelet::agent {
namespace {

constexpr double kNanosecond = 1e-9;

uint64_t nanoseconds(double seconds) { return static_cast<uint64_t>(seconds / kNanosecond); }

double codec_seconds(const comm::Meters& meters) { return meters.encode_seconds + meters.decode_seconds; }

}  // namespace

void StepTimes::begin(const comm::Meters& meters) {
  codec_before_ = codec_seconds(meters);
  wait_before_ = meters.wait_seconds;
}

void StepTimes::end(double seconds, const comm::Meters& meters) {
  sums_.seconds += seconds;
  sums_.codec += codec_seconds(meters) - codec_before_;
  const double wait = meters.wait_seconds - wait_before_;
  sums_.wait += wait;
  total_wait_ += wait;
  ++steps_;
}

nlohmann::json StepTimes::report(comm::Group& group, comm::Tag tag) {
  const double steps = steps_ > 0 ? static_cast<double>(steps_) : 1;
  const double compute = std::max(0.0, sums_.seconds - sums_.codec - sums_.wait);
  const std::vector<uint64_t> mine = {nanoseconds(compute / steps), nanoseconds(sums_.codec / steps),
                                      nanoseconds(sums_.wait / steps)};
  sums_ = {};
  steps_ = 0;
  const std::vector<size_t> counts(static_cast<size_t>(group.size()), mine.size());
  nlohmann::json nodes = nlohmann::json::array();
  for (const auto& numbers : all_gather_numbers(group, tag, mine, counts)) {
    const auto seconds = [&](size_t i) { return static_cast<double>(numbers[i]) * kNanosecond; };
    nodes.push_back({{"node", group.node_name(static_cast<int>(nodes.size()))},
                     {"compute_seconds", seconds(0)},
                     {"codec_seconds", seconds(1)},
                     {"wait_seconds", seconds(2)}});
  }
  return nodes;
}

}  // namespace modelet::agent
