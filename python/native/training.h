// Training on samples in memory: the engine's Trainer on one node, on a thread of its own, while the calling
// thread waits for its events and hands them to Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "python/native/samples.h"

namespace modelet::python {

// Trains the experiment that `keys` ("section.key=value") describe, and writes checkpoints into the folder
// `out`. `test` may be null: nothing is tested then. `resume` is empty or a checkpoint, which has learned from
// other samples and now learns from these, too.
//
// `on_event` gets each event as a dict (docs/events.md), in the calling thread, with the interpreter's lock.
// What it raises, and KeyboardInterrupt at Ctrl-C, end the training after the step: a checkpoint is written,
// and the exception goes on. Throws what Trainer throws.
void train(const std::vector<std::string>& keys, const Samples& train, const Samples* test,
           const std::string& out, const std::string& resume, const nanobind::callable& on_event);

}  // namespace modelet::python
