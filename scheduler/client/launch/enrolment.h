// Enrolment: who may enter a pool. It has nothing to do with where programs run (launcher.h).
#pragma once

#include <filesystem>
#include <string>

#include "comm/security/keys.h"

namespace modelet::cli {

// Makes a key, writes it to a file, and adds it to a scheduler's allow-list, which need not exist yet. `role` is as in
// the list: "agent", "user" or "admin". `replace`: the key file may exist. Throws UsageError, and leaves the list as it
// was, if the scheduler would refuse the list or the key cannot be written.
comm::KeyPair enrol(const std::filesystem::path& key_file, bool replace,
                    const std::filesystem::path& allow_list, const std::string& role,
                    const std::string& name);

}  // namespace modelet::cli
