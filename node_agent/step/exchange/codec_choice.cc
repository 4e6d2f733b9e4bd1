#include "node_agent/step/exchange/codec_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/rng.h"
#include "base/system/clock.h"
#include "comm/collectives/gather_numbers.h"
#include "node_agent/step/exchange/rounds.h"

namespace modelet::agent {
namespace {

constexpr double kGigabit = 1e9 / 8;               // bytes a second
constexpr size_t kProbeBytes = size_t{512} << 10;  // sent over a link to measure it
// Links that a rank measures; in larger groups the others count as the median.
constexpr int kProbedLinks = 8;
static_assert(2 * kProbedLinks + 1 <= kMeasureRounds);
constexpr size_t kTrialRows = 128, kTrialCols = 32;
constexpr int kTrials = 16;
constexpr uint64_t kTrialSeed = 1;

// The root mean square of |a - b| / |a| over the rows, because rows of different samples have different
// scales. Infinite if it is not a number.
double relative_error(ConstMatrix a, ConstMatrix b) {
  double sum = 0;
  size_t rows = 0;
  for (size_t r = 0; r < a.rows; ++r) {
    double difference = 0, size = 0;
    for (size_t c = 0; c < a.cols; ++c) {
      const double x = a.row(r)[c], y = b.row(r)[c];
      difference += (x - y) * (x - y);
      size += x * x;
    }
    if (size == 0 && difference == 0) continue;
    sum += difference / size;
    ++rows;
  }
  if (rows == 0) return 0;
  const double error = std::sqrt(sum / static_cast<double>(rows));
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

// Random bits, which nothing can compress.
std::vector<uint64_t> random_bits(size_t bytes) {
  Rng rng(kTrialSeed);
  std::vector<uint64_t> bits(bytes / sizeof(uint64_t));
  for (uint64_t& word : bits) word = rng.next();
  return bits;
}

}  // namespace

CodecChoice::CodecChoice(const Experiment::Exchange& exchange, int size)
    : size_(size), bytes_per_second_(static_cast<size_t>(size), kGigabit) {
  const CodecKind kinds[kTensors] = {exchange.codec, gradient_codec(exchange)};
  for (size_t tensor = 0; tensor < kTensors; ++tensor) {
    automatic_[tensor] = kinds[tensor] == CodecKind::kAuto;
    // Exact until the first choice.
    chosen_[tensor].assign(static_cast<size_t>(size),
                           &comm::codec_of(automatic_[tensor] ? CodecKind::kNone : kinds[tensor]));
  }
  for (const comm::Codec* codec : comm::all_codecs()) candidates_.push_back({codec, 0});
}

void CodecChoice::measure(comm::Group& group, comm::Tag tag) {
  if (!automatic() || size_ == 1) return;
  measure_codecs();
  measure_links(group, tag);
}

// Takes the best of several trials, because others may use the core meanwhile.
void CodecChoice::measure_codecs() {
  std::vector<float> values(kTrialRows * kTrialCols), decoded(values.size());
  Rng rng(kTrialSeed);
  for (float& value : values) value = rng.normal();
  const ConstMatrix matrix{values.data(), kTrialRows, kTrialCols, kTrialCols};
  for (Candidate& candidate : candidates_) {
    std::vector<std::byte> encoded(candidate.codec->max_bytes(kTrialRows, kTrialCols));
    double best = std::numeric_limits<double>::infinity();
    for (int trial = 0; trial < kTrials; ++trial) {
      const Stopwatch watch;
      const size_t used = candidate.codec->encode(matrix, {kTrialSeed}, encoded);
      candidate.codec->decode(std::span(encoded).first(used),
                              {decoded.data(), kTrialRows, kTrialCols, kTrialCols});
      best = std::min(best, watch.seconds());
    }
    candidate.seconds_a_value = best / static_cast<double>(values.size());
  }
}

// At each distance every rank sends to one rank and receives from one, so no link carries two transfers.
// The receiver measures the time.
void CodecChoice::measure_links(comm::Group& group, comm::Tag tag) {
  const auto count = static_cast<size_t>(size_);
  const int distances = std::min(size_ - 1, kProbedLinks);
  const std::vector<uint64_t> probe = random_bits(kProbeBytes);
  std::vector<uint64_t> received(probe.size());
  std::vector<uint64_t> rates;  // of the link from the rank at each distance; bytes a second
  const auto rank_at = [&](int distance) {
    return static_cast<size_t>((group.rank() + distance + size_) % size_);
  };
  const auto next = [&tag] { return std::exchange(tag, tag.later(1)); };
  for (int distance = 1; distance <= distances; ++distance) {
    std::vector<std::vector<comm::OutBlock>> to(count);
    std::vector<std::vector<comm::InBlock>> from(count);
    to[rank_at(distance)].push_back({.bytes = std::as_bytes(std::span(probe))});
    from[rank_at(-distance)].push_back(std::as_writable_bytes(std::span(received)));
    group.barrier(next());
    const Stopwatch watch;
    group.all_to_all(next(), to, from);
    rates.push_back(static_cast<uint64_t>(kProbeBytes / std::max(watch.seconds(), 1e-6)));
  }
  const auto all = all_gather_numbers(group, next(), rates, std::vector<size_t>(count, rates.size()));
  std::vector<double> known;
  for (int distance = 1; distance <= distances; ++distance) {
    const double rate = static_cast<double>(all[rank_at(distance)][static_cast<size_t>(distance - 1)]);
    bytes_per_second_[rank_at(distance)] = rate;
    known.push_back(rate);
  }
  bytes_per_second_[rank_at(0)] = *std::max_element(known.begin(), known.end());  // nothing is sent there
  std::nth_element(known.begin(), known.begin() + distances / 2, known.end());
  for (int distance = distances + 1; distance < size_; ++distance)
    bytes_per_second_[rank_at(distance)] = known[static_cast<size_t>(distances / 2)];
  find_slowest();
}

void CodecChoice::find_slowest() {
  slowest_ = static_cast<int>(std::min_element(bytes_per_second_.begin(), bytes_per_second_.end()) -
                              bytes_per_second_.begin());
}

// In this order: whether a step was examined, costs of the codecs, rates of the links, choices.
std::vector<double> CodecChoice::state() const {
  std::vector<double> state;
  if (!automatic() || size_ == 1) return state;
  state.push_back(has_looked_ ? 1 : 0);
  for (const Candidate& candidate : candidates_) state.push_back(candidate.seconds_a_value);
  state.insert(state.end(), bytes_per_second_.begin(), bytes_per_second_.end());
  for (const auto& chosen : chosen_)
    for (const comm::Codec* codec : chosen)
      state.push_back(static_cast<double>(std::ranges::find(candidates_, codec, &Candidate::codec) -
                                          candidates_.begin()));
  return state;
}

bool CodecChoice::restore(std::span<const double> state) {
  const auto size = static_cast<size_t>(size_), costs = candidates_.size();
  if (!automatic() || size_ == 1 || state.size() != 1 + costs + (1 + kTensors) * size) return false;
  const std::span<const double> choices = state.subspan(1 + costs + size);
  const auto chooses = [&](double choice) { return choice >= 0 && choice < static_cast<double>(costs); };
  if (!std::ranges::all_of(choices, chooses)) return false;
  has_looked_ = state[0] != 0;
  for (size_t i = 0; i < costs; ++i) candidates_[i].seconds_a_value = state[1 + i];
  bytes_per_second_.assign(state.begin() + static_cast<std::ptrdiff_t>(1 + costs),
                           state.begin() + static_cast<std::ptrdiff_t>(1 + costs + size));
  find_slowest();
  for (size_t tensor = 0; tensor < kTensors; ++tensor)
    for (size_t rank = 0; automatic_[tensor] && rank < size; ++rank)
      chosen_[tensor][rank] = candidates_[static_cast<size_t>(choices[tensor * size + rank])].codec;
  return true;
}

void CodecChoice::begin_step(uint64_t step) {
  looking_ = automatic() && size_ > 1 && (!has_looked_ || step % kLookEvery == 0);
  if (!looking_) return;
  for (auto& trials : trials_)
    trials.assign(static_cast<size_t>(size_), std::vector<Trial>(candidates_.size()));
}

void CodecChoice::look(Tensor tensor, size_t to, ConstMatrix block) {
  if (!looking_ || !automatic_[tensor]) return;
  decoded_.resize(block.rows * block.cols);
  const Matrix decoded{decoded_.data(), block.rows, block.cols, block.cols};
  const comm::Rounding rounding = tensor == kActivations ? comm::kNearest : comm::Rounding{kTrialSeed};
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const comm::Codec& codec = *candidates_[i].codec;
    encoded_.resize(codec.max_bytes(block.rows, block.cols));
    const size_t used = codec.encode(block, rounding, encoded_);
    codec.decode(std::span(encoded_).first(used), decoded);
    Trial& trial = trials_[tensor][to][i];
    trial.worst_error = std::max(trial.worst_error, relative_error(block, decoded));
    trial.bytes += static_cast<double>(used);
    trial.values += static_cast<double>(decoded_.size());
  }
}

void CodecChoice::end_step() {
  if (!looking_) return;
  looking_ = false;
  changed_ |= !std::exchange(has_looked_, true);  // the first choice is reported, whatever it is
  for (const Tensor tensor : {kActivations, kGradients}) {
    if (!automatic_[tensor]) continue;
    auto& chosen = chosen_[tensor];
    const auto before = chosen;
    for (size_t rank = 0; rank < chosen.size(); ++rank)
      chosen[rank] = cheapest(tensor, tensor == kActivations ? 0 : rank);
    changed_ |= chosen != before;
  }
}

// The cheapest codec for blocks that go to rank `to`, or to all ranks.
const comm::Codec* CodecChoice::cheapest(Tensor tensor, size_t to) const {
  const double rate = bytes_per_second_[tensor == kActivations ? static_cast<size_t>(slowest_) : to];
  const comm::Codec* best = chosen_[tensor][to];
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const Trial& trial = trials_[tensor][to][i];
    if (trial.values == 0 || trial.worst_error > kMaxError[tensor]) continue;
    const double cost = candidates_[i].seconds_a_value + trial.bytes / trial.values / rate;
    if (cost >= lowest) continue;
    lowest = cost;
    best = candidates_[i].codec;
  }
  return best;
}

bool CodecChoice::take_changed() { return std::exchange(changed_, false); }

nlohmann::json CodecChoice::describe() const {
  const auto names = [&](Tensor tensor) {
    nlohmann::json list = nlohmann::json::array();
    for (const comm::Codec* codec : chosen_[tensor]) list.push_back(codec->name());
    return list;
  };
  nlohmann::json rates = nlohmann::json::array();
  for (const double rate : bytes_per_second_) rates.push_back(std::round(rate * 8e-6));
  return {
      {"activations", names(kActivations)}, {"gradients", names(kGradients)}, {"megabits_per_second", rates}};
}

}  // namespace modelet::agent
