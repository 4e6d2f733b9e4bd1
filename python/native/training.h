// Training on samples in memory: the engine's Trainer works as one node, on a thread of its own. The calling
// thread waits for its events and passes them to Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "python/native/samples.h"

namespace modelet::python {

// Trains the experiment that `keys` ("section.key=value") describe, and writes checkpoints into the folder
// `out`. If `test` is null, nothing is tested. `resume` is empty, or a checkpoint that has learned from other
// samples and now learns from these as well.
//
// `on_event` gets each event as a dict (docs/events.md), in the calling thread, with the interpreter's lock.
// An exception that it raises ends the training after the step, and so does Ctrl-C (KeyboardInterrupt): a
// checkpoint is written, and the exception is passed on. Throws what Trainer throws.
void train(const std::vector<std::string>& keys, const Samples& train, const Samples* test,
           const std::string& out, const std::string& resume, const nanobind::callable& on_event);

}  // namespace modelet::python
