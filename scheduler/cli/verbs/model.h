// The verbs about a model: eval, predict, plan.
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_model_verbs(CLI::App& app);

}  // namespace modelet::cli
