// LabelDivision: which tower has each label, in each division (base/experiment/towers.h). It is made once for a run
// (shard/data/pairs/divide_labels.h) and belongs to the model, whose checkpoints have it as a file. Immutable; any
// thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "shard/data/store/label_spread.h"

namespace modelet::shard {

class LabelDivision {
 public:
  // tower_of [divisions, labels]: below `towers`. Every tower has a label. `common`: labels that all towers have.
  LabelDivision(uint32_t towers, uint32_t divisions, std::vector<uint32_t> tower_of,
                std::vector<uint32_t> common = {});

  uint32_t towers() const { return towers_; }
  uint32_t divisions() const { return divisions_; }
  uint32_t tasks() const { return towers_ * divisions_; }
  size_t labels() const { return tower_of_.size() / divisions_; }
  // Whether each label is in one tower only.
  bool disjoint() const { return divisions_ == 1 && common_.empty(); }
  // [labels] how many towers have the label.
  std::vector<uint32_t> multiplicities() const;

  // The labels of a task's tower, common ones included, and its neurons, which are in the order of those of all labels.
  LabelSpread spread(uint32_t task) const;
  // [tasks] the sum of `counts` [labels] over the labels of each task's tower, and how many labels these are.
  struct Part {
    uint64_t labels = 0, entries = 0;
  };
  std::vector<Part> parts(std::span<const uint32_t> counts) const;

  // The file of this name, of safetensors: the arrays "tower" [divisions, labels] and, if there are any, "common". read() throws FormatError if it is
  // not a division of `labels` labels into as many towers.
  static constexpr const char* kFile = "towers.safetensors";
  void write(const std::filesystem::path& file) const;
  static LabelDivision read(const std::filesystem::path& file, uint32_t towers, uint32_t divisions,
                            size_t labels);

  friend bool operator==(const LabelDivision&, const LabelDivision&) = default;

 private:
  std::span<const uint32_t> division(uint32_t index) const {
    return std::span(tower_of_).subspan(index * labels(), labels());
  }

  uint32_t towers_, divisions_;
  std::vector<uint32_t> tower_of_, common_;
};

}  // namespace modelet::shard
