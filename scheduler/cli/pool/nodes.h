// The verbs for the nodes of a pool: nodes, drain, approve.
#pragma once

namespace CLI {
class App;
}

namespace modelet::cli {

void add_node_verbs(CLI::App& app);

}  // namespace modelet::cli
