// HolderPolicy: decides who may offer and fetch at this node's port for snapshots, and records what this
// node holds for others. Only the nodes that the scheduler named for the present run may use the port. They
// may offer files of snapshots of that run, up to a limit. Thread-safe: the port calls it on its threads,
// and the keeper on its own.
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
  // `run_bytes`: limit of the files of one run that are held for others.
  explicit HolderPolicy(uint64_t run_bytes) : run_bytes_(run_bytes) {}

  // This node now works for a run: these holders may talk to it, and earlier ones may not any more. What is
  // held of another run is forgotten here. The files stay in the store until their room is needed.
  void name(uint64_t pool, uint64_t run, const std::vector<comm::control::HolderT>& holders);
  // These may talk to it as well.
  void admit(const std::vector<comm::control::HolderT>& holders);

  // For ServerKeys.
  comm::Identity find(const std::string& public_key) const;
  // For DataServerOptions. An offer that is allowed counts as held from then on.
  std::string why_not(const comm::Identity& sender, const comm::control::ToSchedulerMessage& message);

  std::map<std::string, std::string> held() const;  // address -> name of the node that sent it
  // Forgets the files of the run's snapshots before `step`, and returns their addresses.
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
