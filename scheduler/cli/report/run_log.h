// The log of a run in its folder, read back: RunJournal (scheduler/client/run_journal.h) has written it. Functions
// without state.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace modelet::cli {

// The events in `run`/log.jsonl. UsageError if there is no such file, FormatError with the line if one is no event.
std::vector<nlohmann::json> read_run_log(const std::filesystem::path& run);

// The last event of a name, nullptr: there is none.
const nlohmann::json* last_event(const std::vector<nlohmann::json>& events, const char* name);

// The number of an event; 0 if it has none.
double figure_of(const nlohmann::json& event, const char* name);

// The text of an event; empty if it has none.
std::string text_of(const nlohmann::json& event, const char* name);

// Whether the run has finished, and has not been continued since.
bool has_finished(const std::vector<nlohmann::json>& events);

// Leaves out what a report does not show, and of the events "progress" all but about `most`, evenly chosen.
std::vector<nlohmann::json> shortened(const std::vector<nlohmann::json>& events, size_t most);

}  // namespace modelet::cli
