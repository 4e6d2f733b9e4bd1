// The owner's own way to an agent, without the scheduler and its keys: a Unix domain socket in the agent's
// work-dir. A request is a line of words, the answer a line of JSON. Only the user that the agent runs as, and
// root, are heard: the socket is closed to others (0600), and the kernel says who is at the other end.
//
// One request a connection, one connection at a time, each for two seconds at most.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>

#include "base/system/wake_event.h"

namespace modelet::agent {

// Where the agent `name` with that work-dir listens.
std::filesystem::path owner_socket_path(const std::filesystem::path& work_dir, const std::string& name);

// May the user `peer` tell a program of the user `self` what to do?
bool is_owner(unsigned peer, unsigned self);

class OwnerSocket {
 public:
  // Called on a thread of its own, one request at a time; what it throws becomes {"error": "..."}.
  using Answer = std::function<nlohmann::json(const std::string& request)>;

  // Listens at `path`. Error if an agent listens there already, or if it cannot be made.
  OwnerSocket(std::filesystem::path path, Answer answer);
  OwnerSocket(const OwnerSocket&) = delete;
  OwnerSocket& operator=(const OwnerSocket&) = delete;
  ~OwnerSocket();

 private:
  void serve();
  void serve_one(int peer) const;

  const std::filesystem::path path_;
  const Answer answer_;
  WakeEvent stop_;
  int listener_ = -1;
  std::thread thread_;
};

// The agent's answer. Error if no agent listens there, it does not answer, or it refuses.
nlohmann::json ask_agent(const std::filesystem::path& path, const std::string& request);

}  // namespace modelet::agent
