// A choice of a recipe (choose.h) as text: for programs, for people, and as an experiment file. Pure
// functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "node_agent/train/recipe/choose.h"

namespace modelet::agent {

// The event "recipe" (docs/events.md).
nlohmann::json to_json(const Choice& choice);

// Lines for people: what the data is like, what was tried, what was chosen, and why.
std::vector<std::string> to_lines(const Choice& choice);

// An experiment file that repeats the run: the same lines as comments, then every key that was given or
// chosen, with the reason behind it.
std::string to_commented_toml(const Choice& choice);

}  // namespace modelet::agent
