// Every collective on every transport, for every number of ranks, codec and shape, compared with a plain copy
// or sum.
#include "comm/collectives/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "tests/comm/groups.h"

namespace modelet::comm {
namespace {

using testing::make_groups;
using testing::run_ranks;
using testing::TransportKind;

struct Shape {
  size_t rows, cols;
};
constexpr Shape kShapes[] = {{0, 0}, {1, 1}, {3, 0}, {5, 33}, {64, 128}};

// The values that rank `from` sends to rank `to` in a step (to all: to = 0). Every rank can compute them.
std::vector<float> block(Shape shape, int from, int to, uint64_t step) {
  Rng rng(9, {static_cast<uint64_t>(from), static_cast<uint64_t>(to), step});
  std::vector<float> values(shape.rows * shape.cols);
  for (float& value : values) value = rng.normal();
  return values;
}

ConstMatrix view(const std::vector<float>& values, Shape shape) {
  return {values.data(), shape.rows, shape.cols, shape.cols};
}
Matrix view(std::vector<float>& values, Shape shape) {
  return {values.data(), shape.rows, shape.cols, shape.cols};
}

std::vector<float> as_decoded(const Codec& codec, const std::vector<float>& values, Shape shape,
                              Rounding rounding) {
  std::vector<std::byte> bytes(codec.max_bytes(shape.rows, shape.cols));
  bytes.resize(codec.encode(view(values, shape), rounding, bytes));
  std::vector<float> decoded(values.size());
  codec.decode(bytes, view(decoded, shape));
  return decoded;
}

class Collectives : public ::testing::TestWithParam<std::tuple<TransportKind, int, bool>> {
 protected:
  int size() const { return std::get<1>(GetParam()); }
  size_t count() const { return static_cast<size_t>(size()); }

