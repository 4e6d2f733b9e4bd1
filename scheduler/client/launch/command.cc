#include "scheduler/client/launch/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <spdlog/fmt/fmt.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/descriptor.h"
#include "base/system/file.h"

namespace modelet::cli {
namespace {

constexpr size_t kMostOutputBytes = 64 << 10;
constexpr int kLookMilliseconds = 200;

// An open file with the text, which nobody else can name.
Descriptor file_with(const std::string& text) {
  const TemporaryFolder folder("command");
  const std::filesystem::path path = folder.path() / "input";
  {
    AtomicFile file(path);
    file.write(text);
    file.commit(Sync::kNo);
  }
  return Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

void read_output(int fd, std::string& output) {
  std::array<char, 4096> piece{};
  const ssize_t size = ::read(fd, piece.data(), piece.size());
  if (size <= 0) return;
  output.append(piece.data(), static_cast<size_t>(size));
  if (output.size() > 2 * kMostOutputBytes) output.erase(0, output.size() - kMostOutputBytes);
}

}  // namespace

CommandEnd run_command(const std::vector<std::string>& words, double seconds, const std::string& text,
                       const std::filesystem::path& file) {
  const Descriptor input =
      file.empty() ? file_with(text) : Descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (input.get() < 0) throw Error(errno_text(file.string()));
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw Error(errno_text("a pipe"));
  const Descriptor from(ends[0]);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  pid_t child = 0;
  const int failure = ::posix_spawnp(&child, words.front().c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (failure != 0) {
    errno = failure;
    throw Error(errno_text(words.front()) + ": is it installed?");
  }
  CommandEnd end;
  int status = 0;
  for (const Stopwatch watch;;) {
    pollfd ready{from.get(), POLLIN, 0};
    if (::poll(&ready, 1, kLookMilliseconds) > 0 && (ready.revents & POLLIN) != 0) {
      read_output(from.get(), end.output);
      continue;
    }
    if (::waitpid(child, &status, WNOHANG) == child) break;
    if (watch.seconds() <= seconds || end.timed_out) continue;
    end.timed_out = true;
    ::kill(child, SIGKILL);
  }
  end.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (end.output.size() > kMostOutputBytes) end.output.erase(0, end.output.size() - kMostOutputBytes);
  return end;
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

}  // namespace modelet::cli
