#include "comm/collectives/dissemination.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"

namespace modelet::comm {
namespace {

// Each further hop waits longer by this share. If a rank is dead, the rank that waits for
// it directly then gives up first, and it is the one that can name the dead rank.
constexpr double kHopPatience = 0.05;

}  // namespace

void Dissemination::run(std::span<const OutBlock> mine) {
  headers_.clear();
  bytes_.clear();
  const int size = messenger_.size();
  if (size == 1) return;

  struct Gatherer final : Messenger::Receiver {
    explicit Gatherer(Dissemination& to) : all(to) {}
    void receive(size_t, const Envelope& envelope, std::span<const std::byte> payload) override {
      if (envelope.blocks.size() != expected)
        throw FormatError(fmt::format("{} blocks, expected {}", envelope.blocks.size(), expected));
      all.append(envelope.blocks, payload);
    }
    Dissemination& all;
    size_t expected = 0;
  };
  Gatherer gatherer(*this);
  messenger_.pack(mine);
  append(messenger_.packed().blocks(), messenger_.packed().raw());
  size_t hop = 0;
  for (int have = 1; have < size; have *= 2, ++hop) {
    messenger_.go_on_at(hop);
    const int passed_on = std::min(have, size - have);
    gatherer.expected = static_cast<size_t>(passed_on) * mine.size();
    if (hop > 0) {
      const auto headers = std::span(headers_).first(gatherer.expected);
      const size_t bytes = std::transform_reduce(headers.begin(), headers.end(), size_t{0}, std::plus<>(),
                                                 [](const BlockHeader& block) { return block.bytes; });
      messenger_.pack(headers, std::span(bytes_).first(bytes));
    }
    const int to = messenger_.rank_at(-have), from = messenger_.rank_at(have);
    messenger_.post(std::span(&to, 1));
    messenger_.begin_collect();
    messenger_.await(std::span(&from, 1), 1 + kHopPatience * static_cast<double>(hop), gatherer, passed_on);
  }
}

void Dissemination::append(std::span<const BlockHeader> headers, std::span<const std::byte> bytes) {
  headers_.insert(headers_.end(), headers.begin(), headers.end());
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void Dissemination::decode(std::span<const std::vector<InBlock>> blocks) {
  std::span<const std::byte> bytes(bytes_);
  for (int distance = 0; distance < messenger_.size(); ++distance) {
    const int giver = messenger_.rank_at(distance);
    const BlockHeader& header = headers_[static_cast<size_t>(distance)];
    messenger_.decode(giver, std::span(&header, 1), bytes, blocks[static_cast<size_t>(giver)]);
    bytes = bytes.subspan(header.bytes);
  }
}

}  // namespace modelet::comm
