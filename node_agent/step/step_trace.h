// StepTrace: where the time of some steps went on this rank, phase by phase. The phases of a step follow each other
// without a gap, so their times add up to that of the step. While nothing is traced, a phase costs one comparison.
//
// All ranks of a group trace the same steps: rank 0 asks for them with its activations (StepRequests::trace). Memory is
// bounded: after kMostSpans the rest is left out. Used by the training thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/system/clock.h"
#include "comm/messaging/meters.h"

namespace modelet::agent {

enum class TracePhase : uint8_t {
  kBatch,         // the batch is gathered
  kInput,         // the first activations are computed and sent
  kSelect,        // the active set is chosen
  kForward,       // logits and partial gradients are computed and sent
  kPrepare,       // what is done while messages travel: the next batch
  kCollect,       // what the others sent is awaited and decoded
  kCombine,       // loss, and gradient of this rank's columns
  kBackward,      // lower hidden layers, with their exchanges; clipping
  kUpdateHidden,  // input and hidden layers are updated
  kBeginNext,     // the next step's first activations are computed and sent
  kUpdateOutput,  // the output layer is updated
  kMaintain,      // retrieval is maintained
  kSynchronise    // replicas are synchronised
};
inline constexpr size_t kTracePhases = static_cast<size_t>(TracePhase::kSynchronise) + 1;
const char* spelling(TracePhase phase);  // "batch", ...

struct TraceSpan {
  uint64_t step = 0;
  TracePhase phase = TracePhase::kBatch;
  double began = 0, seconds = 0;  // by the clock of the trace
  double wait = 0, codec = 0;     // seconds of it that it waited for messages, encoded and decoded
};

class StepTrace {
 public:
  static constexpr size_t kMostSpans = 65536;
  static constexpr uint32_t kMostSteps = 1000;

  // `clock` must outlive this object.
  explicit StepTrace(const Clock& clock) : clock_(clock) {}

  bool is_on() const { return on_; }
  void begin_step(uint64_t step, const comm::Meters& meters);
  // The phase is over that began when the last one ended.
  void end_phase(TracePhase phase, const comm::Meters& meters) {
    if (on_) add(phase, meters);
  }
  void end_step() { on_ = false; }

  const std::vector<TraceSpan>& spans() const { return spans_; }
  std::vector<TraceSpan> take();

 private:
  void add(TracePhase phase, const comm::Meters& meters);

  const Clock& clock_;
  bool on_ = false;
  uint64_t step_ = 0;
  double last_ = 0, wait_ = 0, codec_ = 0;  // when the last phase ended
  std::vector<TraceSpan> spans_;
};

}  // namespace modelet::agent
