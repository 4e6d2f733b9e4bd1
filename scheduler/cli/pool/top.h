// The verb `top`: nodes and runs of a pool in the terminal, kept up to date.
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_top_verb(CLI::App& app);

}  // namespace modelet::cli
