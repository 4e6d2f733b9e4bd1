#include "node_agent/step/exchange/activation_exchange.h"

#include "base/array/sample_range.h"

namespace modelet::agent {
namespace {

enum RequestByte : size_t { kRequests, kNextMicroBatches };
constexpr std::byte kStop{1}, kSnapshot{2}, kTrace{4};  // bits of kRequests

}  // namespace

ActivationExchange::ActivationExchange(const Sharding& sharding, comm::Group& group, const comm::Codec& codec)
    : sharding_(sharding),
      group_(group),
      codec_(codec),
      requests_(static_cast<size_t>(sharding.size())),
      theirs_(requests_.size()) {}

void ActivationExchange::send(comm::Tag tag, size_t layer, Matrix rows, const StepRequests* requests) {
  if (sharding_.size() == 1) return;
  mine_.clear();
  as_received_.clear();
  for (const ColumnRange& columns : sharding_.columns(layer, sharding_.rank())) {
    const Matrix block = rows.columns(columns.first, columns.count);
    mine_.push_back({&codec_, block});
    as_received_.push_back(block);
  }
  Bytes bytes{};
  if (requests != nullptr) {
    if (requests->stop) bytes[kRequests] |= kStop;
    if (requests->snapshot) bytes[kRequests] |= kSnapshot;
    if (requests->trace) bytes[kRequests] |= kTrace;
    bytes[kNextMicroBatches] = static_cast<std::byte>(requests->next_micro_batches);
    mine_.push_back({.bytes = bytes});
    as_received_.push_back(requests_[static_cast<size_t>(sharding_.rank())]);
  }
  if (codec_.kind() == CodecKind::kNone) as_received_.clear();  // nothing changes
  group_.send_all(tag, mine_, as_received_);
}

void ActivationExchange::collect(comm::Tag tag, size_t layer, Matrix rows, StepRequests* requests) {
  if (sharding_.size() == 1) return;
  for (int rank = 0; rank < sharding_.size(); ++rank) {
    std::vector<comm::InBlock>& blocks = theirs_[static_cast<size_t>(rank)];
    blocks.clear();
    for (const ColumnRange& columns : sharding_.columns(layer, rank))
      blocks.push_back(rows.columns(columns.first, columns.count));
    if (requests != nullptr) blocks.push_back(requests_[static_cast<size_t>(rank)]);
  }
  group_.collect(tag, theirs_);
  if (requests != nullptr) combine_requests(*requests);
}

void ActivationExchange::combine_requests(StepRequests& requests) const {
  const auto self = static_cast<size_t>(sharding_.rank());
  for (size_t rank = 0; rank < requests_.size(); ++rank) {
    if (rank == self) continue;
    requests.stop |= (requests_[rank][kRequests] & kStop) != std::byte{0};
    requests.snapshot |= (requests_[rank][kRequests] & kSnapshot) != std::byte{0};
    requests.trace |= (requests_[rank][kRequests] & kTrace) != std::byte{0};
  }
  if (self == 0) return;
  // A number from a peer is limited to the valid range.
  const auto micro_batches = std::to_integer<uint32_t>(requests_[0][kNextMicroBatches]);
  requests.next_micro_batches = micro_batches >= 1 && micro_batches <= kMaxMicroBatches ? micro_batches : 1;
}

}  // namespace modelet::agent
