// DataServer: a port where others offer and fetch files that are identified by their content. It runs
// DataCore (data_core.h) behind a socket, on a thread of its own, so that messages about runs and
// heartbeats wait neither for a disk nor behind megabytes. The scheduler has one for the data of submitted
// runs.
//
// Clients are answered in turn, one chunk at a time, and each has only a few questions under way, so all
// get their share.
//
// Any thread may call keep(), close(), has_sent(), endpoint() and port(). The destructor stops the thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/system/clock.h"
#include "base/system/log.h"
#include "base/system/wake_event.h"
#include "comm/content/transfer/data_core.h"
#include "comm/control/control.h"

namespace modelet::comm {

// The endpoint of the port for data that belongs to a port for messages ("tcp://HOST:PORT"): `port` on the
// same host, or a free port if it is 0. Throws UsageError for an endpoint without a port.
std::string data_endpoint(const std::string& listen, uint16_t port);

class DataServer {
 public:
  // Binds the socket and starts the thread. Throws like ServerSocket and DataCore.
  DataServer(const DataServerOptions& options, const std::string& endpoint,
             const std::optional<control::ServerKeys>& keys);
  DataServer(const DataServer&) = delete;
  DataServer& operator=(const DataServer&) = delete;
  ~DataServer();

  const std::string& endpoint() const { return socket_.endpoint(); }
  uint16_t port() const;  // only if the endpoint has one
  bool has_sent(const std::string& key, const std::string& address) const {
    return core_.has_sent(key, address);
  }
  // As DataCore, a little later.
  void keep(std::map<std::string, std::string> addresses, std::set<std::string> remove_last = {});
  void close(const std::vector<std::string>& addresses);

 private:
  void run();
  void send(DataCore::Replies replies);

  DataCore core_;
  control::ServerSocket socket_;
  SteadyClock clock_;
  WakeEvent stop_;
  LogLimit dropped_;
  std::mutex mutex_;
  // Guarded by mutex_: what the thread has not passed to core_ yet.
  std::optional<std::map<std::string, std::string>> to_keep_;
  std::set<std::string> to_remove_last_;  // belongs to to_keep_
  std::vector<std::string> to_close_;
  std::thread thread_;
};

}  // namespace modelet::comm
