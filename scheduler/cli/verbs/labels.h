// modelet labels: labels that a trained model gets and loses.
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_labels_verb(CLI::App& app);

}  // namespace modelet::cli
