// Measures a whole training step on one node, with made-up samples. `modelet bench kernels` prints the
// result beside the kernels. A step does what it does in training: gather the next batch, then
// TrainingStep::run().
//
// Called by the owner of the thread pool that runs the steps.
#pragma once

#include <cstddef>

#include "base/experiment/experiment.h"
#include "base/parallel/thread_pool.h"
#include "shard/bench/step_kernels.h"

namespace modelet::agent {

// The work that every step of this shape must do: products, and rows that are read from memory and written
// back to it. Work on what a cache holds does not count, such as the logits in the softmax, so a real step
// is slower than this work at the machine's peak rates.
struct StepWork {
  double products = 0;    // operations of the output layer's three products, in the precision of its weights
  double sums = 0;        // operations of the input layer's two sums, in fp32
  double bytes_read = 0;  // weights of active neurons, and of features of the batch
  double bytes_changed = 0;  // these rows with their optimiser state, read and written; whole cache lines
};

struct MeasuredStep {
  double seconds = 0;  // duration of the fastest step
  StepWork work;       // of that step
};

// Runs steps for about `seconds`: at least one more than those that touch all memory for the first time.
// The layers are larger than any cache.
MeasuredStep measure_step(ThreadPool& pool, const shard::bench::StepShape& shape, Precision precision,
                          double seconds);

}  // namespace modelet::agent
