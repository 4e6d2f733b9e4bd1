// A turn among the programs of one user on a machine, for work that would be disturbed by other work of
// the same kind.
#pragma once

#include <filesystem>
#include <optional>

#include "base/system/file.h"

namespace modelet::agent {

// A folder of this user for as long as the machine runs: $XDG_RUNTIME_DIR, else "modelet-UID" in the temporary
// folder, which is made. Nothing if it belongs to another user, or if others may write there: they could hold
// every turn.
std::optional<std::filesystem::path> runtime_folder();

// Waits until nobody else has the turn `name` of the folder; nothing if that takes longer than `seconds`.
std::optional<FileLock> wait_for_turn(const std::filesystem::path& folder, const char* name, double seconds);

}  // namespace modelet::agent
