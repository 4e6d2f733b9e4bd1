// The verb `modelet tune`: measures which retrieval fits an experiment's data and writes it down beside the
// experiment.
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_tune_verb(CLI::App& app);

}  // namespace modelet::cli
