// Pool: everything in a history: the world and its wires, the scheduler, nodes and clients.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/client.h"
#include "tests/simulation/mutants.h"
#include "tests/simulation/network.h"
#include "tests/simulation/node.h"
#include "tests/simulation/promises.h"
#include "tests/simulation/scheduler_process.h"
#include "tests/simulation/workload.h"
#include "tests/simulation/world.h"

namespace modelet::simulation {

class Pool {
 public:
  Pool(uint64_t seed, const WorkloadFactory& workload_for, bool has_store, Mutant the_mutant, bool tells)
      : world(seed, tells), network(world), workload(workload_for(world)),
        promises(world, *workload, has_store), mutant(the_mutant), scheduler(*this, has_store) {}

  Holder* holder(const std::string& name);          // "": the scheduler's store
  RankHost* rank_host(const std::string& endpoint);
  Node* node_of_peer(const std::string& peer);      // null: the peer is a client
  Node& add_node();                                 // adds a node and starts it
  Client& add_client();

  World world;
  Network network;
  const std::unique_ptr<Workload> workload;
  Promises promises;
  const Mutant mutant;
  SchedulerProcess scheduler;
  bool is_calm = false;  // faults have ceased
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::unique_ptr<Client>> clients;

 private:
  int machines_ = 0;
};

}  // namespace modelet::simulation
