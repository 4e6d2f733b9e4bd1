#include "node_agent/train/recipe/choose_for_data.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/system/clock.h"
#include "node_agent/machine/capacity.h"
#include "node_agent/train/recipe/trial.h"
#include "shard/kernels/simd/instruction_set.h"

namespace modelet::agent {
namespace {

// What was decided before the rest counts as given from now on.
GivenKeys with_more(const GivenKeys& given, const Recipe& recipe) {
  GivenKeys more = given;
  more.experiment = recipe.experiment;
  for (const Reason& chosen : recipe.chosen) more.keys.insert(chosen.key);
  return more;
}

}  // namespace

Choice choose_for_data(const GivenKeys& given, const LoadData& load, const ChooseOptions& options,
                       const OnTrial& on_trial) {
  const Stopwatch watch;
  Recipe read{given.experiment, {}};
  if (!options.in_memory) read = reading_recipe(given);
  GivenKeys now = with_more(given, read);
  LoadedData data = load(now.experiment);
  DataFacts facts = measure_facts(data.train);
  const Recipe scaling = scaling_recipe(now, facts);
  const Normalize before = now.experiment.data.normalize;
  now = with_more(now, scaling);
  read.chosen.insert(read.chosen.end(), scaling.chosen.begin(), scaling.chosen.end());
  if (now.experiment.data.normalize != before) data = load(now.experiment);

  const auto read_again = [&](const Experiment& experiment) { return load(experiment).train; };
  if (!given.keys.contains("table.bins")) now.keys.erase("table.bins");  // which trials may still change
  DataTrials trials(data.train, facts, now.experiment.train.threads, options.check, now.experiment.table.bins, read_again);
  const Machine machine{.memory_bytes = usable_memory().value_or(UsableMemory{.bytes = UINT64_MAX}).bytes,
                        .nodes = options.nodes,
                        .bf16_products = shard::kernels::pairs_pay()};
  ChooseOptions left = options;
  left.test_rows = data.test_rows;
  if (left.seconds) left.seconds = std::max(0.0, *left.seconds - watch.seconds());
  Choice choice = choose(now, read.chosen, facts, machine, left, trials, on_trial);
  choice.given.assign(given.keys.begin(), given.keys.end());
  return choice;
}

}  // namespace modelet::agent
