#include "node_agent/train/recipe/choice_text.h"

#include <spdlog/fmt/fmt.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/experiment/fields.h"

namespace modelet::agent {
namespace {

using nlohmann::json;

std::string facts_line(const DataFacts& facts) {
  std::string text = fmt::format(
      "data: {} samples, {} features ({:.1f} a sample), {} labels ({:.2f} a sample, at most {}; the most "
      "frequent one in {:.1f} % of the samples)",
      facts.rows, facts.features, facts.features_per_row, facts.labels, facts.labels_per_row,
      facts.most_labels, 100 * facts.top_share);
  if (facts.rare_labels > 0) text += fmt::format(", {} of them in one or two samples", facts.rare_labels);
  return text + fmt::format("; values {:g} to {:g}", facts.smallest, facts.largest);
}

std::string plan_line(const Choice& choice) {
  const TrialPlan& plan = choice.plan;
  if (plan.train_rows == 0) return "no trials: " + plan.why_none;
  if (plan.repetitions > 0)
    return fmt::format("trials: {} whole training{} each, judged by {} other samples each time", plan.repetitions,
                       plan.repetitions == 1 ? "" : "s", plan.held_out_rows);
  return fmt::format(
      "trials: {} training samples, {} passes, hidden layer of {}; judged by {} other training samples",
      plan.train_rows, plan.epochs, plan.width, plan.held_out_rows);
}

std::string trial_line(const Tried& tried) {
  return fmt::format("  {:24} {:.2f}  (P@1 {:.2f}){}", tried.name, 100 * tried.result.score,
                     100 * tried.result.p_at_1, tried.taken ? "  taken" : "");
}

std::string given_line(const Choice& choice) {
  std::string keys;
  for (const std::string& key : choice.given) keys += (keys.empty() ? "" : ", ") + key;
  return "given, and left as they are: " + keys;
}

// What happened before the keys were decided.
std::vector<std::string> story(const Choice& choice) {
  std::vector<std::string> lines = {facts_line(choice.facts), plan_line(choice)};
  for (const Tried& tried : choice.trials) lines.push_back(trial_line(tried));
  lines.insert(lines.end(), choice.notes.begin(), choice.notes.end());
  return lines;
}

// The value of a key as --set takes it: words without quotes.
std::string value_text(Experiment experiment, const std::string& key) {
  const std::string text = toml_value(key, experiment);
  return text.starts_with('"') ? text.substr(1, text.size() - 2) : text;
}

// The keys that have a remark or differ from their defaults. The remark follows as a comment.
std::string short_toml(Experiment experiment, const std::map<std::string, std::string>& remarks) {
  Experiment defaults;
  std::string text;
  std::string_view section;
  for (const Field& field : fields()) {
    for (const TomlEntry& entry : toml_entries(field, experiment)) {
      const auto remark = remarks.find(entry.key);
      if (remark == remarks.end() && entry.value == toml_value(entry.key, defaults)) continue;
      if (section_of(field.key) != section) text += fmt::format("\n[{}]\n", section = section_of(field.key));
      text += fmt::format("{} = {}{}\n", entry.name, entry.value,
                          remark == remarks.end() ? "" : "  # " + remark->second);
    }
  }
  return text;
}

}  // namespace

json to_json(const Choice& choice) {
  json chosen = json::array(), trials = json::array();
  for (const auto& [key, reason] : choice.chosen)
    chosen.push_back({{"key", key}, {"value", value_text(choice.experiment, key)}, {"reason", reason}});
  for (const Tried& tried : choice.trials)
    trials.push_back({{"name", tried.name},
                      {"score", tried.result.score},
                      {"p_at_1", tried.result.p_at_1},
                      {"seconds", tried.result.seconds},
                      {"taken", tried.taken}});
  return {{"event", "recipe"},
          {"data", to_json(choice.facts)},
          {"chosen", chosen},
          {"given", choice.given},
          {"trials", trials},
          {"notes", choice.notes},
          {"trial_rows", choice.plan.train_rows},
          {"trial_held_out_rows", choice.plan.held_out_rows},
          {"trial_seconds", choice.trial_seconds},
          {"estimated_seconds", choice.estimated_seconds}};
}

std::vector<std::string> to_lines(const Choice& choice) {
  std::vector<std::string> lines = story(choice);
  lines.push_back("chosen:");
  for (const auto& [key, reason] : choice.chosen)
    lines.push_back(fmt::format("  {:32} {}", key + " = " + value_text(choice.experiment, key), reason));
  if (!choice.given.empty()) lines.push_back(given_line(choice));
  if (choice.trial_seconds > 0) lines.push_back(fmt::format("trials took {:.1f} s", choice.trial_seconds));
  if (choice.estimated_seconds > 0)
    lines.push_back(
        fmt::format("training and its evaluation will take about {:.0f} s", choice.estimated_seconds));
  return lines;
}

std::string to_commented_toml(const Choice& choice) {
  std::string text =
      "# Chosen by modelet train for its data; train this file to repeat the run. Keys that are not here\n"
      "# have their defaults.\n#\n";
  for (const std::string& line : story(choice)) text += "# " + line + "\n";
  std::map<std::string, std::string> remarks;
  for (const std::string& key : choice.given) remarks[key] = "given";
  for (const auto& [key, reason] : choice.chosen) remarks[key] = reason;
  return text + short_toml(choice.experiment, remarks);
}

}  // namespace modelet::agent
