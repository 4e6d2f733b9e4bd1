// Launcher: starts the programs of a pool somewhere, and says what becomes of them. Who may enter the pool is a matter of
// its own (enrolment.h). One thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace modelet::cli {

struct Program {
  std::string name;  // of one pool, all different
  std::filesystem::path path;
  std::vector<std::string> arguments;
};

class Launcher {
 public:
  virtual ~Launcher() = default;

  // Starts a program. If it has run before, it is started again. Throws Error if it cannot be started.
  virtual void start(const Program& program) = 0;
  // How the program has ended since it was started, for messages: "ended with code 1". nullopt: it has not, as far as
  // is known. It may not even run yet.
  virtual std::optional<std::string> poll(const std::string& name) = 0;
  // Asks programs to end, and returns when they have ended or were killed.
  virtual void stop(const std::vector<std::string>& names) = 0;
  // The end of what the program has logged, in lines that may be shown (base/text/printable.h).
  virtual std::string log(const std::string& name) const = 0;
};

}  // namespace modelet::cli
