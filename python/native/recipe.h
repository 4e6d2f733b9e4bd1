// The recipe for samples in memory (node_agent/train/recipe): what `modelet train TRAIN TEST` does for files.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "python/native/samples.h"

namespace modelet::python {

// An experiment file with `keys` ("section.key=value"), which stay as they are, and with what was chosen for the
// other keys, why. `seconds`: for choosing and training; without: whatever they take.
//
// `on_event` gets the event "recipe" (docs/events.md) as a dict, in the calling thread, with the interpreter's
// lock. Ctrl-C is heard before each trial. UsageError as choose_for_data().
std::string choose(const std::vector<std::string>& keys, const Samples& train, std::optional<double> seconds,
                   const nanobind::callable& on_event);

}  // namespace modelet::python
