// Connections: limits what the peers of a server socket can take from the process, whoever they are and
// whatever they send.
//
// ZeroMQ limits the size of a message part, but neither the number of parts nor the number of connections,
// and the program sees a message only when it is whole. This class therefore watches the connections
// themselves: the kernel counts the bytes that arrive on each connection, and the program reports which of
// them it has read. A connection beyond a limit is shut down. To ZeroMQ it looks as if the peer had closed
// it, so ZeroMQ frees what it held for the connection.
//
// In the other direction ZeroMQ limits how many messages wait for a peer, but not their bytes. The program
// reports what it queues for a peer, and the kernel counts what the peer has acknowledged.
//
// Thread-safe: an authenticator (comm/security/curve.h) reports connections, and the socket's thread reports
// what it reads.
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
  // Connections open at once from one address (for IPv6, from one network of 64 bits). One more is shut
  // down.
  size_t of_address = 1024;
  // Of these, connections that have not sent a whole message yet. If there are more, the oldest is shut
  // down, so silent connections cannot keep others out.
  size_t silent_of_address = 64;
  // Seconds in which a connection must have sent a whole message. 0: no limit.
  double silent_seconds = 0;
  size_t of_key = 256;  // connections whose messages came with one key, or with keys that nobody knows
  // How many connections one key may make at once, and how many more each second after that.
  double made_at_once = 1024, made_per_second = 16;
  // Bytes that have arrived but belong to no message that the program has read: for one connection, and for
  // all together. If all together have more, the connection with the most is shut down. 0: no limit.
  uint64_t unread_bytes = 0, all_unread_bytes = 0;
  // The same for one connection from which no message was read yet, and for one whose key nobody knows. 0: as others.
  uint64_t unread_bytes_of_silent = 0, unread_bytes_of_stranger = 0;
  // Bytes that wait for a peer that does not read them, in the same two ways. 0: no limit.
  uint64_t unsent_bytes = 0, all_unsent_bytes = 0;
};

class Connections {
 public:
  // `what` names the socket in the log.
  Connections(std::string what, const ConnectionLimits& limits);

  void accepted(int descriptor);
  // A connection has ended. Returns its address, as "192.168.1.7:40132"; empty if it was shut down here.
  std::string ended(int descriptor);
  // A whole message was read from the connection. `key` is the sender's key; empty without keys. `is_stranger`: nobody
  // knows it. `number` says which connection it is: a later one has a larger number. The descriptor may belong to a
  // later connection by now.
  void read(int descriptor, size_t bytes, std::string_view key, uint64_t number, bool is_stranger = false);
  // Whether the connection from which a message with this number was read is still open.
  bool is_open(uint64_t number) const;
  // Bytes are about to be queued for a connection. Negative: they were not queued after all.
  void queued(uint64_t number, int64_t bytes);
  // Shuts the connection with this number for a reason that only the program knows. Does nothing if the
  // descriptor belongs to another one by now.
  void refuse(int descriptor, uint64_t number, const std::string& why);
  // Checks all limits. Call it every kLook seconds while watches() is true. `now` in seconds.
  static constexpr double kLook = 0.1;
  bool watches() const;
  void look(double now);

 private:
  struct Connection {
    uint64_t cookie = 0;  // the kernel's id: the descriptor may belong to another connection by now
    uint64_t order = 0;   // grows with each connection
    uint64_t number = 0;  // as in read(); 0: nothing was read yet
    std::string peer, network, key;
    bool is_stranger = false;
    double since = 0;                      // when it was first looked at
    uint64_t received = 0, accounted = 0;  // bytes at the last look; `accounted` <= `received`
    uint64_t read = 0;                     // bytes read since the last look
    // Of the bytes sent. ZeroMQ's own bytes are acknowledged without having been queued, so `queued` is at
    // least `acknowledged` after a look.
    uint64_t queued = 0, acknowledged = 0;
  };
  using Open = std::map<int, Connection>;  // by descriptor

  void look_at_silent(double now);
  void look_at_unread(double now);
  void look_at_unsent();
  // Shuts each connection that has more bytes than it may, and the largest ones while all have more than `of_all`.
  template <class MostOf, class BytesOf>
  void shut_beyond(const MostOf& most_of, uint64_t of_all, const char* what, const BytesOf& bytes_of);
  void shut(Open::iterator connection, const std::string& why);
  Connection forget(Open::iterator connection);
  Open::iterator oldest_silent(const std::string* network);
  size_t count(const std::string Connection::*member, std::string_view value) const;

  const std::string what_;
  const ConnectionLimits limits_;
  const size_t most_;  // of all connections: a third of the descriptors that this process may have
  mutable std::mutex mutex_;
  Open open_;
  std::map<uint64_t, int> by_number_;  // the descriptor of each connection with a number
  uint64_t accepted_ = 0;
  double looked_ = 0;
  LogLimit shut_;
};

}  // namespace modelet::comm
