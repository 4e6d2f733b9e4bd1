// The verb `modelet report`: what came out of a run, as a page in one file or as text.
#pragma once

#include <CLI/App.hpp>

namespace modelet::cli {

void add_report_verb(CLI::App& app);

}  // namespace modelet::cli
