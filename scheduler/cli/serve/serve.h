// The verb `modelet serve`: answers questions to a model over HTTP (docs/serving.md).
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_serve_verb(CLI::App& app);

}  // namespace modelet::cli
