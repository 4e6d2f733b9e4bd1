// The verbs `modelet data prepare|describe|synth|split|graph`. Results go to standard output, progress to standard error.
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

// Adds `data` and its verbs to the program's command line. A verb runs while the command line is parsed, and
// throws modelet::Error.
void add_data_verbs(CLI::App& app);
void add_split(CLI::App& data);  // one of them
void add_graph(CLI::App& data);  // the last

}  // namespace modelet::cli
