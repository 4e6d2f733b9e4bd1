#include "node_agent/step/step_trace.h"

#include <array>
#include <utility>

namespace modelet::agent {
namespace {

double codec_seconds(const comm::Meters& meters) { return meters.encode_seconds + meters.decode_seconds; }

}  // namespace

const char* spelling(TracePhase phase) {
  static constexpr std::array<const char*, kTracePhases> kNames = {
      "batch",    "input",         "select",     "forward",       "prepare",  "collect",    "combine",
      "backward", "update hidden", "begin next", "update output", "maintain", "synchronise"};
  return kNames[static_cast<size_t>(phase)];
}

void StepTrace::begin_step(uint64_t step, const comm::Meters& meters) {
  on_ = true;
  step_ = step;
  last_ = clock_.now();
  wait_ = meters.wait_seconds;
  codec_ = codec_seconds(meters);
}

void StepTrace::add(TracePhase phase, const comm::Meters& meters) {
  const double now = clock_.now(), codec = codec_seconds(meters);
  if (spans_.size() < kMostSpans)
    spans_.push_back({step_, phase, last_, now - last_, meters.wait_seconds - wait_, codec - codec_});
  last_ = now;
  wait_ = meters.wait_seconds;
  codec_ = codec;
}

std::vector<TraceSpan> StepTrace::take() { return std::exchange(spans_, {}); }

}  // namespace modelet::agent
