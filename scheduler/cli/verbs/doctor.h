// The verb `doctor`: what keeps this machine from working in a pool (node_agent/machine/doctor.h).
#pragma once

namespace CLI {
class App;
}

namespace modelet::cli {

void add_doctor_verb(CLI::App& app);

}  // namespace modelet::cli
