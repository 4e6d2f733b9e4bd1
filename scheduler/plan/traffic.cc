#include "scheduler/plan/traffic.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/array/sample_range.h"
#include "base/error.h"
#include "base/experiment/memory.h"
#include "comm/codec/codec.h"
#include "comm/wire/envelope.h"
#include "scheduler/plan/cost_model.h"

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

// What the nodes of a plan send each other in a step: one message for each peer and round.
class Traffic {
 public:
  Traffic(const Experiment& experiment, std::span<const ModeletSpec> partition,
          std::span<const uint32_t> owner, uint32_t nodes)
      : experiment_(experiment),
        nodes_(nodes),
        codecs_(comm::exchange_codecs(experiment.exchange)),
        exact_(comm::codec_of(CodecKind::kNone)) {
    const uint32_t count =
        experiment.exchange.micro_batches;  // 0: the run chooses; more of them mean more bytes
    split_batch(experiment.train.batch, count == 0 ? kTriedMicroBatches : count, ranges_);
    columns_.assign(experiment.model.hidden.size(), std::vector<std::vector<ColumnRange>>(nodes));
    for (const ModeletSpec& modelet : partition)
      if (modelet.layer < columns_.size())
        append_columns(columns_[modelet.layer][owner[modelet.id]], modelet);
  }

  std::vector<StepExchange> exchanges() const {
    std::vector<StepExchange> all;
    if (nodes_ == 1) return all;
    const auto layers = static_cast<uint32_t>(experiment_.model.hidden.size());
    for (uint32_t layer = 0; layer < layers; ++layer)
      for (const SampleRange& range : ranges_) {
        const uint64_t notice = all.empty() ? 24 + 2 : 0;  // with the first activations
        all.push_back(exchange(StepExchange::Kind::kActivations, layer, range.size(), [&](uint32_t from) {
          MessageSize message = columns(codecs_.activations, layer, from, range.size());
          message.bytes += notice;
          return message;
        }));
      }
    for (const SampleRange& range : ranges_)
      all.push_back(exchange(StepExchange::Kind::kOutput, layers - 1, range.size(),
                             [&](uint32_t to) { return output_exchange(layers - 1, to, range.size()); }));
    for (uint32_t layer = layers - 1; layer-- > 0;)
      all.push_back(exchange(StepExchange::Kind::kGradient, layer, experiment_.train.batch,
                             [&](uint32_t to) { return partial_sums(layer, to); }));
    if (experiment_.optimizer.clip != 0)
      all.push_back(exchange(StepExchange::Kind::kClip, 0, experiment_.train.batch,
                             [&](uint32_t) { return one_number(); }));
    return all;
  }

 private:
  // The columns of a layer that `node` owns, for some samples.
  MessageSize columns(const comm::Codec& codec, uint32_t layer, uint32_t node, uint64_t samples) const {
    MessageSize message;
    for (const ColumnRange& block : columns_[layer][node]) message.add(codec, samples, block.count);
    return message;
  }
  // The statistics of the logits, and the partial sums of the gradient for the columns of the peer.
  MessageSize output_exchange(uint32_t layer, uint32_t peer, uint64_t samples) const {
    constexpr uint64_t kStatistics = 3;  // rows: maximum, sum of exponentials, loss
    MessageSize message = columns(codecs_.gradients, layer, peer, samples);
    if (experiment_.model.loss == Loss::kSoftmax) {  // two matrices; the receiver rescales one of them
      message.bytes *= 2;
      message.blocks *= 2;
    }
    // For each class of label frequency, the activations and the labels (shard/layers/output/direct_path.h).
    constexpr uint64_t kScaleStatistics = 10;
    message.add(exact_, kStatistics + (experiment_.model.centroids ? kScaleStatistics : 0), samples);
    return message;
  }
  // Below the last hidden layer: the partial sums of the gradient for the columns of the peer, packed into
  // one block.
  MessageSize partial_sums(uint32_t layer, uint32_t peer) const {
    uint64_t width = 0;
    for (const ColumnRange& block : columns_[layer][peer]) width += block.count;
    MessageSize message;
    message.add(codecs_.gradients, experiment_.train.batch, width);
    return message;
  }
  MessageSize one_number() const {
    MessageSize message;
    message.add(exact_, 1, 1);
    return message;
  }

