// The verbs for runs that were submitted: list, watch, stop, logs, fetch.
#pragma once

namespace CLI {
class App;
}

namespace modelet::cli {

void add_run_verbs(CLI::App& app);

}  // namespace modelet::cli
