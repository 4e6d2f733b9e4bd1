// The verb `launch`: agents on other machines, over ssh or as a job of Slurm.
#pragma once

namespace CLI {
class App;
}

namespace modelet::cli {

void add_launch_verb(CLI::App& app);

}  // namespace modelet::cli
