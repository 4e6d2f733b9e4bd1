// A whole training step on one node, measured on samples that are made up: what `modelet bench kernels` prints
// beside the kernels. A step is what training makes it: the next batch is gathered, then TrainingStep::run().
//
// Called by the owner of the pool, on whose threads the steps run.
#pragma once

#include <cstddef>

#include "base/experiment/experiment.h"
#include "base/parallel/thread_pool.h"
#include "shard/bench/step_kernels.h"

namespace modelet::agent {

// What no step of this shape can do without: products, and rows that come from memory and go back to it. What
// a cache holds counts nothing, such as the logits in the softmax, so a step cannot be as fast as this at the
// machine's peak rates.
struct StepWork {
  double products = 0;    // operations of the output layer's three products, in the precision of its weights
  double sums = 0;        // operations of the input layer's two sums, in fp32
  double bytes_read = 0;  // of weights: active neurons, and features of the batch
  double bytes_changed = 0;  // of these rows with their optimiser state, read and written; whole cache lines
};

struct MeasuredStep {
  double seconds = 0;  // of the fastest step
  StepWork work;       // of that step
};

// Runs steps for about `seconds`, at least one after those that touch all memory for the first time. The layers
// take as much memory as caches cannot hold.
MeasuredStep measure_step(ThreadPool& pool, const shard::bench::StepShape& shape, Precision precision,
                          double seconds);

}  // namespace modelet::agent
