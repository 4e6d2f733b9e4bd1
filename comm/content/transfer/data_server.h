// DataServer: files that are known by their content, for others to offer and to fetch: a socket and a thread
// around DataCore (data_core.h), so that neither messages about runs nor heartbeats wait for a disk or behind
// megabytes. The scheduler has one for the data of submitted runs.
//
// Clients are answered in turn, one chunk at a time, and each asks for only a few at once, so all get their
// share.
//
// keep(), close(), endpoint(), port() from any thread; request_stop() by the destructor.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/system/clock.h"
#include "base/system/log.h"
#include "base/system/wake_event.h"
#include "comm/content/transfer/data_core.h"
#include "comm/control/control.h"

namespace modelet::comm {

// Where a port for data is beside one for messages ("tcp://HOST:PORT"): `port` of the same host, 0 for a free
// one. UsageError for an endpoint that has no ports.
std::string data_endpoint(const std::string& listen, uint16_t port);

class DataServer {
 public:
  // Binds and starts the thread. Throws as ServerSocket and DataCore.
  DataServer(const DataServerOptions& options, const std::string& endpoint,
             const std::optional<control::ServerKeys>& keys);
  DataServer(const DataServer&) = delete;
  DataServer& operator=(const DataServer&) = delete;
  ~DataServer();

  const std::string& endpoint() const { return socket_.endpoint(); }
  uint16_t port() const;                                    // of an endpoint that has one
  void keep(std::map<std::string, std::string> addresses);  // as DataCore
  void close(const std::vector<std::string>& addresses);    // as DataCore, soon

 private:
  void run();
  void send(DataCore::Answers answers);

  DataCore core_;
  control::ServerSocket socket_;
  SteadyClock clock_;
  WakeEvent stop_;
  LogLimit dropped_;
  std::mutex mutex_;
  // Guarded by mutex_: what core_ does not know yet.
  std::optional<std::map<std::string, std::string>> to_keep_;
  std::vector<std::string> to_close_;
  std::thread thread_;
};

}  // namespace modelet::comm
