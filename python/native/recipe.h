// The recipe for samples in memory (node_agent/train/recipe): what `modelet train TRAIN TEST` does for files.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "python/native/samples.h"

namespace modelet::python {

// The text of an experiment file: `keys` ("section.key=value") unchanged, and the values that were chosen
// for the other keys, with the reasons as comments. `seconds`: the time for choosing and training
// together; empty: no limit.
//
// `on_event` gets the event "recipe" (docs/events.md) as a dict, in the calling thread, with the
// interpreter's lock. Ctrl-C takes effect before the next trial. Throws UsageError as choose_for_data()
// does.
std::string choose(const std::vector<std::string>& keys, const Samples& train, std::optional<double> seconds,
                   const nanobind::callable& on_event);

}  // namespace modelet::python
