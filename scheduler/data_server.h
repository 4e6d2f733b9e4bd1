// DataServer: the data of submitted runs, for agents that cannot read the experiment's paths. Clients put
// files into its store, chunk by chunk, and agents fetch them (comm/content.h).
//
// It has a socket and a thread of its own, so that neither messages about runs nor heartbeats wait for a disk
// or behind megabytes. Whoever asks is answered in turn, a chunk at a time, and asks for only a few at once:
// so all get their share. What is there of a file is looked at chunk by chunk between two messages; who
// offers it hears what is missing when that is done. It reads and writes nothing but its store: no message
// holds a path.
//
// Only so many connections are served at once (each may have megabytes under way); others are told to ask
// again later, and have a place when one of those has been silent for a while.
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
  size_t most_served = 64;                    // connections at once
  double place_seconds = 10;                  // of silence, after which a connection's place may go to others
  // Of disuse, after which an entry is closed, unless a run needs it: when a large file has been sent its run
  // is submitted only after the next one.
  double close_seconds = 600;
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
    std::set<std::string> offered_by = {};  // peers that wait to hear what is missing
  };
  using Entries = std::map<std::string, Entry>;  // by address
  using Answer = comm::control::FromSchedulerMessage;

  void run();
  // Nothing if the answer follows later.
  std::optional<Answer> answer(const comm::control::ServerSocket::Received& received);
  Answer refusal(const std::exception& error);
  bool has_place(const std::string& peer, const comm::control::ToSchedulerMessage& message);
  std::optional<Answer> on(const std::string& peer, const comm::control::OfferT& message);
  Answer on(const comm::control::PutChunkT& message);
  Answer on(const comm::control::FetchManifestT& message);
  Answer on(const comm::control::FetchChunkT& message);
  comm::StoredContent& entry(const std::string& address);
  Entry& opened(const std::string& address, const comm::Manifest& manifest);
  Entries::iterator next_to_verify();
  void verify_next(Entries::iterator open);
  void open_what_runs_need();
  void close_unused();
  std::set<std::string> kept();

  const DataServerOptions options_;
  comm::ContentStore store_;
  comm::control::ServerSocket socket_;
  SteadyClock clock_;
  WakeEvent stop_;
  LogLimit refusals_;
  std::mutex mutex_;
  std::set<std::string> kept_;            // guarded by mutex_
  Entries entries_;                       // open
  std::map<std::string, double> served_;  // connections with a place -> when they last asked
  std::thread thread_;
};

}  // namespace modelet::scheduler
