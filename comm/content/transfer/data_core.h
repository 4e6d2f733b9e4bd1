// DataCore: decides what a port for data answers. It is a state machine over a store
// (comm/content/store.h), without socket, thread or clock: messages go in, answers come out, and `now` is
// an argument. DataServer (data_server.h) runs it behind a socket.
//
// Clients put files into the store, chunk by chunk, and agents fetch them (comm/content/content.h). When an
// entry of the store is opened, its chunks are checked one at a time, between messages. A client that
// offers a file is told which chunks are missing when all have been checked. DataCore reads and writes only
// its store, and no message holds a path.
//
// Only a limited number of connections is served at once, since each may have megabytes under way. Other
// connections are told to ask again later. They get a place when a served connection has been silent for a
// while, or when another key has more places than their own. So no key can keep another one out, however
// many connections it has. There are also limits on what a key may have in the store, and on the entries
// that it may have open. An entry that is not whole yet keeps the room for its other chunks from others, so
// these bytes count when a key offers the next file.
//
// DataCore never waits, not even for another process that is filling or checking an entry of the store: a
// client that asks for such an entry is told to ask again.
//
// With keys, a key is told only of what it has sent itself: until it has sent all of a file, it is asked for
// each chunk, whether the store has it or not, and all of the file counts against its share. So nobody learns
// from the answers what others have there.
//
// The owner of a DataCore decides who may do what (`why_not`). One thread.
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

// What messages call the store and its limits, and what they tell the user to do if something is not there.
struct StoreNames {
  std::string store = "the scheduler's store";
  std::string limit = "--store-mib of the scheduler";
  std::string limit_of_key = "--store-mib-per-key of the scheduler";
  std::string remedy = "submit the run again";
};

struct DataServerOptions {
  std::filesystem::path store;                // folder
  uint64_t store_bytes = uint64_t{64} << 30;  // beyond this, the least recently used entries are removed
  uint64_t key_bytes = 0;                     // of these, what may be sent with one key; 0: half of them
  size_t most_served = 64;                    // connections at once
  double place_seconds = 10;                  // after this silence, others may get a connection's place
  // An entry that was not used for this many seconds is closed, unless a run needs it. The time is long
  // because a run is submitted only when all of its files have been sent: its first file must wait for the
  // others.
  double close_seconds = 600;
  size_t most_open = 256;  // open entries of the store; each has a file open, and its manifest in memory
  size_t most_open_of_key = 64;  // of these, opened by one key's offers and for its runs
  // Called when a file of a snapshot is whole, before its sender is told so. If it throws, the sender is
  // refused. No function: nothing more has to be done.
  std::function<void(StoredContent&)> on_whole_snapshot = {};
  std::shared_ptr<RateLimit> sending = {};  // of the machine's link, shared with others; counts what arrives; null: neither
  StoreNames names = {};
  // Returns the reason why a sender may not send a message; empty if it may. No function: everybody may.
  // Called on the core's thread.
  std::function<std::string(const Identity& sender, const control::ToSchedulerMessage&)> why_not = {};
  // Returns whether a sender may not send a message yet, and must ask again later. Like why_not, and called
  // before.
  std::function<bool(const Identity& sender, const control::ToSchedulerMessage&)> is_early = {};
};

class DataCore {
 public:
  struct Reply {
    std::string peer;
    control::FromSchedulerMessage message;
  };
  using Replies = std::vector<Reply>;

  // Throws like ContentStore.
  explicit DataCore(const DataServerOptions& options);

  // Sets what runs need: the addresses of data, each with the key whose run needs it. That data is not removed
  // to make room. It is also kept open, so that no other process removes it, as long as enough entries may
  // still be opened. Other data is removed when its room is needed, and that of `remove_last`, which somebody
  // may want again, after the rest.
  void keep(std::map<std::string, std::string> addresses, std::set<std::string> remove_last = {});
  // Closes entries, so that other users of the store in this process may fill or remove them.
  void close(const std::vector<std::string>& addresses);

  // `now` in seconds, never going backwards.
  Replies handle(double now, const control::ServerSocket::Received& received);
  // has_work(): whether an open entry has chunks to check. work(): checks one chunk.
  bool has_work() { return next_to_verify() != entries_.end(); }
  Replies work();
  // Call about every second.
  Replies tick(double now);
  // Whether the key with this name has sent all of the file. Any thread.
  bool has_sent(const std::string& key, const std::string& address) const {
    return store_.has_sent(parse_content_id(address), key);
  }
  // The peer is gone: it gets no more answers, and its place is free.
  void gone(const std::string& peer);
  // The peer could not be told what is missing of this data, because it does not read. tick() tells it
  // again.
  void undelivered(const std::string& peer, const std::string& address);

 private:
  struct Entry {
    std::unique_ptr<StoredContent> content;
    double used = 0;
    std::set<std::string> offered_by = {};  // peers that wait to be told what is missing
    std::string key = {};                   // the key whose offer or run opened it
    bool offered = false;                   // its sender may still put chunks
    bool of_snapshot = false;               // if so, closed as soon as it is whole: snapshots have many files
  };
  struct Place {
    double asked = 0;
    std::string key;
  };
  // What a key has sent of a file.
  struct Sent {
    uint64_t bytes = 0;             // manifest included
    uint64_t to_come = 0;           // bytes of the other chunks
    std::vector<bool> chunks = {};  // [chunks of the file] sent since the scheduler was started
  };
  using Entries = std::map<std::string, Entry>;  // by address
  using Message = control::FromSchedulerMessage;

  // Returns nothing if the answer follows later.
  std::optional<Message> reply(const control::ServerSocket::Received& received);
  Message refusal(const std::exception& error);
  bool has_place(const control::ServerSocket::Received& received);
  bool take_place_of_another_key(const std::string& key);
  std::optional<Message> on(const control::ServerSocket::Received& received, const control::OfferT& message);
  Message on(const control::ServerSocket::Received& received, const control::PutChunkT& message);
  void require_quota(const std::string& key, const std::string& address, uint64_t bytes, bool with_reserved);
  Message offered_first(const control::ServerSocket::Received& received, const control::OfferT& message,
                        const Manifest& manifest);
  void require_place(const std::string& key);
  bool is_sending(const std::string& key, const std::string& address) const;
  void note_whole(const std::string& key, Entry& entry);
  uint64_t reserved_by(const std::string& key) const;
  Message on(const control::FetchManifestT& message);
  Message on(const control::FetchChunkT& message);
  StoredContent& entry(const std::string& address);
  Entry& opened(const std::string& address, const Manifest& manifest, const std::string& key = "");
  Entries::iterator next_to_verify();
  Message wanted(const std::string& address, Entry& entry);
  void request_missing(const std::string& address, Entry& entry, Replies& replies);
  void note_if_whole(Entry& entry);
  void open_what_runs_need();
  std::map<std::string, size_t> open_of_keys() const;
  bool is_crowded(const std::string& key, size_t open_of_key) const;
  void close_unused();
  void close_longest_unused();

  const DataServerOptions options_;
  ContentStore store_;
  LogLimit refusals_;
  double now_ = 0;
  std::map<std::string, std::string> kept_;  // address -> key
  std::string next_to_look_for_;             // address in kept_ where open_what_runs_need() goes on
  Entries entries_;                          // open
  std::map<std::string, Place> served_;      // connections with a place
  // Key -> address -> what it has sent since the scheduler was started. Empty if there are no keys, because
  // then peers cannot be told apart.
  std::map<std::string, std::map<std::string, Sent>> sent_;
};

}  // namespace modelet::comm
