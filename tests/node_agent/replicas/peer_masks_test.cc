// Masks cancel in the sum over all peers, and only there.
#include "node_agent/replicas/peer_masks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/comm/groups.h"
#include "tests/error_of.h"
#include "tests/node_agent/ranks.h"

namespace modelet::agent::testing {
namespace {

constexpr size_t kWords = 5000;  // more than are made at once, and no multiple of a block
constexpr uint32_t kSecret = 7;  // what peer 0 has in all words

// What each of `size` peers sends: its numbers and its masks, at this place of stream 0.
template <class Word>
std::vector<std::vector<Word>> sent_by(int size, uint64_t block = 0) {
  std::vector<std::vector<Word>> sent(static_cast<size_t>(size), std::vector<Word>(kWords, 0));
  sent[0].assign(kWords, kSecret);
  auto groups = make_groups(size);
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    PeerMasks masks(group, {.step = 1});
    EXPECT_EQ(masks.next(), 0u);
    EXPECT_EQ(masks.next(), 1u);
    masks.add(0, block, std::span(sent[static_cast<size_t>(group.rank())]), ReplicaSet(static_cast<size_t>(size), 1));
  });
  return sent;
}

template <class Word>
std::vector<Word> sum_of(const std::vector<std::vector<Word>>& sent, const std::vector<size_t>& peers) {
  std::vector<Word> sum(kWords, 0);
  for (const size_t peer : peers)
    for (size_t i = 0; i < kWords; ++i) sum[i] += sent[peer][i];
  return sum;
}

// Of a uniformly random number half of the bits are set; here within six standard deviations.
template <class Word>
void expect_uniform(const std::vector<Word>& words) {
  const double bits = static_cast<double>(words.size() * sizeof(Word) * 8);
  double set = 0;
  for (const Word word : words) set += std::popcount(word);
  EXPECT_NEAR(set / bits, 0.5, 3 / std::sqrt(bits));
  for (size_t i = 1; i < words.size(); ++i) ASSERT_FALSE(words[i] == words[0] && words[i] == words[i - 1]);
}

TEST(PeerMasks, CancelInTheSum) {
  for (const int size : {2, 3, 5}) {
    std::vector<size_t> all;
    for (size_t peer = 0; peer < static_cast<size_t>(size); ++peer) all.push_back(peer);
    const auto sent = sent_by<uint32_t>(size);
    EXPECT_EQ(sum_of(sent, all), std::vector<uint32_t>(kWords, kSecret));
    const auto long_words = sent_by<uint64_t>(size, 12);
    EXPECT_EQ(sum_of(long_words, all), std::vector<uint64_t>(kWords, kSecret));
    for (const auto& words : sent) expect_uniform(words);
    for (const auto& words : long_words) expect_uniform(words);
  }
}

// Two peers put together all that they know: what they have sent, which are their masks, and what the others sent. As
// long as one of the others is honest, what is left of peer 0 is uniformly random.
TEST(PeerMasks, TwoThatColludeLearnNothing) {
  const auto sent = sent_by<uint32_t>(4);
  for (const std::vector<size_t>& known : {std::vector<size_t>{0}, {0, 1}, {0, 1, 2}, {0, 3}})
    expect_uniform(sum_of(sent, known));
}

// The masks of a sum over some peers are those that these have with each other.
TEST(PeerMasks, CancelInASumOverSome) {
  const ReplicaSet some = {1, 0, 1, 1};
  std::vector<std::vector<uint32_t>> sent(4, std::vector<uint32_t>(kWords, 0));
  sent[0].assign(kWords, kSecret);
  auto groups = make_groups(4);
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    const PeerMasks masks(group, {.step = 1});
    if (const auto self = static_cast<size_t>(group.rank()); some[self] != 0) masks.add(0, 0, std::span(sent[self]), some);
  });
  EXPECT_EQ(sum_of(sent, {0, 2, 3}), std::vector<uint32_t>(kWords, kSecret));
  expect_uniform(sum_of(sent, {0, 2}));
  expect_uniform(sum_of(sent, {0}));
}

