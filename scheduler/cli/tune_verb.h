// The verb `modelet tune`: measures which hash tables fit an experiment's data and writes them down beside
// it.
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_tune_verb(CLI::App& app);

}  // namespace modelet::cli
