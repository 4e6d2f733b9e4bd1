// `modelet neighbours`: the words that a model of running text considers most alike.
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_neighbours_verb(CLI::App& app);

}  // namespace modelet::cli
