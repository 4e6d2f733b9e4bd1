// The state of the optimiser as replicas exchange it: rows of the arrays of Parameters, in the form in which they travel. Functions
// without state.
#pragma once

#include <cstddef>
#include <vector>

#include "base/experiment/choices.h"
#include "comm/codec/codec.h"
#include "shard/modelet/parameters.h"

namespace modelet::agent {

// Whether a step of this optimiser grows with the gradient.
bool steps_follow_gradients(OptimizerKind kind);

// The arrays that ReplicaSync::synchronise_exactly() makes the same on all replicas, besides weights and biases.
std::vector<shard::Parameters::Array> state_arrays(shard::Parameters& parameters);
size_t width(const shard::Parameters::Array& array);  // numbers of a row

// The codec with which an array travels exactly. Null: it travels as words, as clocks do.
const comm::Codec* codec_of(const shard::Parameters::Array& array);
// Whether an array of state has squares of gradients, or sums of them.
bool holds_squares(const shard::Parameters::Array& array, OptimizerKind kind);

// Convert row `r` to the form in which it travels [width], and back.
void read_row(const shard::Parameters::Array& array, size_t r, float* out);
void write_row(const shard::Parameters::Array& array, size_t r, const float* values);
// That of a row that was never updated.
void clear_row(const shard::Parameters::Array& array, size_t r);

}  // namespace modelet::agent
