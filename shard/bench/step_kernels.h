// Measures the kernels of the training step, each alone, at the step's shapes. `modelet bench kernels` prints
// the results beside the machine's peak rates (machine_rates.h). Pieces are as long as those of the layers
// (shard/layers/output/sample_group.cc, shard/layers/hidden_layers.cc), rows are drawn from more
// memory than caches hold, and the pool is the step's. So the figures are those of a step that loses no time
// between kernels.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "base/parallel/thread_pool.h"

namespace modelet::shard::bench {

struct StepShape {
  size_t batch = 256;
  size_t active = 4000;  // output neurons of the active set
  size_t width = 128;    // of the last hidden layer
  size_t features_per_row = 75;
};

// The limit that a kernel's rate is compared with.
enum class Bound {
  kFp32,  // operations: peak_flops of the precision
  kBf16,
  kRead,  // bytes: the streams of machine_rates.h
  kCopy,
  kUpdate,
};

struct KernelRate {
  std::string name;
  Bound bound = Bound::kFp32;
  double per_second = 0;  // operations or bytes
};

// Measure the kernels of the output layer, whose weights are stored in `precision`, and of the input layer,
// for `seconds` each.
std::vector<KernelRate> measure_output_kernels(ThreadPool& pool, const StepShape& shape, Precision precision,
                                               double seconds);
std::vector<KernelRate> measure_input_kernels(ThreadPool& pool, const StepShape& shape, double seconds);

// The figures by which agents are compared: logits of the active neurons in the precision, as operations a
// second, and lazy Adam in fp32 on rows anywhere in `bytes` of memory, as bytes read and written a second.
double logits_flops(ThreadPool& pool, const StepShape& shape, Precision precision, double seconds);
double update_bytes(ThreadPool& pool, const StepShape& shape, size_t bytes, double seconds);

}  // namespace modelet::shard::bench