// Each of three peers with its key, as it says, the last one perhaps with the secret key of another.
std::vector<std::vector<uint32_t>> sent_by_agents(const std::vector<comm::KeyPair>& keys, const std::vector<std::string>& known) {
  std::vector<std::vector<uint32_t>> sent(keys.size(), std::vector<uint32_t>(kWords, 0));
  sent[0].assign(kWords, kSecret);
  auto groups = make_groups(static_cast<int>(keys.size()));
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    const auto self = static_cast<size_t>(group.rank());
    const PeerMasks masks(group, {.step = 1}, {.own = keys[self], .known = self == 0 ? known : std::vector<std::string>{}});
    masks.add(0, 0, std::span(sent[self]), ReplicaSet(keys.size(), 1));
  });
  return sent;
}

// What the first peer sends can only be read with the secret key of every other one: the last one has the public key of an
// agent, and not its secret key.
TEST(PeerMasks, WhoPosesAsAnotherLearnsNothing) {
  std::vector<comm::KeyPair> keys;
  for (int i = 0; i < 3; ++i) keys.push_back(comm::make_key_pair());
  const std::vector<std::string> known = {keys[1].public_key, keys[2].public_key};
  EXPECT_EQ(sum_of(sent_by_agents(keys, known), {0, 1, 2}), std::vector<uint32_t>(kWords, kSecret));
  keys[2].secret_key = comm::make_key_pair().secret_key;
  expect_uniform(sum_of(sent_by_agents(keys, known), {0, 1, 2}));
}

TEST(PeerMasks, OwnersSumWithThoseTheyKnow) {
  const comm::KeyPair own = comm::make_key_pair(), friendly = comm::make_key_pair(), stranger = comm::make_key_pair();
  const std::vector<std::string> known = {own.public_key, friendly.public_key};
  const auto refusal = [&](const std::vector<comm::KeyPair>& keys) {
    std::string text;
    auto groups = make_groups(static_cast<int>(keys.size()));
    comm::testing::run_ranks(groups, [&](comm::Group& group) {
      const PeerIdentity identity{.own = keys[static_cast<size_t>(group.rank())], .known = known};
      if (group.rank() == 0) text = test::error_of([&] { PeerMasks(group, {.step = 1}, identity); });
      if (group.rank() != 0) PeerMasks(group, {.step = 1}, {.own = identity.own});
    });
    return text;
  };
  EXPECT_EQ(refusal({own, friendly}), "no error");
  EXPECT_THAT(refusal({own, friendly, stranger}), ::testing::HasSubstr(stranger.public_key));
  EXPECT_THAT(refusal({own, friendly, friendly}), ::testing::HasSubstr("comes twice")) << "an owner that counts as two";
  EXPECT_THAT(refusal({own, friendly, own}), ::testing::HasSubstr("comes twice")) << "an owner that sums with itself";
  auto groups = make_groups(2);
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    const std::string text = test::error_of([&] { PeerMasks(group, {.step = 1}, {.known = known}); });
    EXPECT_THAT(text, ::testing::HasSubstr("this pool has no keys"));
  });
}

// The same numbers are masked in another way in each group, at each place and in each stream.
TEST(PeerMasks, AreUsedOnce) {
  const auto first = sent_by<uint32_t>(3), second = sent_by<uint32_t>(3);
  expect_uniform(sum_of<uint32_t>({first[0], second[0]}, {0, 1}));
  auto groups = make_groups(2);
  comm::testing::run_ranks(groups, [&](comm::Group& group) {
    const PeerMasks masks(group, {.step = 1});
    std::vector<uint32_t> here(kWords, 0), later(kWords, 0), other(kWords, 0);
    masks.add(0, 0, std::span(here), {1, 1});
    masks.add(0, PeerMasks::blocks_of(kWords * sizeof(uint32_t)), std::span(later), {1, 1});
    masks.add(1, 0, std::span(other), {1, 1});
    for (size_t i = 0; i < kWords; ++i) {
      later[i] -= here[i];
      other[i] -= here[i];
    }
    expect_uniform(later);
    expect_uniform(other);
  });
}

}  // namespace
}  // namespace modelet::agent::testing
