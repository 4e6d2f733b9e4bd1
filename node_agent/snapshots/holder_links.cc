#include "node_agent/snapshots/holder_links.h"

#include <utility>

#include "base/error.h"
#include "comm/security/keys.h"

namespace modelet::agent {

namespace msg = comm::control;

void HolderLinks::name(const std::vector<msg::HolderT>& holders,
                       const std::optional<msg::SchedulerAddress>& store) {
  const std::map<std::string, Known> before = std::exchange(known_, {});
  for (const msg::HolderT& holder : holders) {
    if (holder.node.empty() || holder.endpoint.empty()) continue;
    Known& known = known_[holder.node];
    known.endpoint = holder.endpoint;
    // With an own key, a holder without one is refused below: no message may turn encryption off.
    if (key_) known.keys = comm::ClientKeys{*key_, holder.public_key};
  }
  if (store) known_[""] = {store->endpoint, store->keys};
  std::erase_if(links_, [&](const auto& link) {
    const auto was = before.find(link.first);
    const auto is = known_.find(link.first);
    return was == before.end() || is == known_.end() || was->second.endpoint != is->second.endpoint ||
           key_of(was->second) != key_of(is->second);
  });
}

comm::DataLink& HolderLinks::to(const std::string& node) {
  auto& link = links_[node];
  if (link) return *link;
  const auto known = known_.find(node);
  if (known == known_.end()) throw Error("nobody said where the node '" + node + "' is");
  comm::LinkOptions options = options_;
  options.who = node.empty() ? "the scheduler" : "the node '" + node + "'";
  // Of many nodes that fetch from the scheduler's store at once, some wait long, but it never waits for them.
  if (node.empty()) options.longest_wait = comm::LinkOptions().longest_wait;
  // A wrong key is an error of this holder, and must not end the agent.
  if (known->second.keys) comm::parse_key(known->second.keys->scheduler, "the key of " + options.who);
  link = std::make_unique<comm::DataLink>(msg::SchedulerAddress(known->second.endpoint, known->second.keys),
                                          std::move(options));
  return *link;
}

}  // namespace modelet::agent
