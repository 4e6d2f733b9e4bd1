// OwnerSocket: lets the owner talk to an agent directly, without the scheduler and its keys, over a Unix
// domain socket in the agent's work-dir. A request is a line of words, and the answer is a line of JSON.
// Only root and the user that the agent runs as may use it: the socket is closed to others (0600), and the
// kernel says who is at the other end.
//
// There is one request for each connection, and one connection at a time. A peer has two seconds to send
// the request, and two to read the answer.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <thread>

#include "base/system/wake_event.h"

namespace modelet::agent {

// The path at which the agent `name` with this work-dir listens.
std::filesystem::path owner_socket_path(const std::filesystem::path& work_dir, const std::string& name);

// Whether the user `peer` may tell a program of the user `self` what to do.
bool is_owner(unsigned peer, unsigned self);

class OwnerSocket {
 public:
  // Called on the socket's own thread, one request at a time. An exception becomes {"error": "..."}.
  using Handler = std::function<nlohmann::json(const std::string& request)>;

  // Listens at `path`. Throws Error if an agent listens there already, or may do so, or if the socket cannot
  // be made.
  OwnerSocket(std::filesystem::path path, Handler handler);
  OwnerSocket(const OwnerSocket&) = delete;
  OwnerSocket& operator=(const OwnerSocket&) = delete;
  ~OwnerSocket();

 private:
  void serve();
  void serve_one(int peer) const;

  const std::filesystem::path path_;
  const Handler handler_;
  WakeEvent stop_;
  int listener_ = -1;
  std::thread thread_;
};

// Returns the agent's answer. Throws Error if no agent listens there, if this user may not ask it, if it does
// not answer, or if it refuses.
nlohmann::json ask_agent(const std::filesystem::path& path, const std::string& request);

}  // namespace modelet::agent
