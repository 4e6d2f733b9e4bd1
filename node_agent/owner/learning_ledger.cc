#include "node_agent/owner/learning_ledger.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/experiment/experiment.h"
#include "base/system/file.h"
#include "base/system/log.h"
#include "node_agent/owner/privacy_loss.h"

namespace modelet::agent {

LearningLedger::LearningLedger(std::filesystem::path file, const std::vector<std::string>& names) : file_(std::move(file)) {
  for (const std::string& name : names) learned_[name];
  restore();
}

void LearningLedger::charge(const std::string& name, double noise) {
  {
    const std::lock_guard lock(mutex_);
    DataUse& use = learned_[name];
    ++use.rounds;
    use.loss += privacy_loss(1, noise);
    is_stored_ = false;
  }
  if (!store())
    throw Error(fmt::format("private data '{}': this node cannot write down that it is learned from, so nothing of the round "
                            "was sent; the log of its owner's agent says why",
                            name));
}

void LearningLedger::count(const Beat& beat) {
  const std::lock_guard lock(mutex_);
  const bool is_new = beat.run != 0 && beat.run != std::exchange(last_run_, beat.run);
  if (beat.learns_from.empty()) return;
  DataUse& use = learned_[beat.learns_from];
  if (is_new) ++use.runs;
  if (beat.new_group) ++use.groups;
  use.samples += beat.samples;
  is_stored_ = is_stored_ && !is_new && !beat.new_group && beat.samples == 0;
}

// A disk that is full must not end the agent. What could not be written is tried again.
bool LearningLedger::store() {
  const std::lock_guard order(writes_);
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_stored_, true)) return true;
    for (const auto& [name, use] : learned_)
      text += fmt::format("{} {} {} {} {} {}\n", name, use.runs, use.rounds, use.samples, use.groups, use.loss);
  }
  try {
    AtomicFile file(file_);
    file.write(text);
    file.commit();
    return true;
  } catch (const std::exception& error) {
    log_for_owner("what was learned from private data could not be written down: {}", error.what());
    const std::lock_guard lock(mutex_);
    is_stored_ = false;
    return false;
  }
}

// Names that the agent does not have now are kept: their data may be back later.
void LearningLedger::restore() {
  constexpr size_t kMostBytes = 1 << 20;
  if (!std::filesystem::exists(file_)) return;
  std::istringstream lines(read_text_file(file_, kMostBytes));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, loss, rest;
    DataUse use;
    bool is_good = !!(words >> name >> use.runs >> use.rounds >> use.samples) && is_private_name(name);
    if (is_good && !(words >> use.groups >> loss)) {  // of a release without noise
      is_good = use.groups == 0 && words.eof();
      use.groups = use.rounds;
      use.loss = privacy_loss(use.rounds, 0);
    } else if (is_good) {  // may be inf, which streams do not read
      const auto [end, error] = std::from_chars(loss.data(), loss.data() + loss.size(), use.loss);
      is_good = error == std::errc() && end == loss.data() + loss.size() && use.loss >= 0 && !(words >> rest);
    }
    if (!is_good)
      throw Error(file_.string() +
                  " does not say what was learned from private data; remove it if that does not matter any more");
    learned_[name] = use;
  }
}

DataUse LearningLedger::use_of(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = learned_.find(name);
  return found == learned_.end() ? DataUse{} : found->second;
}

nlohmann::json LearningLedger::status(const Learning& rules) const {
  const std::lock_guard lock(mutex_);
  nlohmann::json learned = nlohmann::json::array();
  for (const auto& [name, of_name] : learned_) {
    learned.push_back(
        {{"name", name}, {"runs", of_name.runs}, {"rounds", of_name.rounds}, {"samples", of_name.samples}});
    if (rules.most_rounds > 0)
      learned.back()["rounds_left"] = rules.most_rounds - std::min(rules.most_rounds, of_name.rounds);
    // Rounds without noise have no epsilon.
    const double epsilon = epsilon_of(of_name.loss, rules.delta);
    if (rules.budget == 0 && (of_name.loss == 0 || !std::isfinite(epsilon))) continue;
    learned.back()["delta"] = rules.delta;
    learned.back()["epsilon"] = std::isfinite(epsilon) ? nlohmann::json(epsilon) : nlohmann::json();
    if (rules.budget > 0)
      learned.back()["epsilon_left"] = std::isfinite(epsilon) ? std::max(0.0, rules.budget - epsilon) : 0.0;
  }
  return learned;
}

}  // namespace modelet::agent
