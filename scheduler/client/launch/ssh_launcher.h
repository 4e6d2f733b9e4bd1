// SshLauncher: agents on other machines, which are reached by ssh. Each has a folder there with the programs (of a
// tarball), the agent's key and options, its work and its log. What is there already stays, so that each call may be made
// again. One thread for each object; several objects may work at the same time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/client/launch/launcher.h"

namespace modelet::cli {

struct SshHost {
  std::string name;                  // of the agent
  std::string address;               // as ssh takes it, with "USER@" or without
  std::vector<std::string> options;  // of ssh, such as -p 2222
};

struct SshOptions {
  std::filesystem::path tarball;   // modelet-*.tar.xz or .tar.gz; empty: the programs that are there already
  std::string invitation;          // for hosts that have not joined yet
  std::string folder = "modelet";  // on the hosts, in the user's home unless it is absolute
  double seconds = 120;            // for each command
};

// What is on a host.
struct SshStatus {
  bool runs = false;
  std::string programs;   // checksum of the tarball that it has; empty: none
  std::string last_line;  // of its log
};

class SshLauncher final : public Launcher {
 public:
  SshLauncher(SshHost host, SshOptions options);

  // Of the one program of this host. `program.arguments` are options of the agent; its path is of no importance. Installs
  // the programs and joins the pool, if that has not been done. Throws Error if the host is not reached or a step fails.
  void start(const Program& program) override;
  std::optional<std::string> poll(const std::string& name) override;
  void stop(const std::vector<std::string>& names) override;
  std::string log(const std::string& name) const override;

  SshStatus status() const;
  // Whether the host has the programs of the tarball.
  bool is_up_to_date() const;
  void install() const;
  void remove() const;  // the folder on the host, with all that the agent has

 private:
  std::string run(const std::string& script, const std::filesystem::path& input = {}) const;

  const SshHost host_;
  const SshOptions options_;
  mutable std::string checksum_;  // of the tarball, once it is known
};

}  // namespace modelet::cli
