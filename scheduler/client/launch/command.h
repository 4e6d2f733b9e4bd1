// A command of this machine that is run to its end, within a time and with a limit on what it says. Any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace modelet::cli {

struct CommandEnd {
  int code = 0;  // 128 and the signal's number if it was killed
  bool timed_out = false;
  std::string output;  // the end of its standard output and error together
};

// Runs `words`, the first of which is looked up in PATH. Its input is the file, or `text`. Beyond `seconds` it is killed.
// Throws Error if it cannot be started.
CommandEnd run_command(const std::vector<std::string>& words, double seconds, const std::string& text = {},
                       const std::filesystem::path& file = {});

// As one word of a POSIX shell.
std::string quoted(const std::string& word);

}  // namespace modelet::cli
