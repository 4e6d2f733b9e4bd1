#include "python/native/recipe.h"

#include <nanobind/stl/string.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/experiment/experiment.h"
#include "base/experiment/reader.h"
#include "node_agent/train/recipe/choice_text.h"
#include "node_agent/train/recipe/choose_for_data.h"
#include "shard/data/store/dataset.h"

namespace modelet::python {

namespace nb = nanobind;

std::string choose(const std::vector<std::string>& keys, const Samples& train, std::optional<double> seconds,
                   const nb::callable& on_event) {
  const auto load = [&](const Experiment& experiment) {
    return agent::LoadedData{.train = shard::Dataset::of(train.samples(), experiment.data.normalize)};
  };
  const auto hear_ctrl_c = [] {
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  };
  const agent::GivenKeys given = agent::given_settings("the experiment", keys);
  if (const std::string& names = given.experiment.data.labels; !names.empty())
    shard::load_label_names(names, train.samples().labels);  // checked before the work
  agent::Choice choice;
  {
    const nb::gil_scoped_release unlocked;
    choice =
        agent::choose_for_data(given, load, {.seconds = seconds, .in_memory = true, .check = hear_ctrl_c});
  }
  on_event(nb::module_::import_("json").attr("loads")(agent::to_json(choice).dump()));
  return agent::to_commented_toml(choice);
}

}  // namespace modelet::python
