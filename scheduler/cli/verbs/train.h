// The verb `modelet train`: trains in this process, or on a pool of processes on this machine.
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_train_verb(CLI::App& app);

}  // namespace modelet::cli
