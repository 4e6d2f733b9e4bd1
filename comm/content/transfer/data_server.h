// DataServer: files that are known by their content, for others to offer and to fetch: a socket and a thread
// around DataCore (data_core.h), so that neither messages about runs nor heartbeats wait for a disk or behind
// megabytes. The scheduler has one for the data of submitted runs.
//
// Clients are answered in turn, one chunk at a time, and each asks for only a few at once, so all get their
// share.
//
// keep(), port() from any thread; request_stop() by the destructor.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/system/clock.h"
#include "base/system/log.h"
#include "base/system/wake_event.h"
#include "comm/content/transfer/data_core.h"
#include "comm/control/control.h"

namespace modelet::comm {

class DataServer {
 public:
  // Binds to the host of `listen` ("tcp://HOST:PORT") and starts the thread. Throws as ServerSocket.
  DataServer(const DataServerOptions& options, const std::string& listen,
             const std::optional<control::ServerKeys>& keys);
  DataServer(const DataServer&) = delete;
  DataServer& operator=(const DataServer&) = delete;
  ~DataServer();

  uint16_t port() const;
  void keep(std::map<std::string, std::string> addresses);  // as DataCore

 private:
  void run();
  void send(DataCore::Answers answers);

  DataCore core_;
  control::ServerSocket socket_;
  SteadyClock clock_;
  WakeEvent stop_;
  LogLimit dropped_;
  std::mutex mutex_;
  std::optional<std::map<std::string, std::string>>
      to_keep_;  // guarded by mutex_: what core_ does not know yet
  std::thread thread_;
};

}  // namespace modelet::comm
