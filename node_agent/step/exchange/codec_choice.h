// CodecChoice: says which codecs a rank uses for what it sends in a training step. They are those that the
// experiment names. Where the experiment says "auto", they are those that take the least time on the links
// of this rank, among the codecs that are exact enough for the tensors of this run.
//
// - The cost of a value is the time to encode and decode it, plus its encoded bytes divided by the rate of
//   the link. measure() measures these times and rates when a run begins.
// - A codec is exact enough if |x - decoded x| / |x| is at most kMaxError in each block that was examined.
//
// All blocks that are sent are examined in the first step of a session and in every kLookEvery-th step of
// the run. The choice is made when that step has succeeded. Until the first choice, tensors travel exactly.
//
// A run with "auto" does not repeat bit for bit, not even if the experiment names the codecs that it chose:
// a choice depends on measured time, each rank makes its own, and a session begins with exact tensors. A
// snapshot restores what was measured and chosen. Used by the training thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "base/array/matrix.h"
#include "base/experiment/experiment.h"
#include "comm/codec/codec.h"
#include "comm/collectives/group.h"

namespace modelet::agent {

class CodecChoice {
 public:
  enum Tensor : size_t { kActivations, kGradients, kTensors };
  static constexpr uint64_t kLookEvery = 256;
  static constexpr float kMaxError[kTensors] = {0.08f, 0.25f};

  CodecChoice(const Experiment::Exchange& exchange, int size);

  bool automatic() const { return automatic_[kActivations] || automatic_[kGradients]; }

  // Measures the links to the other ranks and the cost of codecs, if something is automatic. Every rank
  // must call it. Without it, links count as 1 Gbit/s. Uses kMeasureRounds rounds from tag.round on
  // (rounds.h).
  void measure(comm::Group& group, comm::Tag tag);

  // What was measured and chosen, with equally many numbers on each rank; empty if nothing is automatic.
  // restore() replaces measure(). It returns false and changes nothing if `state` does not fit a group of
  // this size.
  std::vector<double> state() const;
  bool restore(std::span<const double> state);

  // Call these around a step, and end_step() only if it has succeeded.
  void begin_step(uint64_t step);
  void end_step();

  // Report a block that is sent in this step: to all ranks, or to rank `to`.
  void look_at_activations(ConstMatrix block) { look(kActivations, 0, block); }
  void look_at_gradients(int to, ConstMatrix block) { look(kGradients, static_cast<size_t>(to), block); }

  // Activations are encoded once for all ranks, gradients for rank `to`.
  const comm::Codec& activations() const { return *chosen_[kActivations].front(); }
  const comm::Codec& gradients(int to) const { return *chosen_[kGradients][static_cast<size_t>(to)]; }

  // True once after a choice has changed.
  bool take_changed();
  // "activations" and "gradients" list the codecs by the rank to which they send. "megabits_per_second"
  // lists the rates of the links to the ranks.
  nlohmann::json describe() const;

 private:
  struct Candidate {
    const comm::Codec* codec = nullptr;
    double seconds_a_value = 0;  // for encoding and decoding
  };
  // What a candidate did with the blocks of a step.
  struct Trial {
    double worst_error = 0;  // |x - decoded x| / |x|
    double bytes = 0, values = 0;
  };

  void measure_codecs();
  void measure_links(comm::Group& group, comm::Tag tag);
  void find_slowest();
  void look(Tensor tensor, size_t to, ConstMatrix block);
  const comm::Codec* cheapest(Tensor tensor, size_t to) const;

  int size_;
  bool automatic_[kTensors];
  std::vector<Candidate> candidates_;
  std::vector<double> bytes_per_second_;              // [size] of the link to each rank
  int slowest_ = 0;                                   // rank with the slowest link
  std::vector<const comm::Codec*> chosen_[kTensors];  // [size]
  bool looking_ = false, has_looked_ = false;         // in this step; in this session
  std::vector<std::vector<Trial>> trials_[kTensors];  // [size][candidates]; for activations only [0]
  std::vector<std::byte> encoded_;
  std::vector<float> decoded_;
  bool changed_ = false;
};

}  // namespace modelet::agent
