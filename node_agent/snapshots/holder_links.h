// HolderLinks: the connections to the nodes that hold parts of a snapshot, and to the scheduler's store,
// which is the holder with the empty name. A connection is made when it is first needed, and given up when
// it fails. One thread.
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
  // `key`: the key with which this node sends and fetches; empty: no keys. `link`: as for DataLink; `who`
  // is ignored, and so is `longest_wait` for the scheduler's store.
  HolderLinks(std::optional<comm::KeyPair> key, comm::LinkOptions link)
      : key_(std::move(key)), options_(std::move(link)) {}

  // Sets the holders that there are from now on. Ends the connections to others, and to those that have
  // moved.
  void name(const std::vector<comm::control::HolderT>& holders,
            const std::optional<comm::control::SchedulerAddress>& store);
  bool knows(const std::string& node) const { return known_.contains(node); }

  // Throws Error if name() was not told of the node, or if its address or key is invalid.
  comm::DataLink& to(const std::string& node);
  void give_up(const std::string& node) { links_.erase(node); }

 private:
  struct Known {
    std::string endpoint;
    std::optional<comm::ClientKeys> keys;
  };
  static std::string key_of(const Known& known) { return known.keys ? known.keys->scheduler : ""; }

  const std::optional<comm::KeyPair> key_;
  const comm::LinkOptions options_;
  std::map<std::string, Known> known_;
  std::map<std::string, std::unique_ptr<comm::DataLink>> links_;
};

}  // namespace modelet::agent