  // size_of(node) is the size of a message from this node or to this node, depending on the kind.
  template <class SizeOf>
  StepExchange exchange(StepExchange::Kind kind, uint32_t layer, uint64_t samples,
                        const SizeOf& size_of) const {
    const bool by_sender = kind == StepExchange::Kind::kActivations || kind == StepExchange::Kind::kClip;
    StepExchange result{.kind = kind, .layer = layer, .samples = samples, .by_sender = by_sender};
    for (uint32_t node = 0; node < nodes_; ++node) result.bytes.push_back(with_envelope(size_of(node)));
    return result;
  }

  static uint64_t with_envelope(const MessageSize& message) {
    constexpr uint64_t kEnvelope = 100;  // without blocks
    if (message.blocks > comm::kMaxBlocks)
      throw UsageError(
          fmt::format("a message of the run would hold {} matrices, more than the limit of {}: make "
                      "modelets.hidden_columns larger, or use more nodes",
                      message.blocks, comm::kMaxBlocks));
    return kEnvelope + message.bytes;
  }

  const Experiment& experiment_;
  const uint32_t nodes_;
  const comm::ExchangeCodecs codecs_;
  const comm::Codec& exact_;
  std::vector<SampleRange> ranges_;  // micro-batches
  std::vector<std::vector<std::vector<ColumnRange>>>
      columns_;  // [hidden layer][node] columns that the node owns
};

}  // namespace

uint64_t StepExchange::sent(size_t node) const {
  if (by_sender) return (bytes.size() - 1) * bytes[node];
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}) - bytes[node];
}

uint64_t StepExchange::received(size_t node) const {
  if (!by_sender) return (bytes.size() - 1) * bytes[node];
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}) - bytes[node];
}

double wire_seconds(std::span<const StepExchange> exchanges, const Link& link) {
  double seconds = 0;
  for (size_t i = 0; i < exchanges.size(); ++i) {
    const StepExchange& exchange = exchanges[i];
    uint64_t most = 0;
    for (size_t node = 0; node < exchange.bytes.size(); ++node)
      most = std::max({most, exchange.sent(node), exchange.received(node)});
    seconds += static_cast<double>(most) / link.bytes_per_second;
    const bool goes_on =
        i > 0 && exchanges[i - 1].kind == exchange.kind && exchanges[i - 1].layer == exchange.layer;
    if (!goes_on) seconds += link.round_trip_seconds / 2;
  }
  return seconds;
}

std::vector<StepExchange> step_exchanges(const Experiment& experiment, std::span<const ModeletSpec> partition,
                                         std::span<const uint32_t> owner, uint32_t nodes) {
  return Traffic(experiment, partition, owner, nodes).exchanges();
}

// Assumes that each step draws its rows at random, so that over several steps some rows are drawn more than
// once.
uint64_t sync_bytes_per_step(const ModeletSpec& modelet, const Experiment& experiment,
                             const DataShape& shape) {
  if (experiment.cluster.replicas == 1) return 0;
  const auto [row_count, cols] = row_shape(modelet);
  if (sends_sums(experiment)) {  // words of all rows, there and back (RowExchange::run_sums)
    const uint64_t replicas = experiment.cluster.replicas, beside = modelet.kind == LayerKind::kInput ? 2 : 3;
    return 2 * (replicas - 1) * row_count * (cols + beside) * sizeof(uint32_t) / replicas /
           experiment.exchange.local_steps;
  }
  const auto rows = static_cast<double>(row_count);
  const CostModel model(experiment, shape);
  double touched = rows;  // in one step
  if (modelet.kind == LayerKind::kInput) touched = model.touched_features();
  if (modelet.kind == LayerKind::kOutput)
    touched = model.active_neurons().changed * rows / static_cast<double>(shape.labels);
  const double steps = experiment.exchange.local_steps;
  const double share = 1 - std::pow(1 - std::min(1.0, touched / rows), steps);
  const auto changed = static_cast<uint64_t>(rows * share);
  const comm::Codec& codec = comm::exchange_codecs(experiment.exchange).gradients;
  uint64_t bytes = codec.max_bytes(changed, cols);
  if (modelet.kind != LayerKind::kInput) bytes += changed * sizeof(float);  // biases
  bytes += row_count / 8;                                                   // which rows
  return (experiment.cluster.replicas - 1) * bytes / experiment.exchange.local_steps;
}

}  // namespace modelet::scheduler
