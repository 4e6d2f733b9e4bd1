// `modelet bench`: measures how fast this machine is, and how close the kernels of a training step and the
// readers of data come to that. The measuring itself is in shard/bench/.
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_bench_verbs(CLI::App& app);

}  // namespace modelet::cli
