// The verbs for a pool: submit, and the verbs of runs.h and nodes.h.
#pragma once

namespace CLI {
class App;
}

namespace modelet::cli {

// Adds the verbs to `app`. A verb runs while `app` parses its arguments. Its errors leave parse() as a
// modelet::Error, whose exit_code() the program returns.
void add_pool_verbs(CLI::App& app);

}  // namespace modelet::cli
