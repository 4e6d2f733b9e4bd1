// What the tests of the training step share: a model that is spread over ranks in one process. Each rank has
// its own threads.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/experiment/experiment.h"
#include "comm/collectives/group.h"
#include "node_agent/step/exchange/sharding.h"
#include "node_agent/step/training_step.h"
#include "shard/data/batch/batch.h"
#include "shard/data/batch/split.h"
#include "shard/data/store/dataset.h"
#include "shard/data/store/prepared.h"
#include "shard/layers/network.h"
#include "tests/comm/groups.h"
#include "tests/shard/data_testing.h"

namespace modelet::agent::testing {

using shard::testing::OwnedSample;
using shard::testing::TemporaryFolder;

// How many threads a rank has in tests that want several.
inline constexpr unsigned kSeveralThreads = 3;

// Each rank finds the pairs of the direct path, if the experiment has one, as a trainer does.
template <class Ranks>
void build_pairs(Ranks& ranks, const shard::Dataset& data) {
  for (const auto& rank : ranks) rank->network.build_pairs(data, shard::all_rows(data.rows()));
}

// Writes a prepared file into `folder` and opens it.
inline shard::Dataset write_samples(const TemporaryFolder& folder, const std::string& name,
                                    const std::vector<OwnedSample>& samples, uint64_t features,
                                    uint64_t labels) {
  shard::PreparedWriter writer(folder / name, features, labels, Normalize::kNone);
  for (const OwnedSample& sample : samples) writer.add(sample.view());
  writer.finish();
  return shard::Dataset::open(folder / name);
}

// What one rank of a group holds.
struct Rank {
  Rank(const Experiment& experiment, const DataShape& shape, const std::vector<uint32_t>& owner, int rank,
       int size, unsigned threads, const shard::FeatureRows& features)
      : pool(threads),
        sharding(partition_model(experiment, shape), owner, rank, size),
        network(experiment, shape, sharding.held(), true, pool, features) {
    network.initialise();
  }
  // All features have rows.
  Rank(const Experiment& experiment, const DataShape& shape, const std::vector<uint32_t>& owner, int rank,
       int size, unsigned threads)
      : Rank(experiment, shape, owner, rank, size, threads, shard::FeatureRows(shape.features)) {}

  ThreadPool pool;
  Sharding sharding;
  shard::Network network;
};

// Modelet i belongs to rank i modulo `size`.
inline std::vector<uint32_t> round_robin(const Experiment& experiment, const DataShape& shape, int size) {
  std::vector<uint32_t> owner(partition_model(experiment, shape).size());
  for (size_t i = 0; i < owner.size(); ++i) owner[i] = static_cast<uint32_t>(i) % static_cast<uint32_t>(size);
  return owner;
}

inline std::vector<std::unique_ptr<Rank>> make_ranks(const Experiment& experiment, const DataShape& shape,
                                                     const std::vector<uint32_t>& owner, int size,
                                                     unsigned threads, const shard::FeatureRows& features) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<Rank>(experiment, shape, owner, rank, size, threads, features));
  return ranks;
}
// All features have rows.
inline std::vector<std::unique_ptr<Rank>> make_ranks(const Experiment& experiment, const DataShape& shape,
                                                     const std::vector<uint32_t>& owner, int size,
                                                     unsigned threads = 1) {
  return make_ranks(experiment, shape, owner, size, threads, shard::FeatureRows(shape.features));
}

inline std::vector<std::unique_ptr<comm::Group>> make_groups(int size) {
  if (size > 1) return comm::make_inproc_groups(size, {.run = 1});
  std::vector<std::unique_ptr<comm::Group>> groups;
  groups.push_back(comm::make_solo_group());
  return groups;
}

// Trains `steps` steps from step `first` on, at the learning rate of the experiment. Returns the losses of
// the steps, which must be equal to the bit on all ranks. `ahead`: each step begins the next one.
inline std::vector<double> train(std::vector<std::unique_ptr<Rank>>& ranks,
                                 std::vector<std::unique_ptr<comm::Group>>& groups,
                                 const shard::Dataset& data, uint64_t first, uint64_t steps,
                                 bool ahead = true) {
  std::vector<std::vector<double>> losses(ranks.size());
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    const auto self = static_cast<size_t>(group.rank());
    Rank& rank = *ranks[self];
    const Experiment::Train& options = rank.network.experiment().train;
    TrainingStep step(rank.network, rank.sharding, group);
    shard::BatchOrder order(shard::all_rows(data.rows()), options.batch, options.seed);
    shard::Batch batches[2];
    const auto assign = [&](uint64_t s) {
      batches[s % 2].assign(data, order.rows(s), true, {options.input_dropout, options.seed, s});
    };
    assign(first);
    for (uint64_t s = first; s < first + steps; ++s) {
      assign(s + 1);
      const shard::Batch* const next = ahead && s + 1 < first + steps ? &batches[(s + 1) % 2] : nullptr;
      losses[self].push_back(step.run(batches[s % 2], s, options.learning_rate, false, next).loss);
    }
  });
  for (const std::vector<double>& other : losses) EXPECT_EQ(other, losses[0]) << "ranks disagree on the loss";
  return losses[0];
}

// The whole state of a modelet: weights, optimiser state, clocks, projections or hash codes. No re-hash may
// be under way.
inline std::vector<std::byte> state_of(shard::Modelet& modelet) {
  std::vector<std::byte> state;
  const auto append = [&](std::span<const std::byte> bytes) {
    state.insert(state.end(), bytes.begin(), bytes.end());
  };
  for (const shard::Parameters::Array& array : modelet.parameters().arrays()) append(array.packed());
  if (shard::Direct* direct = modelet.direct()) {
    for (const shard::Parameters::Array& array : direct->scales.arrays()) append(array.packed());
    append(std::as_bytes(direct->pairs.features()));
    append(std::as_bytes(direct->pairs.sums()));
  }
  if (const shard::Retrieval* retrieval = modelet.retrieval()) {
    if (const auto& low_rank = retrieval->low_rank; low_rank && low_rank->ready()) {
      append(std::as_bytes(low_rank->projections()));
      append(std::as_bytes(low_rank->centres()));
      append(std::as_bytes(std::span(low_rank->basis().directions)));
    }
    if (const auto& tables = retrieval->tables) {
      append(std::as_bytes(tables->codes()));
      append(std::as_bytes(tables->centre()));
    }
    append(std::as_bytes(std::span(retrieval->query_mean)));
    append(std::as_bytes(std::span(retrieval->changed)));
    if (retrieval->rehash_running) {
      const std::vector<uint32_t> codes = retrieval->tables->next_codes();
      append(std::as_bytes(std::span(codes)));
      append(std::as_bytes(retrieval->tables->next_centre()));
    }
  }
  return state;
}

// The states by name of the modelet, so that models on different numbers of ranks can be compared.
inline std::map<std::string, std::vector<std::byte>> state_of(
    const std::vector<std::unique_ptr<Rank>>& ranks) {
  std::map<std::string, std::vector<std::byte>> states;
  for (const auto& rank : ranks) {
    rank->network.output().wait_for_rehash();
    for (const auto& modelet : rank->network.modelets()) states[modelet->spec().name()] = state_of(*modelet);
  }
  return states;
}

}  // namespace modelet::agent::testing
