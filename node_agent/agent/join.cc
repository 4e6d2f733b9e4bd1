#include "node_agent/agent/join.h"

#include <pwd.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <optional>
#include <sstream>
#include <variant>

#include "base/error.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "base/text/toml.h"
#include "comm/control/control.h"
#include "comm/security/invitation.h"
#include "comm/security/keys.h"

namespace modelet::agent {
namespace {

namespace fs = std::filesystem;

constexpr double kAskForSeconds = 0.2;
constexpr size_t kMostConfigBytes = size_t{1} << 20;

void make_folder_of(const fs::path& file) {
  std::error_code failure;
  fs::create_directories(file.parent_path(), failure);
  if (failure) throw UsageError(file.parent_path().string() + ": " + failure.message() + " (making the folder)");
}

// The key that is there already, or a new one.
comm::KeyPair key_in(const fs::path& file) {
  if (fs::exists(file)) return comm::read_key_file(file);
  const comm::KeyPair pair = comm::make_key_pair();
  comm::write_key_file(file, pair, false);
  return pair;
}

// Only root may give a file to another user, and only root needs to. As with the scheduler's key, root can go on reading it.
void give_to(const std::string& user, const fs::path& file) {
  const passwd* const known = user.empty() || ::geteuid() != 0 ? nullptr : ::getpwnam(user.c_str());
  if (known != nullptr && ::chown(file.c_str(), known->pw_uid, known->pw_gid) != 0)
    throw Error(errno_text(file.string()) + " (giving the agent's user its key)");
}

std::string enrol_at(const comm::control::SchedulerAddress& scheduler, const std::string& name,
                     const std::string& secret, double seconds) {
  comm::control::ClientSocket socket(scheduler);
  uint64_t asked_over = 0;
  for (const Stopwatch watch; watch.seconds() < seconds;) {
    const auto answer = socket.receive(kAskForSeconds);
    if (answer) {
      if (const auto* enrolled = std::get_if<comm::control::EnrolledT>(&*answer)) return enrolled->name;
      if (const auto* refused = std::get_if<comm::control::RefusedT>(&*answer))
        throw Error(fmt::format("the scheduler at {} refuses this machine: {}", scheduler.endpoint, refused->reason));
    }
    // Asked again over a new connection only: the first question may have been answered there.
    if (socket.connections() != asked_over &&
        socket.send(comm::control::EnrolT{{}, name, {secret.begin(), secret.end()}}))
      asked_over = socket.connections();
  }
  throw Error(fmt::format(
      "the scheduler at {} did not answer within {:.0f} s{}: is modelet-scheduler running there, and may this machine reach "
      "it? 'modelet-agent doctor' looks. The same command goes on with it",
      scheduler.endpoint, seconds, socket.trouble().empty() ? "" : " (" + socket.trouble() + ")"));
}

std::string option_line(const std::string& key, const std::string& value) {
  std::ostringstream text;
  text << toml::table{{key, value}};
  return text.str();
}

bool is_line_of(const std::string& line, const std::string& key) {
  const size_t begin = line.find_first_not_of(" \t");
  if (begin == line.npos || line.compare(begin, key.size(), key) != 0) return false;
  const size_t after = line.find_first_not_of(" \t", begin + key.size());
  return after != line.npos && line[after] == '=';
}

}  // namespace

std::string with_options(const std::string& text,
                         const std::vector<std::pair<std::string, std::string>>& options) {
  std::string added, kept;
  for (const auto& [key, value] : options) added += option_line(key, value) + '\n';
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    bool is_replaced = false;
    for (const auto& [key, value] : options) is_replaced = is_replaced || is_line_of(line, key);
    if (!is_replaced) kept += line + '\n';
  }
  return added + kept;
}

Joined join(const JoinOptions& options) {
  const comm::Invitation invitation = comm::parse_invitation(options.invitation);
  const fs::path config = fs::absolute(options.config);
  const fs::path key_file = config.parent_path() / "agent.key";
  const std::string former = fs::exists(config) ? read_text_file(config, kMostConfigBytes) : "";
  const std::string wanted = "a file of options is TOML in UTF-8: key = value";
  parse_toml_file(former, config.string(), wanted);
  make_folder_of(config);
  const comm::KeyPair key = key_in(key_file);
  const std::string name = enrol_at({invitation.endpoint, comm::ClientKeys{key, invitation.scheduler_key}}, options.name,
                                    invitation.secret, options.seconds);
  give_to(options.user, key_file);
  const std::string text = with_options(former, {{"scheduler", invitation.endpoint},
                                                 {"scheduler_key", invitation.scheduler_key},
                                                 {"key", key_file.string()},
                                                 {"name", options.name}});
  parse_toml_file(text, config.string(), wanted);
  AtomicFile file(config);
  file.write(text);
  file.commit();
  return {.key = key_file, .public_key = key.public_key, .scheduler = invitation.endpoint, .name = name};
}

}  // namespace modelet::agent
