// HolderPolicy: who may offer and fetch at this node's port for snapshots, and what it holds for others. Only the
// nodes that the scheduler named for the present run may do anything there; they offer files of snapshots of that
// run, up to a limit. Thread-safe: the port asks on its threads, the keeper on its own.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "comm/control/control.h"
#include "comm/security/keys.h"

namespace modelet::agent {

class HolderPolicy {
 public:
  // `run_bytes`: of files of one run that are held for others.
  explicit HolderPolicy(uint64_t run_bytes) : run_bytes_(run_bytes) {}

  // This node works for a run: these may talk to it, and those of before may not. What is held of another run
  // is forgotten: it lies there until its room is needed.
  void name(uint64_t pool, uint64_t run, const std::vector<comm::control::HolderT>& holders);
  // These, too.
  void admit(const std::vector<comm::control::HolderT>& holders);

  // For ServerKeys.
  comm::Identity find(const std::string& public_key) const;
  // For DataServerOptions. An offer that is allowed counts as held.
  std::string why_not(const comm::Identity& sender, const comm::control::ToSchedulerMessage& message);

  std::map<std::string, std::string> held() const;  // address -> name of the node that sent it
  // Forgets files of snapshots of the run before `step`; their addresses.
  std::vector<std::string> forget_before(uint64_t run, uint64_t step);

 private:
  struct Held {
    uint64_t step = 0, bytes = 0;  // step: of the newest snapshot that has the file
    std::string node;
  };
  std::string note(const comm::Identity& sender, const comm::control::OfferT& offer);

  const uint64_t run_bytes_;
  mutable std::mutex mutex_;
  uint64_t pool_ = 0, run_ = 0;
  std::map<std::string, std::string> nodes_;  // by public key
  std::map<std::string, Held> held_;          // by address; of run_
};

}  // namespace modelet::agent
