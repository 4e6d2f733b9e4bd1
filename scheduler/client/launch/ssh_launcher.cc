#include "scheduler/client/launch/ssh_launcher.h"

#include <spdlog/fmt/fmt.h>

#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/system/file.h"
#include "base/text/printable.h"
#include "comm/content/content.h"
#include "scheduler/client/launch/command.h"

namespace modelet::cli {
namespace {

constexpr size_t kShownBytes = 2000;  // of what a host says
constexpr int kSshFailed = 255;       // ssh itself, not the command

// The agent's process, if it is one: a number in a file may have become another program's.
constexpr const char* kFindAgent =
    "p=$(cat agent.pid 2>/dev/null) && [ \"$(cat /proc/$p/comm 2>/dev/null)\" = modelet-agent ]";

std::string shown_lines(const std::string& text) {
  std::istringstream lines(text);
  std::string shown;
  for (std::string line; std::getline(lines, line);)
    shown += (shown.empty() ? "" : "; ") + printable(line, kShownBytes);
  return shown;
}

}  // namespace

SshLauncher::SshLauncher(SshHost host, SshOptions options)
    : host_(std::move(host)), options_(std::move(options)) {
  if (host_.address.empty() || host_.address.front() == '-')
    throw UsageError(fmt::format("'{}' is no address of a host", printable(host_.address)));
}

std::string SshLauncher::run(const std::string& script, const std::filesystem::path& input) const {
  std::vector<std::string> words = {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"};
  words.insert(words.end(), host_.options.begin(), host_.options.end());
  const std::string whole =
      fmt::format("umask 077; mkdir -p {0} && cd {0} || exit 1\n{1}", quoted(options_.folder), script);
  words.insert(words.end(), {host_.address, "sh -c " + quoted(whole)});
  const CommandEnd end = run_command(words, options_.seconds, "", input);
  if (end.timed_out)
    throw Error(fmt::format("no end within {:.0f} s: {}", options_.seconds, shown_lines(end.output)));
  if (end.code == kSshFailed) throw Error("not reached: " + shown_lines(end.output));
  if (end.code != 0) throw Error(fmt::format("failed there ({}): {}", end.code, shown_lines(end.output)));
  return end.output;
}

bool SshLauncher::is_up_to_date() const {
  if (options_.tarball.empty()) return true;
  if (checksum_.empty())
    checksum_ =
        to_text(comm::Manifest::of(ReadFile(options_.tarball), comm::kChunkBytes, [] {}).id()).substr(0, 16);
  return status().programs == checksum_;
}

void SshLauncher::install() const {
  if (is_up_to_date()) return;
  run(fmt::format(
          "set -e; rm -rf app.new; mkdir app.new; tar x{}f - -C app.new --strip-components=1\n"
          "[ -x app.new/bin/modelet-agent ] || {{ echo the tarball is not one of make-packages.sh; exit 1; }}\n"
          "printf %s {} > app.new/.tarball; rm -rf app.old; [ ! -d app ] || mv app app.old; mv app.new app",
          options_.tarball.extension() == ".xz" ? "J" : "z",  // from a pipe, tar does not find it out
          checksum_),
      options_.tarball);
}

void SshLauncher::start(const Program& program) {
  const SshStatus before = status();
  if (before.runs) return;
  install();
  std::string arguments;
  for (const std::string& argument : program.arguments) arguments += ' ' + quoted(argument);
  const std::string join =
      options_.invitation.empty()
          ? "[ -f agent.toml ] || { echo this host has not joined yet: give an invitation; exit 1; }"
          : fmt::format(
                "[ -f agent.toml ] || app/bin/modelet-agent join {} --name {} --config \"$PWD/agent.toml\" --no-start",
                quoted(options_.invitation), quoted(host_.name));
  run(fmt::format(
      "set -e\n{}\n"
      "nohup setsid app/bin/modelet-agent --config agent.toml --work-dir work{} >> agent.log 2>&1 < /dev/null &\n"
      "echo $! > agent.pid; sleep 1\n{} || {{ tail -n 5 agent.log; exit 1; }}",
      join, arguments, kFindAgent));
}

SshStatus SshLauncher::status() const {
  std::istringstream lines(run(fmt::format(
      "cat app/.tarball 2>/dev/null; echo; if {}; then echo runs; else echo stopped; fi; tail -n 1 agent.log 2>/dev/null || true",
      kFindAgent)));
  SshStatus status;
  std::string state;
  std::getline(lines, status.programs);
  std::getline(lines, state);
  std::getline(lines, status.last_line);
  status.runs = state == "runs";
  status.programs = printable(status.programs, kShownBytes);
  status.last_line = printable(status.last_line, kShownBytes);
  return status;
}

std::optional<std::string> SshLauncher::poll(const std::string&) {
  const SshStatus now = status();
  if (now.runs) return std::nullopt;
  return "does not run: " + now.last_line;
}

// The agent works on until its run can go on without it, at most 60 s unless its options say otherwise.
void SshLauncher::stop(const std::vector<std::string>&) {
  run(
      fmt::format("if {0}; then kill $p; i=0; while {0} && [ $i -lt 90 ]; do sleep 1; i=$((i+1)); done; "
                  "if {0}; then kill -9 $p; fi; fi; rm -f agent.pid",
                  kFindAgent));
}

std::string SshLauncher::log(const std::string&) const { return shown_lines(run("tail -n 20 agent.log")); }

void SshLauncher::remove() const { run("d=$PWD; cd /; rm -rf \"$d\""); }

}  // namespace modelet::cli
