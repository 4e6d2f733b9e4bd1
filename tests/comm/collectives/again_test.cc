// Connections that break while the members stay the same: what was lost is sent again, and no caller notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>

#include "base/rng.h"
#include "comm/messaging/outgoing.h"
#include "tests/comm/collectives/breaking_transport.h"
#include "tests/comm/groups.h"

namespace modelet::comm {
namespace {

using testing::BreakingTransport;
using testing::make_transports;
using testing::run_ranks;
using testing::TransportKind;

constexpr uint64_t kLeaving = 1000;  // the step of the last operation
const GroupOptions kOptions{.run = 1, .timeout_seconds = 60, .segment_bytes = 64};

// What a rank contributes to an operation; the same in every program.
std::vector<float> given(uint64_t operation, int rank, size_t values) {
  Rng rng(operation, {static_cast<uint64_t>(rank)});
  std::vector<float> given(values);
  for (float& value : given) value = rng.uniform() - 0.5f;
  return given;
}

Matrix row(std::vector<float>& values) { return {values.data(), 1, values.size(), values.size()}; }
ConstMatrix row(const std::vector<float>& values) { return {values.data(), 1, values.size(), values.size()}; }

// Uses everything that a group can do, with two exchanges of a kind under way at once. Returns all that this
// rank has received.
std::vector<float> program(Group& group, uint64_t steps) {
  const Codec& codec = codec_of(CodecKind::kNone);
  const size_t size = static_cast<size_t>(group.size());
  std::vector<float> heard;
  for (uint64_t step = 1; step <= steps; ++step) {
    uint16_t round = 0;
    const auto exchange = [&](const auto& send) {
      std::vector<std::vector<float>> theirs(2 * size, std::vector<float>(5));
      const uint16_t first = round;
      for (uint64_t i = 0; i < 2; ++i) send(Tag{step, round++}, step * 100 + i);
      for (size_t i = 0; i < 2; ++i) {
        std::vector<std::vector<InBlock>> from(size);
        for (size_t r = 0; r < size; ++r) from[r].push_back(row(theirs[i * size + r]));
        group.collect({step, static_cast<uint16_t>(first + i)}, from);
      }
      for (const auto& values : theirs) heard.insert(heard.end(), values.begin(), values.end());
    };
    exchange([&](Tag tag, uint64_t operation) {
      const std::vector<float> mine = given(operation, group.rank(), 5);
      const OutBlock block{&codec, row(mine)};
      group.send_all(tag, std::span(&block, 1));
    });
    exchange([&](Tag tag, uint64_t operation) {
      std::vector<std::vector<float>> mine;
      std::vector<std::vector<OutBlock>> to(size);
      for (size_t r = 0; r < size; ++r) mine.push_back(given(operation * size + r, group.rank(), 5));
      for (size_t r = 0; r < size; ++r) to[r].push_back({&codec, row(mine[r])});
      group.send_each(tag, to);
    });
    std::vector<float> sum = given(step, group.rank(), 100);
    group.all_reduce_sum({step, round++}, row(sum), codec);
    group.barrier({step, round++});
    heard.insert(heard.end(), sum.begin(), sum.end());
  }
  group.say_farewell({kLeaving});
  group.await_farewells(0.2);
  return heard;
}

using Heard = std::vector<std::vector<float>>;  // [rank]

Heard play(std::vector<std::unique_ptr<Group>>& groups, uint64_t steps) {
  Heard heard(groups.size());
  run_ranks(groups, [&](Group& group) { heard[static_cast<size_t>(group.rank())] = program(group, steps); });
  return heard;
}

struct Case {
  int ranks = 2;
  std::optional<Algorithm> algorithm = {};
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.ranks << " ranks"; }

class Again : public ::testing::TestWithParam<Case> {
 protected:
  Heard play_with(const std::function<bool(int rank, uint64_t number, int to)>& breaks, uint64_t steps) {
    GroupOptions options = kOptions;
    options.algorithm = GetParam().algorithm;
    std::vector<std::unique_ptr<Group>> groups;
    for (auto& transport : make_inproc_transports(GetParam().ranks)) {
      auto breaking = std::make_unique<BreakingTransport>(
          std::move(transport),
          [&, rank = transport->rank()](uint64_t n, int to) { return breaks(rank, n, to); });
      groups.push_back(std::make_unique<Group>(std::move(breaking), options));
    }
    Heard heard = play(groups, steps);
    sent_ = again_ = 0;
    for (const PeerMeter& peer : groups[0]->meters().peers) sent_ += peer.messages_sent;
    for (const auto& group : groups)
      for (const PeerMeter& peer : group->meters().peers) again_ += peer.messages_sent_again;
    return heard;
  }
  uint64_t sent_ = 0, again_ = 0;  // by rank 0; by all
};

// Loses each message in turn, also those with which a rank leaves.
TEST_P(Again, EachMessageLost) {
  constexpr uint64_t kSteps = 2;
  const Heard undisturbed = play_with([](int, uint64_t, int) { return false; }, kSteps);
  EXPECT_EQ(again_, 0u);
  const uint64_t messages = sent_, of_leaving = static_cast<uint64_t>(GetParam().ranks - 1);
  for (uint64_t lost = 0; lost < messages; ++lost) {
    const auto breaks = [&](int rank, uint64_t number, int) { return rank == 0 && number == lost; };
    ASSERT_EQ(play_with(breaks, kSteps), undisturbed) << "message " << lost << " of " << messages;
    if (lost + of_leaving < messages) {
      EXPECT_GT(again_, 0u) << "message " << lost << " of " << messages;
    }
  }
}

TEST_P(Again, ManyMessagesLostEverywhere) {
  constexpr uint64_t kSteps = 20;
  const Heard undisturbed = play_with([](int, uint64_t, int) { return false; }, kSteps);
  const auto breaks = [&](int rank, uint64_t number, int to) {
    return Rng(number, {static_cast<uint64_t>(rank), static_cast<uint64_t>(to)}).uniform() < 0.05f;
  };
  EXPECT_EQ(play_with(breaks, kSteps), undisturbed);
  EXPECT_GT(again_, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    All, Again,
    ::testing::Values(Case{2}, Case{3, Algorithm::kDirect}, Case{3, Algorithm::kDissemination},
                      Case{5, Algorithm::kReduceScatter}),
    [](const auto& instance) {
      return std::to_string(instance.param.ranks) + "Ranks" +
             (instance.param.algorithm ? std::to_string(static_cast<int>(*instance.param.algorithm)) : "");
    });

// In a grid, rows and columns share the connections of the whole group, and both keep what they have sent.
TEST(AgainInAGrid, RowsAndColumns) {
  constexpr int kRows = 2, kColumns = 2;
  const auto play_grid = [&](bool breaks) {
    std::vector<std::unique_ptr<Group>> groups;
    for (auto& transport : make_inproc_transports(kRows * kColumns)) {
      const auto at = [breaks](uint64_t number, int) { return breaks && number % 7 == 3; };
      groups.push_back(
          std::make_unique<Group>(std::make_unique<BreakingTransport>(std::move(transport), at), kOptions));
    }
    Heard heard(groups.size());
    run_ranks(groups, [&](Group& whole) {
      const Grid grid = whole.grid(kRows);
      std::vector<float>& all = heard[static_cast<size_t>(whole.rank())];
      for (uint64_t step = 1; step <= 40; ++step) {
        std::vector<float> sum = given(step, whole.rank(), 3);
        grid.row->all_reduce_sum({step}, row(sum), codec_of(CodecKind::kNone));
        if (step % 5 == 0) grid.column->all_reduce_sum({step}, row(sum), codec_of(CodecKind::kNone));
        all.insert(all.end(), sum.begin(), sum.end());
      }
      for (Group* line : {grid.row.get(), grid.column.get()}) line->say_farewell({kLeaving});
      for (Group* line : {grid.row.get(), grid.column.get()}) line->await_farewells();
    });
    return heard;
  };
  EXPECT_EQ(play_grid(true), play_grid(false));
}

// Rank 0 waits for nothing after its last message, which is lost.
TEST(AgainAtTheEnd, ARankStaysUntilItsLastMessageHasArrived) {
  GroupOptions options = kOptions;
  options.timeout_seconds = 5;
  std::vector<std::unique_ptr<Group>> groups;
  for (auto& transport : make_inproc_transports(2)) {
    const auto at = [rank = transport->rank()](uint64_t number, int) { return rank == 0 && number == 0; };
    groups.push_back(
        std::make_unique<Group>(std::make_unique<BreakingTransport>(std::move(transport), at), options));
  }
  std::vector<float> heard(3);
  run_ranks(groups, [&](Group& group) {
    const std::vector<float> mine = given(1, group.rank(), heard.size());
    const OutBlock block{&codec_of(CodecKind::kNone), row(mine)};
    group.send_all({1}, std::span(&block, 1));
    if (group.rank() == 1) {
      std::vector<std::vector<InBlock>> from(2);
      from[0].push_back(row(heard));
      group.collect({1}, from);
    }
    group.say_farewell({2});
    group.await_farewells();
  });
  EXPECT_EQ(heard, given(1, 0, heard.size()));
}

TEST(Unconfirmed, KeepsWhatAPeerMayNeed) {
  Unconfirmed unconfirmed(2);
  const RecycledPtr<Message> message(std::make_unique<Message>());
  for (uint64_t step = 0; step < 4; ++step)
    for (const uint16_t round : {0, 1}) unconfirmed.add(1, {step, round}, message);
  unconfirmed.confirm(1, {2, 1});
  ASSERT_EQ(unconfirmed.to(1).size(), 3u);
  EXPECT_EQ(unconfirmed.to(1)[0].tag, (Tag{2, 1}));
  unconfirmed.confirm(1, {1, 0});  // an older message that is late
  EXPECT_EQ(unconfirmed.to(1).size(), 3u);
  EXPECT_TRUE(unconfirmed.to(0).empty());
  // The memory stays bounded, however long a peer is silent.
  for (uint64_t step = 4; step < 10'000; ++step) unconfirmed.add(1, {step}, message);
  EXPECT_LE(unconfirmed.to(1).size(), 1024u);
  EXPECT_EQ(unconfirmed.to(1).back().tag, (Tag{9'999}));
}

// ---- real connections

// Resets a random connection of this process, as the machine of a peer would: data that was not read yet is
// lost.
bool reset_one(Rng& rng) {
  std::vector<int> connections;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.ss_family == AF_INET)
      connections.push_back(fd);
  }
  if (connections.empty()) return false;
  const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
  return ::connect(connections[rng.below(static_cast<uint32_t>(connections.size()))], &nobody,
                   sizeof nobody) == 0;
}

class AgainOverSockets : public ::testing::TestWithParam<TransportKind> {};

uint64_t sent_again(const Group& group) {
  uint64_t again = 0;
  for (const PeerMeter& peer : group.meters().peers) again += peer.messages_sent_again;
  return again;
}

// Rows are long, so that connections break in the middle of messages. Ends after a number of resets, of which
// one at least has cost a message, however long that takes.
TEST_P(AgainOverSockets, ResetsChangeNothing) {
  constexpr size_t kRanks = 3, kValues = 60'000;
  constexpr int kResets = 20;
  GroupOptions options = kOptions;
  options.segment_bytes = size_t{1} << 20;
  options.timeout_seconds = 120;
  auto groups = testing::make_groups(GetParam(), kRanks, options);
  std::atomic<uint64_t> step_of_first{0};
  std::atomic<bool> was_sent_again{false}, is_quiet{false};
  std::thread saboteur([&] {
    Rng rng(1);
    for (int i = 0; i < kResets || !was_sent_again;) {
      const uint64_t before = step_of_first;
      if (reset_one(rng)) ++i;
      while (step_of_first < before + 3)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // wait until the groups have recovered
    }
    is_quiet = true;
  });
  run_ranks(groups, [&](Group& group) {
    float stop = 0;
    for (uint64_t step = 1; stop == 0; ++step) {
      std::vector<float> sum = given(step, group.rank(), kValues), expected(kValues);
      for (int rank = 0; rank < group.size(); ++rank) {
        const std::vector<float> its = given(step, rank, kValues);
        for (size_t i = 0; i < kValues; ++i) expected[i] += its[i];
      }
      group.all_reduce_sum({step}, row(sum), codec_of(CodecKind::kNone));
      ASSERT_EQ(sum, expected) << "in step " << step;
      if (sent_again(group) > 0) was_sent_again = true;
      stop = group.rank() == 0 && is_quiet ? 1.0f : 0.0f;
      group.all_reduce_sum({step, 1}, {&stop, 1, 1, 1}, codec_of(CodecKind::kNone));
      if (group.rank() == 0) step_of_first = step;
    }
  });
  saboteur.join();
}

INSTANTIATE_TEST_SUITE_P(All, AgainOverSockets, ::testing::Values(TransportKind::kZmq, TransportKind::kCurve),
                         [](const auto& instance) { return testing::name_of(instance.param); });

}  // namespace
}  // namespace modelet::comm
