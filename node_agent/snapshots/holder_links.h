// HolderLinks: connections to the nodes that hold parts of a snapshot, and to the scheduler's store, which is the
// holder without a name. Each is made when it is first asked for, and given up when it fails. One thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/content/transfer/data_link.h"
#include "comm/control/control.h"
#include "comm/security/keys.h"

namespace modelet::agent {

class HolderLinks {
 public:
  // `key`: with which this node sends and fetches; none: no keys. `link`: as DataLink, but for `who`.
  HolderLinks(std::optional<comm::KeyPair> key, comm::LinkOptions link)
      : key_(std::move(key)), options_(std::move(link)) {}

  // Who there is from now on; connections to others, and those that are elsewhere now, end.
  void name(const std::vector<comm::control::HolderT>& holders,
            const std::optional<comm::control::SchedulerAddress>& store);
  bool knows(const std::string& node) const { return known_.contains(node); }

  // Error if nobody has named the node, or its address is none.
  comm::DataLink& to(const std::string& node);
  void give_up(const std::string& node) { links_.erase(node); }

 private:
  struct Known {
    std::string endpoint;
    std::optional<comm::ClientKeys> keys;
  };
  const std::optional<comm::KeyPair> key_;
  const comm::LinkOptions options_;
  std::map<std::string, Known> known_;
  std::map<std::string, std::unique_ptr<comm::DataLink>> links_;
};

}  // namespace modelet::agent
