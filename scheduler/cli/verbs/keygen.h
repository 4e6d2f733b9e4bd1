// The verb `modelet keygen`: makes a key file (comm/security/keys.h).
#pragma once

namespace CLI {
class App;
}

namespace modelet::cli {

// The verb runs and fails as those of add_pool_verbs().
void add_keygen_verb(CLI::App& app);

}  // namespace modelet::cli
