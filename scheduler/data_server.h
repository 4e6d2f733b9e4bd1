// DataServer: the data of submitted runs, for agents that cannot read the experiment's paths. Clients put
// files into its store, chunk by chunk, and agents fetch them (comm/content.h).
//
// It has a socket and a thread of its own, so that neither messages about runs nor heartbeats wait for a disk
// or behind megabytes. Whoever asks is answered in turn, a chunk at a time, and asks for only a few at once:
// so all get their share, except while a file that is there already is looked at as a whole. It reads and
// writes nothing but its store: no message holds a path.
//
// In a pool with keys only users put data there and only agents fetch it.
// keep(), port() from any thread; request_stop() by the destructor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/wake_event.h"
#include "comm/content_store.h"
#include "comm/control.h"

namespace modelet::scheduler {

struct DataServerOptions {
  std::filesystem::path store;                // folder
  uint64_t store_bytes = uint64_t{64} << 30;  // the least recently used are removed beyond
  uint16_t port = 0;                          // 0: a free one
};

class DataServer {
 public:
  // Binds to the host of `listen` ("tcp://HOST:PORT") and starts the thread. Throws as ServerSocket.
  DataServer(const DataServerOptions& options, const std::string& listen,
             const std::optional<comm::control::ServerKeys>& keys);
  DataServer(const DataServer&) = delete;
  DataServer& operator=(const DataServer&) = delete;
  ~DataServer();

  uint16_t port() const;
  // Addresses of what runs need: it is not removed. Other data is, when its room is needed.
  void keep(std::set<std::string> addresses);

 private:
  struct Entry {
    std::unique_ptr<comm::StoredContent> content;
    double used = 0;
  };
  using Answer = comm::control::FromSchedulerMessage;

  void run();
  Answer answer(const comm::control::ServerSocket::Received& received);
  Answer on(const comm::control::OfferT& message);
  Answer on(const comm::control::PutChunkT& message);
  Answer on(const comm::control::FetchManifestT& message);
  Answer on(const comm::control::FetchChunkT& message);
  comm::StoredContent& entry(const std::string& address);
  void close_unused();

  comm::ContentStore store_;
  comm::control::ServerSocket socket_;
  SteadyClock clock_;
  WakeEvent stop_;
  LogLimit refusals_;
  std::mutex mutex_;
  std::set<std::string> kept_;            // guarded by mutex_
  std::map<std::string, Entry> entries_;  // open, by address
  std::thread thread_;
};

}  // namespace modelet::scheduler