  // Runs `body(group, codec, shape, step)` for all codecs and shapes on all ranks.
  void run(const std::function<void(Group&, const Codec&, Shape, uint64_t)>& body) {
    auto groups = make_groups(std::get<0>(GetParam()), size(), {.run = 5, .lz4 = std::get<2>(GetParam())});
    run_ranks(groups, [&](Group& group) {
      uint64_t step = 0;
      for (const Codec* codec : all_codecs())
        for (const Shape shape : kShapes) body(group, *codec, shape, step++);
      group.barrier({step});
    });
  }
};

TEST_P(Collectives, AllGatherGivesEveryRankEveryBlock) {
  run([&](Group& group, const Codec& codec, Shape shape, uint64_t step) {
    const Shape second{shape.cols, shape.rows};
    const std::vector<float> mine = block(shape, group.rank(), 0, step);
    const OutBlock out[] = {{&codec, view(mine, shape), {7}},
                            {.bytes = std::as_bytes(std::span(mine))},
                            {&codec_of(CodecKind::kNone), view(mine, second)}};
    std::vector<std::vector<float>> got(2 * count(), std::vector<float>(mine.size(), -77)), bytes = got;
    std::vector<std::vector<InBlock>> in(count());
    for (size_t r = 0; r < count(); ++r)
      in[r] = {view(got[2 * r], shape), std::as_writable_bytes(std::span(bytes[r])),
               view(got[2 * r + 1], second)};
    group.all_gather({step}, out, in);
    for (int r = 0; r < size(); ++r) {
      if (r == group.rank()) continue;
      const std::vector<float> sent = block(shape, r, 0, step);
      EXPECT_EQ(got[2 * static_cast<size_t>(r)], as_decoded(codec, sent, shape, {7}));
      EXPECT_EQ(got[2 * static_cast<size_t>(r) + 1], sent);
      EXPECT_EQ(bytes[static_cast<size_t>(r)], sent);
    }
  });
}

TEST_P(Collectives, AllToAllGivesEachRankItsOwn) {
  run([&](Group& group, const Codec& codec, Shape shape, uint64_t step) {
    std::vector<std::vector<float>> sent(count()),
        got(count(), std::vector<float>(shape.rows * shape.cols, -77));
    std::vector<std::vector<OutBlock>> to(count());
    std::vector<std::vector<InBlock>> from(count());
    for (size_t r = 0; r < count(); ++r) {
      sent[r] = block(shape, group.rank(), static_cast<int>(r), step);
      // The first rank sends nothing to the last: empty messages are allowed.
      if (r + 1 < count() || group.rank() != 0) to[r] = {{&codec, view(sent[r], shape), {r}}};
      if (r != 0 || group.rank() + 1 < size()) from[r] = {view(got[r], shape)};
    }
    group.all_to_all({step}, to, from);
    for (int r = 0; r < size(); ++r) {
      if (r == group.rank() || from[static_cast<size_t>(r)].empty()) continue;
      EXPECT_EQ(got[static_cast<size_t>(r)], as_decoded(codec, block(shape, r, group.rank(), step), shape,
                                                        {static_cast<uint64_t>(group.rank())}));
    }
  });
}

// The most by which a codec may change a value, as a share of the largest value of its row.
float step_of(const Codec& codec) {
  switch (codec.kind()) {
    case CodecKind::kNone:
      return 0;
    case CodecKind::kInt4:
      return 0.15f;
    default:
      return 0.01f;
  }
}

// Exchanges in two halves: all are begun before the first is collected.
TEST_P(Collectives, SeveralExchangesUnderWay) {
  run([&](Group& group, const Codec& codec, Shape shape, uint64_t step) {
    constexpr uint16_t kExchanges = 4;
    for (uint16_t i = 0; i < kExchanges; ++i) {
      const std::vector<float> mine = block(shape, group.rank(), i, step);
      const OutBlock out[] = {{&codec, view(mine, shape), {7}}};
      const std::vector<std::vector<OutBlock>> to(count(), std::vector<OutBlock>(out, out + 1));
      if (i % 2 == 0)
        group.send_all({step, i}, out);
      else
        group.send_each({step, i}, to);
    }
    for (uint16_t i = 0; i < kExchanges; ++i) {
      std::vector<std::vector<float>> got(count(), std::vector<float>(shape.rows * shape.cols));
      std::vector<std::vector<InBlock>> from(count());
      for (size_t r = 0; r < count(); ++r) from[r] = {view(got[r], shape)};
      group.collect({step, i}, from);
      for (int r = 0; r < size(); ++r) {
        if (r == group.rank()) continue;
        ASSERT_EQ(got[static_cast<size_t>(r)], as_decoded(codec, block(shape, r, i, step), shape, {7}));
      }
    }
  });
}

TEST_P(Collectives, AllReduceGivesAllRanksTheSameSum) {
  // Results by rank and step. Each rank writes only its own entries.
  std::vector<std::vector<std::vector<float>>> results(count());
  run([&](Group& group, const Codec& codec, Shape shape, uint64_t step) {
    std::vector<float> values = block(shape, group.rank(), 0, step);
    std::vector<float> expected(values.size()), error(shape.rows);
    for (int r = 0; r < size(); ++r) {
      const std::vector<float> of_rank = block(shape, r, 0, step);
      for (size_t i = 0; i < of_rank.size(); ++i) expected[i] += of_rank[i];
      for (size_t row = 0; row < shape.rows; ++row) {
        float max = 0;
        for (size_t c = 0; c < shape.cols; ++c) max = std::max(max, std::abs(of_rank[row * shape.cols + c]));
        error[row] += size() == 1 ? 0 : max * step_of(codec);
      }
    }
    group.all_reduce_sum({step}, view(values, shape), codec, {7});
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_LE(std::abs(values[i] - expected[i]), error[i / shape.cols]) << codec.name();
    results[static_cast<size_t>(group.rank())].push_back(values);
  });
  for (size_t r = 1; r < count(); ++r) EXPECT_EQ(results[r], results[0]) << "bits differ between ranks";
}

TEST_P(Collectives, ReduceScatterGivesEachRankTheSumOfItsShare) {
  run([&](Group& group, const Codec& codec, Shape shape, uint64_t step) {
    // The shares are columns of one matrix, cut unevenly: rank r owns shape.cols + r columns.
    const auto share_shape = [&](int r) { return Shape{shape.rows, shape.cols + static_cast<size_t>(r)}; };
    std::vector<std::vector<float>> values(count());
    std::vector<OutBlock> shares(count());
    for (int r = 0; r < size(); ++r) {
      const auto i = static_cast<size_t>(r);
      values[i] = block(share_shape(r), group.rank(), r, step);
      shares[i] = {&codec, view(values[i], share_shape(r)), {7}};
    }
    const Shape own = share_shape(group.rank());
    std::vector<float> sum(own.rows * own.cols, -77), expected(sum.size()), error(own.rows);
    for (int r = 0; r < size(); ++r) {
      const std::vector<float> of_rank = block(own, r, group.rank(), step);
      for (size_t i = 0; i < of_rank.size(); ++i) {
        expected[i] += of_rank[i];
        error[i / own.cols] = std::max(error[i / own.cols], std::abs(of_rank[i]));
      }
    }
    group.reduce_scatter_sum({step}, shares, view(sum, own));
    const float factor = size() == 1 ? 0 : static_cast<float>(size()) * step_of(codec);
    for (size_t i = 0; i < sum.size(); ++i)
      ASSERT_LE(std::abs(sum[i] - expected[i]), factor * error[i / own.cols]) << codec.name();
  });
}

TEST_P(Collectives, MetersCountWhatTravels) {
  auto groups = make_groups(std::get<0>(GetParam()), size(), {.run = 5, .lz4 = std::get<2>(GetParam())});
  const Shape shape{10, 100};
  run_ranks(groups, [&](Group& group) {
    std::vector<float> values(1000, 1.0f);
    group.all_reduce_sum({1}, view(values, shape), codec_of(CodecKind::kNone));
  });
  uint64_t sent = 0, received = 0;
  for (const auto& group : groups) {
    const Meters& meters = group->meters();
    sent += meters.bytes_sent();
    received += meters.bytes_received();
    EXPECT_EQ(meters.raw_bytes, (count() - 1) * 4000);
    EXPECT_EQ(meters.dropped_messages, 0u);
    EXPECT_EQ(meters.peers[static_cast<size_t>(group->rank())].messages_sent, 0u);
    const bool lz4 = std::get<2>(GetParam());
    for (size_t r = 0; r < count(); ++r) {
      if (r == static_cast<size_t>(group->rank())) continue;
      EXPECT_EQ(meters.peers[r].messages_sent, 1u);
      EXPECT_EQ(meters.peers[r].messages_received, 1u);
      EXPECT_EQ(meters.peers[r].bytes_sent < 1000, lz4);
      EXPECT_EQ(meters.peers[r].bytes_sent > 4000, !lz4);
    }
  }
  EXPECT_EQ(sent, received);
}

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         ::testing::Combine(::testing::Values(TransportKind::kInproc, TransportKind::kZmq,
                                                              TransportKind::kCurve),
                                            ::testing::Values(1, 2, 3, 4), ::testing::Bool()),
                         [](const auto& test) {
                           return testing::name_of(std::get<0>(test.param)) +
                                  std::to_string(std::get<1>(test.param)) +
                                  (std::get<2>(test.param) ? "Lz4" : "");
                         });

// ---- algorithms of all-reduce and barrier, forced

constexpr const char* kNames[] = {"Direct", "Dissemination", "ReduceScatter"};

class AllReduceAlgorithms : public ::testing::TestWithParam<std::tuple<TransportKind, int, Algorithm>> {
 protected:
  int size() const { return std::get<1>(GetParam()); }
  size_t count() const { return static_cast<size_t>(size()); }
  Algorithm algorithm() const { return std::get<2>(GetParam()); }
  GroupOptions options() const {
    return {.run = 5, .algorithm = algorithm(), .segment_bytes = 16 << 10};  // several segments of kLarge
  }

