#include "shard/data/store/label_division.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "base/error.h"
#include "shard/format/safetensors.h"

namespace modelet::shard {
namespace {

constexpr const char *kTowerOfLabels = "tower", *kCommonLabels = "common";

}  // namespace

LabelDivision::LabelDivision(uint32_t towers, uint32_t divisions, std::vector<uint32_t> tower_of,
                             std::vector<uint32_t> common)
    : towers_(towers), divisions_(divisions), tower_of_(std::move(tower_of)), common_(std::move(common)) {
  MODELET_CHECK(divisions > 0 && tower_of_.size() % divisions == 0, "each division has all labels");
}

LabelSpread LabelDivision::spread(uint32_t task) const {
  const std::span<const uint32_t> tower_of = division(task / towers_);
  std::vector<bool> has(labels());
  for (size_t label = 0; label < labels(); ++label) has[label] = tower_of[label] == task % towers_;
  for (const uint32_t label : common_) has[label] = true;
  const LabelSpread all(labels());
  std::vector<uint32_t> label_of;
  for (uint32_t neuron = 0; neuron < labels(); ++neuron)
    if (has[all.label(neuron)]) label_of.push_back(all.label(neuron));
  return {std::move(label_of), labels()};
}

std::vector<uint32_t> LabelDivision::multiplicities() const {
  std::vector<uint32_t> towers(labels(), divisions_);
  for (const uint32_t label : common_) towers[label] = tasks();
  return towers;
}

std::vector<LabelDivision::Part> LabelDivision::parts(std::span<const uint32_t> counts) const {
  std::vector<Part> parts(tasks());
  const auto add = [&](uint32_t task, size_t label) {
    ++parts[task].labels;
    parts[task].entries += counts[label];
  };
  for (uint32_t index = 0; index < divisions_; ++index)
    for (size_t label = 0; label < labels(); ++label) add(index * towers_ + division(index)[label], label);
  for (const uint32_t label : common_)
    for (uint32_t task = 0; task < tasks(); ++task)
      if (division(task / towers_)[label] != task % towers_) add(task, label);
  return parts;
}

void LabelDivision::write(const std::filesystem::path& file) const {
  std::vector<Tensor> tensors = {tensor(kTowerOfLabels, {divisions_, labels()}, tower_of_)};
  if (!common_.empty()) tensors.push_back(tensor(kCommonLabels, {common_.size()}, common_));
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
  std::vector<uint32_t> common;
  if (stored.contains(kCommonLabels)) {
    const auto listed = stored.values<uint32_t>(kCommonLabels, stored.at(kCommonLabels).shape);
    common.assign(listed.begin(), listed.end());
  }
  if (!std::ranges::is_sorted(common, std::less_equal<>()) || (!common.empty() && common.back() >= labels))
    throw FormatError(file.string() + ": its common labels do not ascend, or there are no such labels");
  return {towers, divisions, {tower_of.begin(), tower_of.end()}, std::move(common)};
}

}  // namespace modelet::shard
