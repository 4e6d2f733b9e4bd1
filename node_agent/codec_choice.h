// CodecChoice: which codec a rank uses for what it sends in a training step. Those that the experiment names,
// or, where it says "auto", those that cost the least time on the links of this rank among the ones that are
// exact enough for the tensors of this run.
//
//   cost of a value    encoding + decoding, measured here when a run begins, + encoded bytes / rate of the
//   link exact enough       |x - decoded x| / |x| of a tensor as it is now is at most kMaxError; looked at
//   every
//                      kLookEvery steps
//
// A choice depends on measured time: to repeat a run of "auto" bit for bit, name what it chose (event
// "exchange"). Used by the training thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "base/experiment.h"
#include "base/matrix.h"
#include "comm/codec.h"
#include "comm/group.h"

namespace modelet::agent {

class CodecChoice {
 public:
  enum Tensor : size_t { kActivations, kGradients, kTensors };
  static constexpr uint64_t kLookEvery = 256;
  static constexpr float kMaxError[kTensors] = {0.08f, 0.25f};
  // Rounds of measure().
  static constexpr uint16_t kRounds = 32;

  CodecChoice(const Experiment::Exchange& exchange, int size);

  bool automatic() const { return automatic_[kActivations] || automatic_[kGradients]; }

  // Measures the links to the other ranks, and what codecs cost, if something is automatic. Every rank calls
  // it. Before it, links count as 1 Gbit/s. Uses rounds tag.round .. tag.round + kRounds - 1.
  void measure(comm::Group& group, comm::Tag tag);

  // A tensor as it is sent; looked at now and then. `step` decides when.
  void look(Tensor tensor, uint64_t step, ConstMatrix values);

  // Activations are encoded once for all ranks, gradients for rank `to`, or with the codec of the slowest
  // link.
  const comm::Codec& activations() const { return *chosen_[kActivations].front(); }
  const comm::Codec& gradients(int to) const { return *chosen_[kGradients][static_cast<size_t>(to)]; }
  const comm::Codec& gradients() const { return gradients(slowest_); }

  // True once after a choice has changed.
  bool take_changed();
  // "activations", "gradients": codecs by rank; "megabits_per_second" of the link to each rank.
  nlohmann::json describe() const;

 private:
  struct Candidate {
    const comm::Codec* codec = nullptr;
    double seconds_a_value = 0;  // encoding and decoding
  };

  void measure_codecs();
  void measure_links(comm::Group& group, comm::Tag tag);
  void choose(Tensor tensor, ConstMatrix values);

  int size_;
  bool automatic_[kTensors];
  std::vector<Candidate> candidates_;
  std::vector<double> bytes_per_second_;              // [size] of the link to each rank
  int slowest_ = 0;                                   // rank with the slowest link
  std::vector<const comm::Codec*> chosen_[kTensors];  // [size]
  std::vector<std::byte> encoded_;
  std::vector<float> decoded_;
  bool changed_ = false;
};

}  // namespace modelet::agent
