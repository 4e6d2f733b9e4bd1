#include "node_agent/agent/job/job.h"

#include <utility>

#include "node_agent/train/trainer.h"

namespace modelet::agent {
namespace {

class TrainingJob final : public Job {
 public:
  explicit TrainingJob(TrainJob job) : trainer_(std::move(job)) {}
  void prepare(const EventSink& events) override { trainer_.prepare(events); }
  void run(comm::Group& group, const EventSink& events, const SnapshotSink& snapshots) override {
    trainer_.run(group, events, snapshots);
  }
  void request_stop() override { trainer_.request_stop(); }
  uint64_t step() const override { return trainer_.step(); }
  uint64_t memory_bytes() const override { return trainer_.memory_bytes(); }

 private:
  Trainer trainer_;
};

}  // namespace

JobFactory training_jobs(DataRoots roots) {
  return [roots = std::move(roots)](TrainJob job) {
    roots.check(job);
    return std::make_unique<TrainingJob>(std::move(job));
  };
}

}  // namespace modelet::agent
