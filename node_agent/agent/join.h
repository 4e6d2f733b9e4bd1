// Join: makes an agent of this machine in one call. The agent gets a key, the scheduler adds it to its allow-list because
// an invitation says so (comm/security/invitation.h), and a file of options is written with which the agent starts. Each
// part that is there already stays, so that a call which was interrupted can be made again. One thread.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace modelet::agent {

struct JoinOptions {
  std::string invitation;
  std::string name;                         // of the agent
  std::filesystem::path config;             // file of options; its folder gets the key, too
  std::string user;                         // of the system, to whom root gives the key; empty or unknown: nobody
  double seconds = 20;                      // for the scheduler to answer
};

struct Joined {
  std::filesystem::path key;
  std::string public_key, scheduler, name;
};

// Throws UsageError for a word that is no invitation, or a file that cannot be used; Error, which says what to do, if the
// scheduler does not answer or refuses.
Joined join(const JoinOptions& options);

// The text of a file of options (TOML) with these values. Lines of other options, and comments, stay. Values are texts.
std::string with_options(const std::string& text,
                         const std::vector<std::pair<std::string, std::string>>& options);

}  // namespace modelet::agent
