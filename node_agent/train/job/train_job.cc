#include "node_agent/train/job/train_job.h"

#include "base/error.h"
#include "base/experiment/partition.h"
#include "node_agent/machine/capacity.h"

namespace modelet::agent {

Sharding sharding_of(const TrainJob& job) {
  if (job.size % job.replicas() != 0)
    throw UsageError("cluster.replicas is " + std::to_string(job.replicas()) + ", and " +
                     std::to_string(job.size) + " node(s) cannot form that many equal groups");
  return {partition_model(job.experiment, job.shape), job.owner, job.rank % job.ranks(), job.ranks()};
}

unsigned thread_count(const TrainJob& job) {
  if (job.threads > 0) return job.threads;
  if (job.experiment.train.threads > 0) return job.experiment.train.threads;
  return usable_cores();
}

}  // namespace modelet::agent
