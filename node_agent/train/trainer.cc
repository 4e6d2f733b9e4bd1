#include "node_agent/train/trainer.h"

#include <new>
#include <utility>

#include "base/error.h"
#include "base/experiment/memory.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/train/data/training_data.h"
#include "node_agent/train/training.h"

namespace modelet::agent {

Trainer::Trainer(TrainJob job, std::unique_ptr<const Clock> clock)
    : job_(std::move(job)), clock_(std::move(clock)) {}

Trainer::~Trainer() = default;

void Trainer::prepare(const EventSink& events) {
  if (job_.other_samples) {  // the shape is that of the samples alone
    const auto rows = feature_rows(job_, shard::Dataset::of(job_.in_memory->train, Normalize::kNone));
    job_.shape.occurring_features = rows.all() ? 0 : rows.count();
  }
  const std::string cure =
      "train on more nodes, or choose model.precision = \"bf16\", a smaller model.hidden or an optimizer.kind that "
      "keeps less ('modelet plan' tells what a run needs)";
  uint64_t bytes = 0;
  for (const ModeletSpec& modelet : sharding_of(job_).held())
    bytes += modelet_bytes(modelet, job_.experiment);
  require_memory(bytes, "this node's part of the model", cure);
  // Later there may be nothing left to find out.
  const std::string limit = usable_memory().value_or(UsableMemory{.limit = "this machine"}).limit;
  try {
    training_ = std::make_unique<Training>(job_, *clock_, outside_, events);
  } catch (const std::bad_alloc&) {
    throw Error("this node's memory is too small: its part of the model takes " +
                std::to_string(bytes >> 20) + " MiB, the data comes on top, and " + limit +
                " gives no more; " + cure);
  }
}

void Trainer::run(comm::Group& group, const EventSink& events, const SnapshotSink& snapshots) {
  MODELET_CHECK(training_ != nullptr, "prepare() first");
  const std::unique_ptr<Training> training = std::move(training_);  // whose memory nobody needs afterwards
  training->run(group, events, snapshots);
}

}  // namespace modelet::agent
