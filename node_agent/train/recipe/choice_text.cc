#include "node_agent/train/recipe/choice_text.h"

#include <spdlog/fmt/fmt.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

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

using Lines = std::map<std::string, std::string>;  // key -> its line

// The lines of the complete experiment as TOML. `order` gets the keys in their order in the file.
Lines toml_lines(const Experiment& experiment, std::vector<std::string>* order = nullptr) {
  Lines lines;
  std::istringstream text(to_toml(experiment));
  std::string section;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with('[')) section = line.substr(1, line.find(']') - 1);
    const size_t equals = line.find(" = ");
    if (line.starts_with('[') || equals == std::string::npos) continue;
    const std::string key = section + "." + line.substr(0, equals);
    lines[key] = line;
    if (order != nullptr) order->push_back(key);
  }
  return lines;
}

// The keys that have a remark or differ from their defaults. The remark follows as a comment.
std::string short_toml(const Experiment& experiment, const Lines& remarks) {
  std::vector<std::string> order;
  const Lines values = toml_lines(experiment, &order), defaults = toml_lines(Experiment());
  std::string text, section;
  for (const std::string& key : order) {
    const auto remark = remarks.find(key);
    if (remark == remarks.end() && values.at(key) == defaults.at(key)) continue;
    if (const std::string of_key = key.substr(0, key.find('.')); of_key != section)
      text += "\n[" + (section = of_key) + "]\n";
    text += values.at(key) + (remark == remarks.end() ? "" : "  # " + remark->second) + "\n";
  }
  return text;
}

}  // namespace

json to_json(const Choice& choice) {
  json chosen = json::array(), trials = json::array();
  for (const Setting& setting : choice.settings)
    chosen.push_back({{"key", setting.key}, {"value", setting.value}, {"reason", setting.reason}});
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
  for (const Setting& setting : choice.settings)
    lines.push_back(fmt::format("  {:32} {}", setting.key + " = " + setting.value, setting.reason));
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
  Lines remarks;
  for (const std::string& key : choice.given) remarks[key] = "given";
  for (const Setting& setting : choice.settings) remarks[setting.key] = setting.reason;
  return text + short_toml(choice.experiment, remarks);
}

}  // namespace modelet::agent