  // The result of each rank from the last of three calls, with barriers between them: leftovers of one
  // operation would disturb the next.
  std::vector<std::vector<float>> all_reduce(Shape shape, CodecKind codec) {
    auto groups = make_groups(std::get<0>(GetParam()), size(), options());
    std::vector<std::vector<float>> results(count());
    run_ranks(groups, [&](Group& group) {
      for (uint64_t step = 1; step <= 3; ++step) {
        std::vector<float>& values = results[static_cast<size_t>(group.rank())];
        values = block(shape, group.rank(), 0, 0);
        group.all_reduce_sum({step, 1}, view(values, shape), codec_of(codec));
        group.barrier({step, 2});
      }
      EXPECT_EQ(group.meters().dropped_messages, 0u);
    });
    return results;
  }
};

constexpr Shape kLarge = {130, 257};
constexpr Shape kReduced[] = {{1, 1}, {2, 3}, {1, 5000}, {64, 128}, kLarge};

TEST_P(AllReduceAlgorithms, ExactSumsAreThoseInRankOrderToTheBit) {
  for (const Shape shape : kReduced) {
    std::vector<float> expected = block(shape, 0, 0, 0);
    for (int r = 1; r < size(); ++r) {
      const std::vector<float> of_rank = block(shape, r, 0, 0);
      for (size_t i = 0; i < of_rank.size(); ++i) expected[i] += of_rank[i];
    }
    for (const std::vector<float>& result : all_reduce(shape, CodecKind::kNone))
      EXPECT_EQ(result, expected) << shape.rows << " x " << shape.cols;
  }
}

// int8 rounds each contribution by less than a step of its row, which is 1/127 of the largest value. An
// all-reduce by reduce-scatter also rounds the sum.
TEST_P(AllReduceAlgorithms, LossySumsAreTheSameEverywhereAndNearTheExactOne) {
  for (const Shape shape : kReduced) {
    std::vector<float> expected(shape.rows * shape.cols), largest(shape.rows);
    for (int r = 0; r < size(); ++r) {
      const std::vector<float> of_rank = block(shape, r, 0, 0);
      for (size_t i = 0; i < of_rank.size(); ++i) {
        expected[i] += of_rank[i];
        largest[i / shape.cols] = std::max(largest[i / shape.cols], std::abs(of_rank[i]));
      }
    }
    const auto results = all_reduce(shape, CodecKind::kInt8);
    const float factor = static_cast<float>(2 * size()) * step_of(codec_of(CodecKind::kInt8));
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_LE(std::abs(results[0][i] - expected[i]), factor * largest[i / shape.cols]);
    for (const std::vector<float>& result : results) EXPECT_EQ(result, results[0]);
  }
}

// The costs are those of the table in docs/wire_format.md.
TEST_P(AllReduceAlgorithms, CostsWhatTheTableSays) {
  auto groups = make_groups(std::get<0>(GetParam()), size(), options());
  const Shape shape{count() * 8, 16};  // one segment; divides evenly
  run_ranks(groups, [&](Group& group) {
    std::vector<float> values = block(shape, group.rank(), 0, 0);
    group.all_reduce_sum({1}, view(values, shape), codec_of(CodecKind::kNone));
  });
  const uint64_t others = count() - 1, matrix = shape.rows * shape.cols * sizeof(float);
  const bool reduce_scatter = algorithm() == Algorithm::kReduceScatter;
  const uint64_t messages = reduce_scatter                             ? 2 * others
                            : algorithm() == Algorithm::kDissemination ? std::bit_width(others)
                                                                       : others;
  for (const auto& group : groups) {
    uint64_t sent = 0;
    for (const PeerMeter& peer : group->meters().peers) sent += peer.messages_sent;
    EXPECT_EQ(sent, messages);
    EXPECT_EQ(group->meters().raw_bytes, reduce_scatter ? 2 * others * matrix / count() : others * matrix);
  }
}

// A barrier holds all ranks back until the last one has come.
TEST_P(AllReduceAlgorithms, NobodyPassesABarrierBeforeAllHaveCome) {
  auto groups = make_groups(std::get<0>(GetParam()), size(), options());
  std::atomic<int> come{0};
  run_ranks(groups, [&](Group& group) {
    for (uint64_t step = 1; step <= 20; ++step) {
      ++come;
      group.barrier({step});
      EXPECT_GE(come, static_cast<int>(step) * size());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, AllReduceAlgorithms,
                         ::testing::Combine(::testing::Values(TransportKind::kInproc, TransportKind::kZmq),
                                            ::testing::Values(2, 3, 4, 5, 8),
                                            ::testing::Values(Algorithm::kDirect, Algorithm::kDissemination,
                                                              Algorithm::kReduceScatter)),
                         [](const auto& test) {
                           return testing::name_of(std::get<0>(test.param)) +
                                  std::to_string(std::get<1>(test.param)) +
                                  kNames[static_cast<size_t>(std::get<2>(test.param))];
                         });

TEST(Algorithms, ADeadRankIsNamedByWhoWaitsForIt) {
  constexpr int kSize = 5, kDead = 4;
  for (const Algorithm algorithm :
       {Algorithm::kDirect, Algorithm::kDissemination, Algorithm::kReduceScatter}) {
    auto groups =
        testing::make_groups(TransportKind::kInproc, kSize, {.timeout_seconds = 3, .algorithm = algorithm});
    std::atomic<int> named{0};
    run_ranks(groups, [&](Group& group) {
      if (group.rank() == kDead) return;
      float value = 1;
      try {
        group.all_reduce_sum({1}, {&value, 1, 1, 1}, codec_of(CodecKind::kNone));
        ADD_FAILURE() << "rank " << group.rank() << " did not miss rank " << kDead;
      } catch (const PeerError& error) {
        // A rank that waits for another one says that this one may wait itself.
        if (std::string(error.what()).find("no message from rank 4 within") == 0)
          ++named;
        else
          EXPECT_THAT(error.what(), ::testing::HasSubstr("for which it waits itself"));
      }
    });
    EXPECT_GE(named, algorithm == Algorithm::kDissemination ? 1 : kSize - 1);
  }
}

class Grids : public ::testing::TestWithParam<TransportKind> {};

// Rows and columns are used at once, over the same links. Messages reach the group that they are for,
// although a message may be several operations of the other group late.
TEST_P(Grids, RowsAndColumnsSumUpByThemselves) {
  for (const auto& [rows, columns] : {std::pair(2, 2), {3, 2}, {2, 3}, {1, 3}, {4, 1}}) {
    auto groups = make_groups(GetParam(), rows * columns, {.run = 5});
    run_ranks(groups, [&, rows = rows, columns = columns](Group& whole) {
      const Grid grid = whole.grid(rows);
      ASSERT_EQ(grid.row->size(), columns);
      ASSERT_EQ(grid.column->size(), rows);
      ASSERT_EQ(grid.row->rank(), whole.rank() % columns);
      ASSERT_EQ(grid.column->rank(), whole.rank() / columns);
      const auto sum = [&](Group& group, uint64_t step) {
        float value = static_cast<float>(whole.rank());
        group.all_reduce_sum({step}, {&value, 1, 1, 1}, codec_of(CodecKind::kNone));
        return value;
      };
      const int row = whole.rank() / columns, column = whole.rank() % columns;
      for (uint64_t step = 1; step < 200; ++step) {
        const int in_row = columns * (row * columns) + columns * (columns - 1) / 2;
        ASSERT_EQ(sum(*grid.row, step), static_cast<float>(in_row));
        if (step % 7 != 0) continue;
        const int in_column = rows * column + columns * rows * (rows - 1) / 2;
        ASSERT_EQ(sum(*grid.column, step), static_cast<float>(in_column));
      }
      grid.column->barrier({1000});
      grid.row->barrier({1000});
    });
  }
}

TEST_P(Grids, EndWithTheWhole) {
  auto groups = make_groups(GetParam(), 2, {.timeout_seconds = 60});
  const Grid grid = groups[0]->grid(2);
  grid.row->barrier({1});  // of one
  groups[0]->interrupt("stopped by the user");
  EXPECT_THROW(grid.row->barrier({2}), Interrupted);
  EXPECT_THROW(grid.column->barrier({2}), Interrupted);
}

// The ranks of a column have more patience, and are reported by their numbers in the whole.
TEST_P(Grids, SayWhomTheyMissAndFind) {
  std::binary_semaphore missed(0);
  std::vector<int> lost, found;
  GroupOptions options{.timeout_seconds = 60, .missing_seconds = 0.02, .column_patience = 2};
  auto transports = make_transports(GetParam(), 4, options);
  std::vector<std::unique_ptr<Group>> groups;
  for (int rank = 0; rank < 4; ++rank) {
    GroupOptions own = options;
    if (rank == 1) {
      own.on_missing = [&](int peer, const std::string&) {
        lost.push_back(peer);
        missed.release();
      };
      own.on_found = [&](int peer) { found.push_back(peer); };
    }
    groups.push_back(std::make_unique<Group>(std::move(transports[static_cast<size_t>(rank)]), own));
  }
  const Grid waits = groups[1]->grid(2), late = groups[3]->grid(2);
  std::jthread other([&] {
    missed.acquire();
    late.column->barrier({1});
  });
  waits.column->barrier({1});
  other.join();
  EXPECT_EQ(lost, std::vector<int>{3});
  EXPECT_EQ(found, std::vector<int>{3});
}

// While one rank waits for a peer in its row, the rank would be missed; in its column it is not yet.
TEST_P(Grids, HaveMorePatienceInColumns) {
  GroupOptions options{.timeout_seconds = 0.05, .missing_seconds = 0.02, .column_patience = 1e4};
  bool is_missed = false;
  auto transports = make_transports(GetParam(), 2, options);
  Group late(std::move(transports[1]), options);
  options.on_missing = [&](int, const std::string&) { is_missed = true; };
  Group waits(std::move(transports[0]), options);
  const Grid patient = waits.grid(2), other = late.grid(2);
  std::jthread thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    other.column->barrier({1});
  });
  EXPECT_NO_THROW(patient.column->barrier({1}));
  thread.join();
  EXPECT_FALSE(is_missed);
}

TEST_P(Grids, NameMissingNodes) {
  auto groups = make_groups(GetParam(), 4, {.timeout_seconds = 0.05, .node_names = {"a", "b", "c", "d"}});
  const Grid grid = groups[1]->grid(2);
  const auto missing = [](Group& group) {
    try {
      group.barrier({1});
    } catch (const PeerError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(missing(*grid.row), ::testing::HasSubstr("rank 0 (node a)"));
  EXPECT_THAT(missing(*grid.column), ::testing::HasSubstr("rank 1 (node d)"));
}

INSTANTIATE_TEST_SUITE_P(Transports, Grids,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kZmq,
                                           TransportKind::kCurve),
                         [](const auto& test) { return testing::name_of(test.param); });

TEST(SoloGroup, OperationsAreTrivial) {
  const auto group = make_solo_group();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  std::vector<float> values = {1.1f, 2.3f};
  group->all_reduce_sum({1}, {values.data(), 1, 2, 2}, codec_of(CodecKind::kInt8));
  EXPECT_EQ(values, (std::vector<float>{1.1f, 2.3f}));
  group->barrier({2});
}

TEST(InprocGroups, AreConnected) {
  auto groups = make_inproc_groups(3, {});
  run_ranks(groups, [](Group& group) { group.barrier({1}); });
}

TEST(Tags, GrowByStepThenRoundThenHop) {
  EXPECT_LT((Tag{1, 9, 9}), (Tag{2, 0, 0}));
  EXPECT_LT((Tag{1, 1, 9}), (Tag{1, 2, 0}));
  EXPECT_LT((Tag{1, 1, 1}), (Tag{1, 1, 2}));
  EXPECT_EQ((Tag{1, 2}).later(3), (Tag{1, 5}));
}

}  // namespace
}  // namespace modelet::comm
