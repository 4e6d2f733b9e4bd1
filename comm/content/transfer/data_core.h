// DataCore: the answers of a port for data. A state machine over a store
// (comm/content/store.h), without socket, thread and clock: messages go in, answers come out, and `now` is an
// argument. DataServer is its edge.
//
// Clients put files into the store, chunk by chunk, and agents fetch them (comm/content/content.h). What is
// there of a file is checked chunk by chunk between two messages; a client that offers the file learns what
// is missing when that is done. It reads and writes only its store: no message holds a path.
//
// Only a limited number of connections is served at once, since each may have megabytes under way. Others are
// told to ask again later; they get a place when one of those has been silent for a while, or from a key that
// has more places than theirs. No key can thus keep another one out, however many connections it has. What a
// key may have in the store is limited, and so is the number of entries that it may have open.
//
// It waits for nobody, not even for another process that has an entry of the store alone: a client that asks
// for that entry is told to ask again.
//
// Who may do what is for its owner to say (`why_not`). One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/system/log.h"
#include "comm/content/store.h"
#include "comm/control/control.h"
#include "comm/transport/rate_limit.h"

namespace modelet::comm {

// What a store and its limits are called in messages, and what helps if something is not there.
struct StoreNames {
  std::string store = "the scheduler's store";
  std::string limit = "--store-mib of the scheduler";
  std::string limit_of_key = "--store-mib-per-key of the scheduler";
  std::string remedy = "submit the run again";
};

struct DataServerOptions {
  std::filesystem::path store;                // folder
  uint64_t store_bytes = uint64_t{64} << 30;  // the least recently used are removed beyond
  uint64_t key_bytes = 0;                     // of them sent with one key; 0: half of them
  size_t most_served = 64;                    // connections at once
  double place_seconds = 10;                  // of silence, after which a connection's place may go to others
  // Seconds of disuse after which an entry is closed, unless a run needs it: after a large file has been
  // sent, its run is submitted only once the next file is there too.
  double close_seconds = 600;
  size_t most_open = 256;        // entries of the store: each holds a file, and its manifest in memory
  size_t most_open_of_key = 64;  // by offers that came with one key, and for its runs
  std::shared_ptr<RateLimit> sending = {};  // of the machine's link, which others share; null: no limit
  StoreNames names = {};
  // The reason why a sender may not send this; empty if it may. None: everybody may. Called on the core's thread.
  std::function<std::string(const Identity& sender, const control::ToSchedulerMessage&)> why_not = {};
};

class DataCore {
 public:
  struct Answer {
    std::string peer;
    control::FromSchedulerMessage message;
  };
  using Answers = std::vector<Answer>;

  // Throws as ContentStore.
  explicit DataCore(const DataServerOptions& options);

  // Addresses of what runs need, and whose key it is for: it is not removed, unless that key has too many
  // entries open. Other data is, when its room is needed.
  void keep(std::map<std::string, std::string> addresses);
  // Closes entries, so that somebody else in this process may fill them, or remove them.
  void close(const std::vector<std::string>& addresses);

  // `now` in seconds, never going backwards.
  Answers handle(double now, const control::ServerSocket::Received& received);
  // Whether there is something to check, and the check of one chunk.
  bool has_work() { return next_to_verify() != entries_.end(); }
  Answers work();
  // Call about every second.
  Answers tick(double now);
  // The peer is gone: it waits for nothing, and its place is free.
  void gone(const std::string& peer);
  // The peer has not read for too long and was not sent what is missing of this data: tick() tells it.
  void not_heard(const std::string& peer, const std::string& address);

 private:
  struct Entry {
    std::unique_ptr<StoredContent> content;
    double used = 0;
    std::set<std::string> offered_by = {};  // peers that wait to hear what is missing
    std::string key = {};                   // whose offer, or run, opened it
    bool offered = false;                   // by somebody who may still put chunks
    bool of_snapshot = false;               // closed once it is whole: snapshots have many files
  };
  struct Place {
    double asked = 0;
    std::string key;
  };
  using Entries = std::map<std::string, Entry>;  // by address
  using Message = control::FromSchedulerMessage;

  // Nothing if the answer follows later.
  std::optional<Message> answer(const control::ServerSocket::Received& received);
  Message refusal(const std::exception& error);
  bool has_place(const control::ServerSocket::Received& received);
  bool take_place_of_another_key(const std::string& key);
  std::optional<Message> on(const control::ServerSocket::Received& received, const control::OfferT& message);
  Message on(const control::ServerSocket::Received& received, const control::PutChunkT& message);
  void require_quota(const std::string& key, const std::string& address, uint64_t bytes);
  Message on(const control::FetchManifestT& message);
  Message on(const control::FetchChunkT& message);
  StoredContent& entry(const std::string& address);
  Entry& opened(const std::string& address, const Manifest& manifest, const std::string& key = "");
  Entries::iterator next_to_verify();
  void tell_what_is_missing(const std::string& address, Entry& entry, Answers& answers);
  bool has_most_open(const std::string& key) const;
  void open_what_runs_need();
  void close_unused();
  void close_longest_unused();

  const DataServerOptions options_;
  ContentStore store_;
  LogLimit refusals_;
  double now_ = 0;
  std::map<std::string, std::string> kept_;  // address -> key
  Entries entries_;                          // open
  std::map<std::string, Place> served_;      // connections with a place
  // Key -> address -> bytes that it has sent of it since the scheduler was started, with the manifest. Without keys
  // there is nothing to tell peers by.
  std::map<std::string, std::map<std::string, uint64_t>> sent_;
};

}  // namespace modelet::comm
