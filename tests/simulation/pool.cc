#include "tests/simulation/pool.h"

#include <algorithm>

namespace modelet::simulation {

Holder* Pool::holder(const std::string& name) {
  if (name.empty()) return scheduler.has_store() ? &scheduler : nullptr;
  const auto found = std::ranges::find_if(nodes, [&](const auto& node) { return node->name() == name; });
  return found == nodes.end() ? nullptr : found->get();
}

RankHost* Pool::rank_host(const std::string& endpoint) {
  const auto found = std::ranges::find_if(nodes, [&](const auto& node) { return node->endpoint() == endpoint; });
  return found == nodes.end() ? nullptr : found->get();
}

Node* Pool::node_of_peer(const std::string& peer) {
  const auto found = std::ranges::find_if(
      nodes, [&](const auto& node) { return peer.starts_with(fmt::format("m{}#", node->machine())); });
  return found == nodes.end() ? nullptr : found->get();
}

Node& Pool::add_node() {
  nodes.push_back(std::make_unique<Node>(*this, ++machines_, fmt::format("node{}", nodes.size())));
  nodes.back()->start();
  return *nodes.back();
}

Client& Pool::add_client() {
  clients.push_back(std::make_unique<Client>(*this, ++machines_));
  return *clients.back();
}

}  // namespace modelet::simulation
