// Turns among the programs of one user on a machine, for work that other work of the same kind would
// disturb.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "base/system/file.h"

namespace modelet::agent {

// A folder of this user that lasts as long as the machine runs: $XDG_RUNTIME_DIR, or else "modelet-UID" in
// the temporary folder, which is made if needed. Returns nothing if the folder belongs to another user or
// if others may enter it: they could hold every turn.
std::optional<std::filesystem::path> runtime_folder();

// Waits until nobody else has the turn `name` of the folder. Returns nothing if that takes longer than
// `seconds`, or if the folder cannot be written to.
std::optional<FileLock> wait_for_turn(const std::filesystem::path& folder, const char* name, double seconds,
                                      const std::function<void()>& check = {});

}  // namespace modelet::agent
