// DataCore: what the scheduler's port for data answers. A state machine over a store (comm/content_store.h),
// without socket, thread and clock: messages go in, answers come out, `now` is an argument. DataServer is its
// edge.
//
// Clients put files into the store, chunk by chunk, and agents fetch them (comm/content.h). What is there of
// a file is looked at chunk by chunk, between two messages; who offers it hears what is missing when that is
// done. It reads and writes nothing but its store: no message holds a path.
//
// Only so many connections are served at once (each may have megabytes under way); others are told to ask
// again later, and have a place when one of those has been silent for a while.
//
// It waits for nobody, also not for another process that has an entry of the store alone: who asks for that
// is told to ask again.
//
// In a pool with keys only users put data there and only agents fetch it. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/log.h"
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

class DataCore {
 public:
  struct Answer {
    std::string peer;
    comm::control::FromSchedulerMessage message;
  };
  using Answers = std::vector<Answer>;

  // Throws as ContentStore.
  explicit DataCore(const DataServerOptions& options);

  // Addresses of what runs need: it is not removed. Other data is, when its room is needed.
  void keep(std::set<std::string> addresses);

  // `now` in seconds, never going backwards.
  Answers handle(double now, const comm::control::ServerSocket::Received& received);
  // Whether there is something to look at, and looks at one chunk of it.
  bool has_work() { return next_to_verify() != entries_.end(); }
  Answers work();
  // Call about every second.
  Answers tick(double now);
  // The peer is not there any more: it waits for nothing, and its place is free.
  void gone(const std::string& peer);
  // It has not read for too long, so that it was not sent what is missing of this data: tick() tells it.
  void not_heard(const std::string& peer, const std::string& address);

 private:
  struct Entry {
    std::unique_ptr<comm::StoredContent> content;
    double used = 0;
    std::set<std::string> offered_by = {};  // peers that wait to hear what is missing
  };
  using Entries = std::map<std::string, Entry>;  // by address
  using Message = comm::control::FromSchedulerMessage;

  // Nothing if the answer follows later.
  std::optional<Message> answer(const comm::control::ServerSocket::Received& received);
  Message refusal(const std::exception& error);
  bool has_place(const std::string& peer, const comm::control::ToSchedulerMessage& message);
  std::optional<Message> on(const std::string& peer, const comm::control::OfferT& message);
  Message on(const comm::control::PutChunkT& message);
  Message on(const comm::control::FetchManifestT& message);
  Message on(const comm::control::FetchChunkT& message);
  comm::StoredContent& entry(const std::string& address);
  Entry& opened(const std::string& address, const comm::Manifest& manifest);
  Entries::iterator next_to_verify();
  void tell_what_is_missing(const std::string& address, Entry& entry, Answers& answers);
  void open_what_runs_need();
  void close_unused();

  const DataServerOptions options_;
  comm::ContentStore store_;
  LogLimit refusals_;
  double now_ = 0;
  std::set<std::string> kept_;
  Entries entries_;                       // open
  std::map<std::string, double> served_;  // connections with a place -> when they last asked
};

}  // namespace modelet::scheduler
