// The verb `modelet serve`: serves a model over HTTP (docs/serving.md).
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_serve_verb(CLI::App& app);

}  // namespace modelet::cli
