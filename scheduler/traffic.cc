#include "scheduler/traffic.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/sample_range.h"
#include "comm/codec.h"
#include "comm/envelope.h"
#include "scheduler/cost_model.h"

namespace modelet::scheduler {
namespace {

// Blocks and bytes of a message, as docs/wire_format.md gives them.
struct MessageSize {
  uint64_t blocks = 0, bytes = 0;

  void add(const comm::Codec& codec, uint64_t rows, uint64_t cols) {
    constexpr uint64_t kBlockHeader = 24;
    ++blocks;
    bytes += kBlockHeader + codec.max_bytes(rows, cols);
  }
};

// What the nodes of a plan send each other in a step: one message a peer and round.
class Traffic {
 public:
  Traffic(const Experiment& experiment, std::span<const ModeletSpec> cut, std::span<const uint32_t> owner,
          uint32_t nodes)
      : experiment_(experiment),
        cut_(cut),
        owner_(owner),
        nodes_(nodes),
        codecs_(comm::exchange_codecs(experiment.exchange)),
        exact_(comm::require_codec("none")) {
    const uint32_t pieces = experiment.exchange.micro_batches;  // 0: the run chooses, and bytes grow with it
    split_batch(experiment.train.batch, pieces == 0 ? kTriedMicroBatches : pieces, ranges_);
  }

  std::vector<Exchange> exchanges() const {
    std::vector<Exchange> all;
    if (nodes_ == 1) return all;
    const auto layers = static_cast<uint32_t>(experiment_.model.hidden.size());
    for (uint32_t layer = 0; layer < layers; ++layer)
      for (const SampleRange& range : ranges_) {
        const uint64_t notice = all.empty() ? 24 + 2 * sizeof(float) : 0;  // with the first activations
        all.push_back(
            exchange(Exchange::Kind::kActivations, layer, range.size(), [&](uint32_t from, uint32_t) {
              MessageSize message = activations(layer, from, range.size());
              message.bytes += notice;
              return message;
            }));
      }
    for (const SampleRange& range : ranges_)
      all.push_back(exchange(Exchange::Kind::kOutput, layers - 1, range.size(), [&](uint32_t, uint32_t to) {
        return output_exchange(layers - 1, to, range.size());
      }));
    for (uint32_t layer = layers - 1; layer-- > 0;)
      all.push_back(exchange(Exchange::Kind::kGradient, layer, experiment_.train.batch,
                             [&](uint32_t, uint32_t to) { return gradient_part(layer, to); }));
    if (experiment_.optimizer.clip != 0)
      all.push_back(exchange(Exchange::Kind::kClip, 0, experiment_.train.batch,
                             [&](uint32_t, uint32_t) { return one_number(); }));
    return all;
  }

 private:
  // A layer's columns that `node` owns, of some samples.
  MessageSize columns(const comm::Codec& codec, uint32_t layer, uint32_t node, uint64_t samples) const {
    std::vector<ColumnRange> blocks;
    for (const ModeletSpec& modelet : cut_)
      if (modelet.layer == layer && owner_[modelet.id] == node) append_columns(blocks, modelet);
    MessageSize message;
    for (const ColumnRange& block : blocks) message.add(codec, samples, block.count);
    return message;
  }
  MessageSize activations(uint32_t layer, uint32_t node, uint64_t samples) const {
    return columns(*codecs_.activations, layer, node, samples);
  }
  // Statistics of the logits, and the part of the gradient that belongs to the peer's columns.
  MessageSize output_exchange(uint32_t layer, uint32_t peer, uint64_t samples) const {
    constexpr uint64_t kStatistics = 3;  // rows: maximum, sum of exponentials, loss
    MessageSize message = columns(*codecs_.gradients, layer, peer, samples);
    if (experiment_.model.loss == Loss::kSoftmax) {  // the part that the receiver rescales, and the other
      message.bytes *= 2;
      message.blocks *= 2;
    }
    message.add(exact_, kStatistics, samples);
    return message;
  }
  // Below the last hidden layer: the part of the gradient of the peer's columns, packed into one block.
  MessageSize gradient_part(uint32_t layer, uint32_t peer) const {
    uint64_t width = 0;
    for (const ModeletSpec& modelet : cut_)
      if (modelet.layer == layer && owner_[modelet.id] == peer) width += modelet.neurons();
    MessageSize message;
    message.add(*codecs_.gradients, experiment_.train.batch, width);
    return message;
  }
  MessageSize one_number() const {
    MessageSize message;
    message.add(exact_, 1, 1);
    return message;
  }

  // size_of(from, to): of a message.
  template <class SizeOf>
  Exchange exchange(Exchange::Kind kind, uint32_t layer, uint64_t samples, const SizeOf& size_of) const {
    Exchange result{.kind = kind, .layer = layer, .samples = samples};
    result.bytes.assign(nodes_, std::vector<uint64_t>(nodes_, 0));
    for (uint32_t from = 0; from < nodes_; ++from)
      for (uint32_t to = 0; to < nodes_; ++to)
        if (from != to) result.bytes[from][to] = with_envelope(size_of(from, to));
    return result;
  }

  static uint64_t with_envelope(const MessageSize& message) {
    constexpr uint64_t kEnvelope = 96;  // without blocks
    if (message.blocks > comm::kMaxBlocks)
      throw UsageError(
          fmt::format("a message of the run would hold {} matrices, more than the limit of {}: make "
                      "modelets.hidden_columns larger, or use more nodes",
                      message.blocks, comm::kMaxBlocks));
    return kEnvelope + message.bytes;
  }

  const Experiment& experiment_;
  const std::span<const ModeletSpec> cut_;
  const std::span<const uint32_t> owner_;
  const uint32_t nodes_;
  const comm::ExchangeCodecs codecs_;
  const comm::Codec& exact_;
  std::vector<SampleRange> ranges_;  // micro-batches
};

}  // namespace

std::vector<Exchange> step_exchanges(const Experiment& experiment, std::span<const ModeletSpec> cut,
                                     std::span<const uint32_t> owner, uint32_t nodes) {
  return Traffic(experiment, cut, owner, nodes).exchanges();
}

// Rows change as if each step drew its own by chance; in several steps some are drawn again.
uint64_t sync_bytes_per_step(const ModeletSpec& modelet, const Experiment& experiment,
                             const DataShape& shape) {
  if (experiment.cluster.replicas == 1) return 0;
  const auto [row_count, cols] = row_shape(modelet);
  const auto rows = static_cast<double>(row_count);
  double touched = rows;  // in one step
  if (modelet.kind == LayerKind::kInput) touched = touched_features(experiment, shape);
  if (modelet.kind == LayerKind::kOutput)
    touched = active_neurons(experiment, shape).rows * rows / static_cast<double>(shape.labels);
  const double steps = experiment.exchange.local_steps;
  const double share = 1 - std::pow(1 - std::min(1.0, touched / rows), steps);
  const auto changed = static_cast<uint64_t>(rows * share);
  const comm::Codec& codec = *comm::exchange_codecs(experiment.exchange).gradients;
  uint64_t bytes = codec.max_bytes(changed, cols);
  if (modelet.kind != LayerKind::kInput) bytes += changed * sizeof(float);  // biases
  bytes += row_count / 8;                                                   // which rows
  return (experiment.cluster.replicas - 1) * bytes / experiment.exchange.local_steps;
}

}  // namespace modelet::scheduler
