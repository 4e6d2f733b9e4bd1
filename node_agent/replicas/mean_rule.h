// What replicas make of the mean of their changes of a row (cluster.rule), for private data as for any other. The
// changes of a round are what one step of plain FedAvg adds (McMahan et al., AISTATS 2017). The other rules take the
// mean as a gradient that points the other way:
//   adam      FedAdam (Reddi et al., ICLR 2021, algorithm 2), without bias correction, as there
//   momentum  Nesterov's momentum outside (DiLoCo: Douillard et al., 2023)
// A row that nobody has changed makes no step, and its moments do not decay, as in the optimisers of local steps
// (shard/modelet/parameters.h).
//
// FedProx (Li et al., MLSys 2020) changes local steps, not the mean: keep_of_distance(). Pure functions; any thread.
#pragma once

#include <span>

#include "base/experiment/experiment.h"

namespace modelet::agent {

// Turns the mean of the changes, in place, into what is added to the weights that all agreed on. `first`, `second`
// [change.size()]: the row's moments; as many as rule_values_per_parameter() says are used.
void apply_rule(const Experiment::Cluster& cluster, std::span<float> change, float* first, float* second);

// By which factor a local step with this learning rate shortens the distance to the weights that all agreed on. The
// gradient of FedProx's term, cluster.proximal / 2 x distance^2, is taken at the end of the step (a proximal step:
// Parikh, Boyd, 2014), so no factor is too large for it.
float keep_of_distance(const Experiment::Cluster& cluster, float learning_rate);

}  // namespace modelet::agent
