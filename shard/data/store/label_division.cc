#include "shard/data/store/label_division.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "shard/format/safetensors.h"

namespace modelet::shard {
namespace {

constexpr const char* kTowerOfLabels = "tower";

}  // namespace

LabelDivision::LabelDivision(uint32_t towers, uint32_t divisions, std::vector<uint32_t> tower_of)
    : towers_(towers), divisions_(divisions), tower_of_(std::move(tower_of)) {
  MODELET_CHECK(divisions > 0 && tower_of_.size() % divisions == 0, "each division has all labels");
}

LabelSpread LabelDivision::spread(uint32_t task) const {
  const std::span<const uint32_t> tower_of = division(task / towers_);
  const LabelSpread all(labels());
  std::vector<uint32_t> label_of;
  for (uint32_t neuron = 0; neuron < labels(); ++neuron)
    if (tower_of[all.label(neuron)] == task % towers_) label_of.push_back(all.label(neuron));
  return {std::move(label_of), labels()};
}

std::vector<LabelDivision::Part> LabelDivision::parts(std::span<const uint32_t> counts) const {
  std::vector<Part> parts(tasks());
  for (uint32_t index = 0; index < divisions_; ++index)
    for (size_t label = 0; label < labels(); ++label) {
      Part& part = parts[index * towers_ + division(index)[label]];
      ++part.labels;
      part.entries += counts[label];
    }
  return parts;
}

void LabelDivision::write(const std::filesystem::path& file) const {
  const std::array tensors = {tensor(kTowerOfLabels, {divisions_, labels()}, tower_of_)};
  write_safetensors(file, tensors);
}

LabelDivision LabelDivision::read(const std::filesystem::path& file, uint32_t towers, uint32_t divisions,
                                  size_t labels) {
  const SafetensorsFile stored(file);
  const auto tower_of = stored.values<uint32_t>(kTowerOfLabels, {divisions, labels});
  std::vector<bool> used(size_t{divisions} * towers);
  for (size_t i = 0; i < tower_of.size(); ++i) {
    if (tower_of[i] >= towers)
      throw FormatError(file.string() + ": label " + std::to_string(i % labels) + " is in tower " +
                        std::to_string(tower_of[i]) + " of " + std::to_string(towers));
    used[i / labels * towers + tower_of[i]] = true;
  }
  if (std::ranges::find(used, false) != used.end())
    throw FormatError(file.string() + ": there is a tower without labels");
  return {towers, divisions, {tower_of.begin(), tower_of.end()}};
}

}  // namespace modelet::shard
