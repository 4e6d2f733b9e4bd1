#include "scheduler/core/values/exclusions.h"

#include <spdlog/fmt/fmt.h>

#include "base/text/printable.h"

namespace modelet::scheduler {
namespace {

constexpr size_t kLongestReasons = 1024;  // bytes of text

}  // namespace

bool Exclusions::add(const std::string& node, double until, const std::string& why) {
  return exclusions_.insert_or_assign(node, Exclusion{until, why}).second;
}

bool Exclusions::has(const std::string& node, double now) const {
  const auto found = exclusions_.find(node);
  return found != exclusions_.end() && now < found->second.until;
}

std::string Exclusions::text(double now) const {
  std::string text;
  for (const auto& [node, exclusion] : exclusions_)
    if (has(node, now)) text += fmt::format("; it does without node '{}': {}", node, exclusion.why);
  return printable(text, kLongestReasons);
}

uint32_t Exclusions::doubts(const std::string& node) const {
  const auto found = doubts_.find(node);
  return found == doubts_.end() ? 0 : found->second;
}

}  // namespace modelet::scheduler
