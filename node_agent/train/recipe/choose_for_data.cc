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

// Adds settings that are decided before the others, and from now on count as given.
GivenKeys with_more(const GivenKeys& given, const std::vector<Setting>& settings) {
  GivenKeys more{with_settings(given.experiment, settings), given.keys};
  for (const Setting& setting : settings) more.keys.insert(setting.key);
  return more;
}

}  // namespace

Choice choose_for_data(const GivenKeys& given, const LoadData& load, const ChooseOptions& options,
                       const TellTrial& tell) {
  const Stopwatch watch;
  std::vector<Setting> read;
  if (!options.in_memory) read = reading_settings(given);
  GivenKeys now = with_more(given, read);
  LoadedData data = load(now.experiment);
  DataFacts facts = measure_facts(data.train);
  const std::vector<Setting> scaling = scaling_settings(now, facts);
  const Normalize before = now.experiment.data.normalize;
  now = with_more(now, scaling);
  read.insert(read.end(), scaling.begin(), scaling.end());
  if (now.experiment.data.normalize != before) data = load(now.experiment);

  DataTrials trials(data.train, facts, now.experiment.train.threads, options.check);
  const Machine machine{.memory_bytes = usable_memory().value_or(UsableMemory{.bytes = UINT64_MAX}).bytes,
                        .bf16_products = shard::kernels::pairs_pay()};
  ChooseOptions left = options;
  left.test_rows = data.test_rows;
  if (left.seconds) left.seconds = std::max(0.0, *left.seconds - watch.seconds());
  Choice choice = choose(now, read, facts, machine, left, trials, tell);
  choice.given.assign(given.keys.begin(), given.keys.end());
  return choice;
}

}  // namespace modelet::agent
