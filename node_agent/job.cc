#include "node_agent/job.h"

#include <utility>

namespace modelet::agent {
namespace {

class TrainingJob final : public Job {
 public:
  explicit TrainingJob(TrainJob job) : trainer_(std::move(job)) {}
  void prepare() override { trainer_.prepare(); }
  void run(comm::Group& group, const EventSink& events) override { trainer_.run(group, events); }
  void request_stop() override { trainer_.request_stop(); }
  uint64_t step() const override { return trainer_.step(); }
  uint64_t memory_bytes() const override { return trainer_.memory_bytes(); }

 private:
  Trainer trainer_;
};

}  // namespace

std::unique_ptr<Job> make_training_job(TrainJob job) { return std::make_unique<TrainingJob>(std::move(job)); }

}  // namespace modelet::agent
