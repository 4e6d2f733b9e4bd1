#include "node_agent/agent/job/job.h"

#include <utility>

#include "node_agent/train/data/private_samples.h"
#include "node_agent/train/data/tower_samples.h"
#include "node_agent/train/trainer.h"
#include "shard/data/store/label_division.h"

namespace modelet::agent {
namespace {

std::unique_ptr<const SampleSource> samples_of(const TrainJob& job) {
  if (!job.private_file.empty()) return std::make_unique<PrivateSamples>(job, job.private_file);
  if (!job.tower) return nullptr;
  const auto division = shard::LabelDivision::read(job.tower->division_file, job.tower->towers, job.tower->divisions,
                                                   job.shape.all_labels);
  return std::make_unique<TowerSamples>(job, division.spread(job.tower->task), job.tower->task);
}

class TrainingJob final : public Job {
 public:
  explicit TrainingJob(TrainJob job)
      : job_(std::move(job)), samples_(samples_of(job_)), trainer_(with_samples()) {}
  void prepare(const EventSink& events) override { trainer_.prepare(events); }
  void run(comm::Group& group, const EventSink& events, const SnapshotSink& snapshots) override {
    trainer_.run(group, events, snapshots);
  }
  void request_stop() override { trainer_.request_stop(); }
  void request_trace(uint32_t steps) override { trainer_.request_trace(steps); }
  uint64_t step() const override { return trainer_.step(); }
  uint64_t steps_learned() const override { return trainer_.steps_learned(); }
  uint64_t memory_bytes() const override { return trainer_.memory_bytes(); }

 private:
  TrainJob with_samples() const {
    TrainJob job = job_;
    job.samples = samples_.get();
    return job;
  }

  const TrainJob job_;                                 // of whose data the samples are
  const std::unique_ptr<const SampleSource> samples_;  // of an owner or a tower; null: those of the job
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
