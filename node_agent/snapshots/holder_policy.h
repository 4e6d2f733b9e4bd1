// HolderPolicy: decides who may offer and fetch at this node's port for snapshots, and records what this
// node holds for others. Only the nodes that the scheduler named for the present run may use the port. They
// may offer files of snapshots of that run, up to a limit. Thread-safe: the port calls it on its threads,
// and the snapshot service on its own.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "comm/control/control.h"
#include "comm/security/keys.h"
#include "node_agent/snapshots/kept_files.h"

namespace modelet::agent {

class HolderPolicy {
 public:
  // `run_bytes`: limit of the files of one run that are held for others.
  explicit HolderPolicy(uint64_t run_bytes) : held_(run_bytes) {}

  // This node now works for a run: these holders may talk to it, and earlier ones may not any more. What is
  // held of another run is forgotten here. The files stay in the store until their room is needed.
  void name(uint64_t pool, uint64_t run, const std::vector<comm::control::HolderT>& holders);
  // These may talk to it as well.
  void admit(const std::vector<comm::control::HolderT>& holders);

  // For ServerKeys.
  comm::Identity find(const std::string& public_key) const;
  // For DataServerOptions. An offer that is allowed counts as held from then on.
  std::string why_not(const comm::Identity& sender, const comm::control::ToSchedulerMessage& message);

  std::map<comm::ContentId, std::string> held() const;  // the node that sent each file
  // As in HeldFiles.
  std::vector<comm::ContentId> forget_before(uint64_t run, uint64_t step);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string> nodes_;  // by public key
  HeldFiles held_;
};

}  // namespace modelet::agent
