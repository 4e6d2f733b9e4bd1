// modelet labels and modelet learn: what changes in a trained model without a training.
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_labels_verb(CLI::App& app);
void add_learn_verb(CLI::App& app);

}  // namespace modelet::cli
