// Errors. There are two channels:
//   - A failure that a user, a peer or the machine can cause is an exception derived from Error. Its text
//     says what happened, where, and what to do. Programs turn it into an exit code (see ExitCode).
//   - A broken invariant is a bug: MODELET_CHECK aborts, also in release builds.
#pragma once

#include <stdexcept>
#include <string>

namespace modelet {

// Exit codes of all Modelet programs (docs/guide.md).
enum class ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2, kInterrupted = 130 };

// Something failed while running: a file, the disk, memory, a peer.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual ExitCode exit_code() const { return ExitCode::kFailed; }
};

// The user's input (argument, experiment file, configuration) is wrong.
class UsageError : public Error {
 public:
  using Error::Error;
  ExitCode exit_code() const override { return ExitCode::kUsage; }
};

// The user's input does not fit a file. The text quotes that file, from the first ' on.
class MisfitError : public UsageError {
 public:
  using UsageError::UsageError;
};

// A data file, checkpoint or message is malformed. The text names the file and, for text files, the line.
class FormatError : public Error {
 public:
  using Error::Error;
};

// A peer did not answer in time or went away. Recoverable: the operation that threw it has changed nothing.
class PeerError : public Error {
 public:
  PeerError(int rank, const std::string& what) : Error(what), rank_(rank) {}
  int rank() const { return rank_; }  // rank of the peer in its group, -1 if unknown

 private:
  int rank_;
};

// The operation was abandoned because somebody asked for it (Ctrl-C, `modelet stop`, an aborted run).
class Interrupted : public Error {
 public:
  using Error::Error;
  ExitCode exit_code() const override { return ExitCode::kInterrupted; }
};

// "path: No such file or directory" for the current errno.
std::string errno_text(const std::string& path);

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& detail);

}  // namespace modelet

#define MODELET_CHECK(condition, ...)                                                    \
  do {                                                                                   \
    if (!(condition)) [[unlikely]]                                                       \
      ::modelet::check_failed(#condition, __FILE__, __LINE__, std::string{__VA_ARGS__}); \
  } while (false)
