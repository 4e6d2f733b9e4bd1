// What the kernels (shard/kernels) compute, in plain C++: the scalar reference that tests compare with.
#pragma once

#include "shard/kernels/elementwise.h"
#include "shard/kernels/gemm.h"
#include "shard/kernels/optimizers.h"
#include "shard/kernels/row_sums.h"
#include "shard/kernels/windows.h"

namespace modelet::shard::kernels::reference {

void gemm(const Gemm& args);
void weighted_row_sum(const uint32_t* indices, const float* weights, size_t count, const float* rows,
                      size_t stride, const float* init, float* out, size_t n);
float dot(const float* x, const float* y, size_t n);
void window_sets(const uint32_t* ids, size_t count, size_t before, size_t after, uint32_t* sets,
                 uint32_t* sizes);
void column_max(const float* logits, size_t rows, size_t stride, float* maximum, size_t n);
void column_best(const float* values, size_t rows, size_t stride, uint32_t first_row, float* best,
                 uint32_t* where, size_t n);
void column_exp_sum(float* logits, size_t rows, size_t stride, const float* reference, float* sum, size_t n);
void column_sigmoid(float* logits, size_t rows, size_t stride, float* sum, size_t n);
void adam(const AdamArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout);
void rmsprop(const RmspropArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout);
void adagrad(const AdagradArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout);
void sgd_momentum(const MomentumArgs& args, std::span<const RowUpdate<float>> rows, RowLayout layout);

}  // namespace modelet::shard::kernels::reference
