#include "node_agent/step/exchange/activation_exchange.h"

#include "base/array/sample_range.h"

namespace modelet::agent {
namespace {

enum NoticeByte : size_t { kWishes, kNextMicroBatches };
constexpr std::byte kStop{1}, kSnapshot{2};  // bits of the wishes

}  // namespace

ActivationExchange::ActivationExchange(const Sharding& sharding, comm::Group& group,
                                       const comm::Codec& codec)
    : sharding_(sharding),
      group_(group),
      codec_(codec),
      notices_(static_cast<size_t>(sharding.size())),
      theirs_(notices_.size()) {}

void ActivationExchange::send(comm::Tag tag, size_t layer, ConstMatrix rows, const StepNotice* notice) {
  if (sharding_.size() == 1) return;
  mine_.clear();
  for (const ColumnRange& columns : sharding_.columns(layer, sharding_.rank()))
    mine_.push_back({&codec_, rows.columns(columns.first, columns.count)});
  Bytes bytes{};
  if (notice != nullptr) {
    if (notice->stop) bytes[kWishes] |= kStop;
    if (notice->snapshot) bytes[kWishes] |= kSnapshot;
    bytes[kNextMicroBatches] = static_cast<std::byte>(notice->next_micro_batches);
    mine_.push_back({.bytes = bytes});
  }
  group_.send_all(tag, mine_);
}

void ActivationExchange::collect(comm::Tag tag, size_t layer, Matrix rows, StepNotice* notice) {
  if (sharding_.size() == 1) return;
  for (int rank = 0; rank < sharding_.size(); ++rank) {
    std::vector<comm::InBlock>& blocks = theirs_[static_cast<size_t>(rank)];
    blocks.clear();
    for (const ColumnRange& columns : sharding_.columns(layer, rank))
      blocks.push_back(rows.columns(columns.first, columns.count));
    if (notice != nullptr) blocks.push_back(notices_[static_cast<size_t>(rank)]);
  }
  group_.collect(tag, theirs_);
  if (notice != nullptr) hear(*notice);
}

void ActivationExchange::hear(StepNotice& notice) const {
  const auto self = static_cast<size_t>(sharding_.rank());
  for (size_t rank = 0; rank < notices_.size(); ++rank) {
    if (rank == self) continue;
    notice.stop |= (notices_[rank][kWishes] & kStop) != std::byte{0};
    notice.snapshot |= (notices_[rank][kWishes] & kSnapshot) != std::byte{0};
  }
  if (self == 0) return;
  // A number from a peer is limited to the valid range.
  const auto told = std::to_integer<uint32_t>(notices_[0][kNextMicroBatches]);
  notice.next_micro_batches = told >= 1 && told <= kMaxMicroBatches ? told : 1;
}

}  // namespace modelet::agent
