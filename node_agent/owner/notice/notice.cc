#include "node_agent/owner/notice/notice.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/text/printable.h"
#include "node_agent/owner/notice/cloud_notices.h"

namespace modelet::agent {
namespace {

constexpr double kUsualSeconds = 30;  // if a notice has no number
constexpr double kMostNoticeSeconds = 3600;
constexpr size_t kMostText = 256;  // bytes that are read from a file or a command

double seconds_in(const std::string& text) {
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  const bool is_number = end != text.c_str() && std::isfinite(seconds) && seconds >= 0;
  return is_number ? std::min(seconds, kMostNoticeSeconds) : kUsualSeconds;
}

class FileNotices final : public NoticeSource {
 public:
  explicit FileNotices(std::filesystem::path path) : path_(std::move(path)) {}

  std::optional<Notice> ask() override {
    std::error_code failure;
    const bool exists = std::filesystem::exists(path_, failure);
    if (failure) throw Error(path_.string() + ": " + failure.message());
    if (!exists) return std::nullopt;
    std::string text(kMostText, '\0');
    if (std::filesystem::is_regular_file(path_, failure)) std::ifstream(path_).read(text.data(), kMostText);
    return Notice{seconds_in(text), "the file " + path_.string() + " says so"};
  }

 private:
  const std::filesystem::path path_;
};

// A child process in a process group of its own. It does not outlive this object.
class Command {
 public:
  explicit Command(const std::string& text) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw Error(errno_text("a pipe for a command"));
    output_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    std::string shell = "sh", option = "-c", copy = text;
    std::array<char*, 4> arguments = {shell.data(), option.data(), copy.data(), nullptr};
    const int failure = ::posix_spawn(&process_, "/bin/sh", &actions, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (failure != 0) {
      ::close(output_);
      errno = failure;
      throw Error(errno_text("/bin/sh"));
    }
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  ~Command() {
    ::close(output_);
    ::kill(-process_, SIGKILL);
    if (!ended_) ::waitpid(process_, nullptr, 0);
  }

  // Reads the command's output until it is closed or the time is over; keeps only the beginning.
  std::string read(double until, const Clock& clock, const std::function<void()>& check) const {
    constexpr double kLook = 0.1;
    std::string text;
    for (double left = 0; (left = until - clock.now()) > 0;) {
      if (check) check();
      pollfd one{output_, POLLIN, 0};
      if (::poll(&one, 1, static_cast<int>(std::ceil(std::min(left, kLook) * 1000))) <= 0) continue;
      std::array<char, kMostText> piece{};
      const ssize_t count = ::read(output_, piece.data(), piece.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      if (text.size() < kMostText) text.append(piece.data(), static_cast<size_t>(count));
    }
    return text;
  }

  // The exit status, as from waitpid(). Returns nothing if the command is still running.
  std::optional<int> wait(double until, const Clock& clock, const std::function<void()>& check) {
    int status = 0;
    while (!(ended_ = ::waitpid(process_, &status, WNOHANG) == process_)) {
      if (clock.now() > until) return std::nullopt;
      if (check) check();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return status;
  }

 private:
  pid_t process_ = 0;
  int output_ = -1;
  bool ended_ = false;
};

class CommandNotices final : public NoticeSource {
 public:
  CommandNotices(std::string command, NoticeOptions options)
      : command_(std::move(command)), options_(std::move(options)) {}

  std::optional<Notice> ask() override {
    const SteadyClock clock;
    const double until = clock.now() + options_.timeout_seconds;
    Command command(command_);
    const std::string text = command.read(until, clock, options_.check);
    const std::optional<int> status = command.wait(until, clock, options_.check);
    const std::string place = "command '" + printable(command_, 64) + "'";
    if (!status) throw Error(place + ": has not ended in time");
    if (WIFEXITED(*status) && WEXITSTATUS(*status) == 1) return std::nullopt;
    if (!WIFEXITED(*status) || WEXITSTATUS(*status) != 0)
      throw Error(place + ": must end with 0 (the machine goes) or 1 (it stays)");
    return Notice{seconds_in(text), "the " + place + " says so"};
  }

 private:
  const std::string command_;
  const NoticeOptions options_;
};

}  // namespace

std::unique_ptr<NoticeSource> make_notice_source(const std::string& from, const NoticeOptions& given) {
  NoticeOptions options = given;
  if (!options.utc)
    options.utc = [] { return Seconds(std::chrono::system_clock::now().time_since_epoch()).count(); };
  if (from == "aws") return make_aws_notices(options);
  if (from == "gcp") return make_gcp_notices(options);
  if (from == "azure") return make_azure_notices(options);
  const auto after = [&](std::string_view kind) {
    return from.starts_with(kind) ? from.substr(kind.size()) : std::string();
  };
  if (const std::string path = after("file:"); !path.empty()) return std::make_unique<FileNotices>(path);
  if (const std::string command = after("command:"); !command.empty())
    return std::make_unique<CommandNotices>(command, options);
  throw UsageError("--notice '" + printable(from, 64) +
                   "': must be aws, gcp, azure, file:PATH or command:COMMAND");
}

}  // namespace modelet::agent
