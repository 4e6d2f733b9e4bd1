#include "comm/collectives/reductions.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"

namespace modelet::comm {
namespace {

// The most segments of an all-reduce by reduce-scatter: a tag must be able to count their hops.
constexpr size_t kMaxSegments = 32'000;

void copy(ConstMatrix from, Matrix to) {
  for (size_t r = 0; r < to.rows; ++r) std::copy_n(from.row(r), to.cols, to.row(r));
}

void add(ConstMatrix from, Matrix to) {
  for (size_t r = 0; r < to.rows; ++r)
    for (size_t c = 0; c < to.cols; ++c) to.row(r)[c] += from.row(r)[c];
}

}  // namespace

void Reductions::all_reduce_sum(Matrix values, const Codec& codec, Rounding rounding) {
  const Algorithm how =
      messenger_.algorithm(Operation::kAllReduce, codec.max_bytes(values.rows, values.cols));
  if (how == Algorithm::kReduceScatter) {
    all_reduce_by_reduce_scatter(values, codec, rounding);
    return;
  }
  receive_into_scratch(values);
  const OutBlock mine{&codec, values, rounding};
  if (how == Algorithm::kDissemination) {
    dissemination_.run(std::span(&mine, 1));
    dissemination_.decode(inbox_);
  } else {
    messenger_.send_to_all(std::span(&mine, 1));
    codec.decode(messenger_.packed().raw(), inbox(messenger_.own()));
    collect();
  }
  add_up(values);
}

void Reductions::reduce_scatter_sum(std::span<const OutBlock> shares, Matrix mine) {
  receive_into_scratch(mine);
  for (const int& rank : messenger_.others()) {
    messenger_.pack(shares.subspan(static_cast<size_t>(rank), 1));
    messenger_.post(std::span(&rank, 1));
  }
  copy(shares[messenger_.own()].values, inbox(messenger_.own()));
  collect();
  add_up(mine);
}

// Works on one segment of the matrix at a time, with two under way: while the shares of one segment travel,
// those of the next are encoded.
void Reductions::all_reduce_by_reduce_scatter(Matrix values, const Codec& codec, Rounding rounding) {
  const size_t bytes = values.rows * values.cols * sizeof(float), most = messenger_.options().segment_bytes;
  const size_t segments = std::clamp<size_t>((bytes + most - 1) / most, 1, kMaxSegments);
  const int rank = messenger_.rank();
  const auto shares_hop = [](size_t segment) { return 2 * segment; };
  // Between a segment's shares and its sums, the next segment's shares are sent.
  const auto sums_hop = [](size_t segment) { return 2 * segment + 3; };
  const auto send_shares = [&](size_t segment) {
    if (segment >= segments) return;
    messenger_.go_on_at(shares_hop(segment));
    for (const int& to : messenger_.others())
      send_share(share_of(values, segments, segment, to), codec, rounding, to, std::span(&to, 1));
  };
  send_shares(0);
  send_shares(1);
  for (size_t segment = 0; segment <= segments; ++segment) {
    if (segment < segments) {
      const Matrix mine = share_of(values, segments, segment, rank);
      receive_into_scratch(mine);
      copy(mine, inbox(messenger_.own()));
      messenger_.go_on_at(shares_hop(segment));
      collect();
      add_up(mine);
      messenger_.go_on_at(sums_hop(segment));
      send_share(mine, codec, rounding, rank, messenger_.others());
      codec.decode(messenger_.packed().raw(), mine);  // the sum as the others decode it
      send_shares(segment + 2);
    }
    if (segment > 0) {
      for (size_t r = 0; r < inbox_.size(); ++r)
        inbox_[r].assign(1, share_of(values, segments, segment - 1, static_cast<int>(r)));
      messenger_.go_on_at(sums_hop(segment - 1));
      collect();
    }
  }
}

void Reductions::send_share(ConstMatrix share, const Codec& codec, Rounding rounding, int of,
                            std::span<const int> to) {
  if (!rounding.to_nearest())
    rounding.seed = Rng(rounding.seed, {static_cast<uint64_t>(of), messenger_.hop()}).next();
  const OutBlock block{&codec, share, rounding};
  messenger_.pack(std::span(&block, 1));
  messenger_.post(to);
}

// A rank's share of a segment: rows of the matrix, or columns if there are fewer rows than shares of all
// segments. It may be empty.
Matrix Reductions::share_of(Matrix values, size_t segments, size_t segment, int rank) const {
  const bool rows = values.rows >= inbox_.size() * segments;
  const size_t length = rows ? values.rows : values.cols, shares = segments * inbox_.size();
  const size_t i = segment * inbox_.size() + static_cast<size_t>(rank);
  const size_t begin = length * i / shares, end = length * (i + 1) / shares;
  return rows ? values.row_range(begin, end - begin) : values.columns(begin, end - begin);
}

// Points inbox_ at one scratch matrix per rank, of the shape of `like`.
void Reductions::receive_into_scratch(ConstMatrix like) {
  const size_t values = like.rows * like.cols;
  const std::span<float> scratch = scratch_.reserve(inbox_.size() * values);
  for (size_t r = 0; r < inbox_.size(); ++r)
    inbox_[r].assign(1, Matrix{scratch.data() + r * values, like.rows, like.cols, like.cols});
}

void Reductions::collect() {
  messenger_.begin_collect();
  messenger_.collect(inbox_);
}

void Reductions::add_up(Matrix sum) const {
  copy(inbox(0), sum);
  for (size_t r = 1; r < inbox_.size(); ++r) add(inbox(r), sum);
}

}  // namespace modelet::comm
