// Connections: limits on what the peers of a server socket may take of the process, whoever they are and
// whatever they send.
//
// ZeroMQ limits a part of a message, but neither the number of its parts nor the number of connections, and
// gives a message to the program only when it is whole. This class therefore watches the connections
// themselves: the kernel counts the bytes that came over each, and the program tells which it has read. A
// connection beyond a limit is shut; ZeroMQ then believes that the peer did it, and frees what it held.
//
// Thread-safe: a gate keeper (comm/security/curve.h) reports connections, the socket's thread what it reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "base/system/log.h"

namespace modelet::comm {

struct ConnectionLimits {
  // Connections open at once from one address (with IPv6 from one network of 64 bits); one more is shut.
  size_t of_address = 1024;
  // Of these, connections that have not yet sent a whole message. If there are more, the oldest is shut, so
  // it keeps nobody out.
  size_t silent_of_address = 64;
  size_t of_key = 256;  // with messages that came with one key
  // Bytes that have come and belong to no message that the program has read: for one connection, and for all
  // together, of which then the one with the most is shut. 0: no limit, and the socket's thread need not
  // report what it reads.
  uint64_t unread_bytes = 0, all_unread_bytes = 0;
};

class Connections {
 public:
  // `what` names the socket in the log.
  Connections(std::string what, const ConnectionLimits& limits);

  void accepted(int descriptor);
  // The address of a connection, as "192.168.1.7:40132"; empty if it was shut here.
  std::string ended(int descriptor);
  // A whole message was read from it; `key`: that of the sender, empty without keys.
  void read(int descriptor, size_t bytes, std::string_view key);
  // Checks all limits. Call it every kLook seconds while watches() says so. `now` in seconds.
  static constexpr double kLook = 0.1;
  bool watches() const;
  void look(double now);

 private:
  struct Connection {
    uint64_t cookie = 0;  // the kernel's name for it: a descriptor may be another connection's by now
    uint64_t number = 0;  // the later the larger
    std::string peer, network, key;
    bool silent = true;
    uint64_t received = 0, accounted = 0;  // bytes, both as of the last look, `accounted` never more
    uint64_t read = 0;                     // bytes since then
  };
  using Open = std::map<int, Connection>;  // by descriptor

  void shut(Open::iterator connection, const std::string& why);
  Open::iterator oldest_silent(const std::string* network);
  size_t count(const std::string Connection::*member, std::string_view value) const;

  const std::string what_;
  const ConnectionLimits limits_;
  const size_t most_;  // connections at all: a third of the descriptors that this process may have
  mutable std::mutex mutex_;
  Open open_;
  uint64_t accepted_ = 0;
  double looked_ = 0;
  LogLimit shut_;
};

}  // namespace modelet::comm
