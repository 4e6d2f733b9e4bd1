#include "hashing/index.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "tests/hashing/random_data.h"

namespace modelet::hashing {
namespace {

using testing::ElementsAreArray;
using testing::IsEmpty;

constexpr size_t kDim = 32;
constexpr uint32_t kNoCapacity = 1u << 20;

IndexOptions options(uint32_t bucket = kNoCapacity, bool centre = true) {
  return {{HashFamilyKind::kDwta, kDim, 12, 4, 3}, bucket, centre};
}

using Result = std::vector<uint32_t>;

Result sorted(std::span<const uint32_t> rows) {
  Result result(rows.begin(), rows.end());
  std::sort(result.begin(), result.end());
  return result;
}

// The rows of a query in ascending order, because their own order means nothing.
Result query(const LshIndex& index, std::span<const float> vector, size_t limit = 1u << 30) {
  QueryMemory scratch;
  return sorted(index.query(vector, {}, limit, scratch));
}

// Everything a query can see of an index, for 30 queries.
std::vector<Result> queries(const LshIndex& index) {
  const Rows vectors = normal_rows(30, kDim, 99);
  std::vector<Result> results;
  for (size_t i = 0; i < vectors.count(); ++i) results.push_back(query(index, vectors.row(i)));
  return results;
}

// The answer by definition: counts equal codes of each row.
Result brute_force(const LshIndex& index, std::span<const uint32_t> codes, size_t limit) {
  const uint32_t tables = index.options().hash.tables;
  std::vector<std::pair<int, uint32_t>> ranking;
  for (uint32_t row = 0; row < index.rows(); ++row) {
    int equal = 0;
    for (uint32_t t = 0; t < tables; ++t) equal += index.codes()[row * tables + t] == codes[t];
    if (equal > 0) ranking.emplace_back(-equal, row);
  }
  std::sort(ranking.begin(), ranking.end());
  Result rows;
  for (size_t i = 0; i < std::min(limit, ranking.size()); ++i) rows.push_back(ranking[i].second);
  return sorted(rows);
}

TEST(LshIndex, QueryKeepsTheRowsWithMostEqualCodes) {
  const Rows rows = normal_rows(800, kDim, 1), vectors = normal_rows(20, kDim, 2);
  LshIndex index(options(), rows.count());
  index.build(rows.matrix());
  QueryMemory scratch;
  for (size_t i = 0; i < vectors.count(); ++i) {
    for (size_t limit : {0, 1, 2, 10, 64, 300, 800, 5000}) {
      const auto found = index.query(vectors.row(i), {}, limit, scratch);
      EXPECT_THAT(sorted(found), ElementsAreArray(brute_force(index, scratch.codes, limit)))
          << "limit " << limit;
    }
  }
}

// There are few distinct rows, so nearly all scores are ties.
TEST(LshIndex, TiesGoToTheLowerRow) {
  const Rows kinds = normal_rows(3, kDim, 4);
  Rows rows{kDim, {}};
  for (size_t i = 0; i < 90; ++i) {
    const auto kind = kinds.row(i % 3);
    rows.values.insert(rows.values.end(), kind.begin(), kind.end());
  }
  LshIndex index(options(kNoCapacity, /*centre=*/false), 90);
  index.build(rows.matrix());
  const Result found = query(index, kinds.row(1), 30);
  ASSERT_EQ(found.size(), 30u);
  for (uint32_t i = 0; i < 30; ++i) EXPECT_EQ(found[i], 3 * i + 1);
  EXPECT_THAT(query(index, kinds.row(1), 7), ElementsAreArray(found.begin(), found.begin() + 7));
}

TEST(LshIndex, EachRowFindsItselfFirst) {
  const Rows rows = normal_rows(500, kDim, 5);
  LshIndex index(options(kNoCapacity, /*centre=*/false), rows.count());
  index.build(rows.matrix());
  for (size_t r = 0; r < rows.count(); ++r)
    EXPECT_EQ(query(index, rows.row(r), 1), Result{static_cast<uint32_t>(r)});
}

TEST(LshIndex, CentresRowsByTheirMeanAndQueriesByTheCallers) {
  Rows rows = normal_rows(400, kDim, 6), shifted = rows;
  for (float& value : shifted.values) value += 16;  // exact in float, so that the sums below agree closely
  LshIndex index(options(), rows.count());
  index.build(shifted.matrix());
  for (float mean : index.centre()) EXPECT_NEAR(mean, 16, 0.3);
  // The index hashes each row minus the centre. So a row used as a query, with the centre as its mean,
  // collides with itself in all tables.
  QueryMemory scratch;
  for (size_t r = 0; r < rows.count(); ++r) {
    const auto codes = index.hash_query(shifted.row(r), index.centre(), scratch);
    EXPECT_THAT(codes, ElementsAreArray(index.codes().subspan(r * 12, 12)));
  }
}

TEST(LshIndex, ScratchCanMoveBetweenIndexes) {
  const Rows many = normal_rows(700, kDim, 7), few = normal_rows(50, kDim, 8);
  LshIndex large(options(), 700), small(options(), 50);
  large.build(many.matrix());
  small.build(few.matrix());
  QueryMemory scratch;
  for (const LshIndex* index : {&small, &large, &small}) {
    const auto found = index->query(many.row(3), {}, 40, scratch);
    EXPECT_THAT(sorted(found), ElementsAreArray(query(*index, many.row(3), 40)));
  }
  EXPECT_THAT(scratch.counts, testing::Each(0));
}

TEST(LshIndex, EmptyAndUnbuiltIndexesFindNothing) {
  const Rows vectors = normal_rows(1, kDim, 9);
  LshIndex unbuilt(options(), 10), none(options(), 0);
  none.build({nullptr, 0, kDim, kDim});
  none.begin_rehash({}, {nullptr, 0, kDim, kDim});
  none.work();
  none.finish_rehash();
  EXPECT_THAT(query(unbuilt, vectors.row(0)), IsEmpty());
  EXPECT_THAT(query(none, vectors.row(0)), IsEmpty());
}

TEST(LshIndex, OneDimensionAndZeroRows) {
  for (const HashFamilyKind kind : all_values<HashFamilyKind>()) {
    LshIndex index({{kind, 1, 8, 9, 3}, kNoCapacity, false}, 4);
    const std::vector<float> weights = {1, 0, 2, 0};
    index.build(ConstMatrix{weights.data(), 4, 1, 1});
    const std::vector<float> five = {5}, zero = {0};
    const Result like_five = query(index, five, 2);
    if (kind != HashFamilyKind::kDwta) {  // DWTA sees the order only, so one number gives equal codes
      EXPECT_THAT(like_five, testing::ElementsAre(0, 2));
    }
    EXPECT_THAT(query(index, zero), testing::IsSupersetOf({1u, 3u}));
  }
}

TEST(LshIndex, RowsMayBeStrided) {
  const Rows rows = normal_rows(100, kDim, 10);
  std::vector<float> padded(100 * (kDim + 5), 1e9f);
  for (size_t r = 0; r < 100; ++r) std::copy_n(rows.row(r).begin(), kDim, &padded[r * (kDim + 5)]);
  LshIndex dense(options(), 100), strided(options(), 100);
  dense.build(rows.matrix());
  strided.build(ConstMatrix{padded.data(), 100, kDim, kDim + 5});
  EXPECT_THAT(strided.codes(), ElementsAreArray(dense.codes()));
  std::vector<uint32_t> some = {1, 50, 99};
  for (LshIndex* index : {&dense, &strided}) {
    index->begin_rehash(some,
                        index == &dense ? rows.matrix() : ConstMatrix{padded.data(), 100, kDim, kDim + 5});
    index->work();
    index->finish_rehash();
  }
  EXPECT_THAT(strided.codes(), ElementsAreArray(dense.codes()));
}

// Changes `count` random rows and returns them in ascending order.
std::vector<uint32_t> change_rows(Rows& rows, size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<uint32_t> changed;
  for (size_t i = 0; i < count; ++i) changed.push_back(rng.below(static_cast<uint32_t>(rows.count())));
  std::sort(changed.begin(), changed.end());
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  for (uint32_t row : changed) {
    for (float& value : rows.row(row)) value += rng.normal();
  }
  return changed;
}

class Rehash : public testing::TestWithParam<uint32_t> {};  // bucket capacity: too small for the rows, or not

TEST_P(Rehash, IncrementalEqualsFullBuild) {
  Rows rows = normal_rows(600, kDim, 11);
  // Without a centre, a full build hashes the rows as an incremental one does.
  LshIndex index(options(GetParam(), /*centre=*/false), rows.count());
  index.build(rows.matrix());
  for (uint64_t round = 0; round < 5; ++round) {
    const std::vector<uint32_t> changed = change_rows(rows, 40 * round, round);
    index.begin_rehash(changed, rows.matrix());
    index.work();
    index.finish_rehash();
    LshIndex fresh(options(GetParam(), /*centre=*/false), rows.count());
    fresh.build(rows.matrix());
    EXPECT_THAT(index.codes(), ElementsAreArray(fresh.codes()));
    EXPECT_EQ(queries(index), queries(fresh)) << "round " << round;
  }
}

TEST_P(Rehash, RestoringTheCodesGivesTheSameTables) {
  Rows rows = normal_rows(600, kDim, 12);
  LshIndex index(options(GetParam()), rows.count());
  index.build(rows.matrix());
  index.begin_rehash(change_rows(rows, 100, 1), rows.matrix());
  index.work();
  index.finish_rehash();
  LshIndex restored(options(GetParam()), rows.count());
  restored.restore(index.codes(), index.centre());
  EXPECT_EQ(queries(index), queries(restored));
  // The restored index continues like the original.
  const std::vector<uint32_t> changed = change_rows(rows, 50, 2);
  for (LshIndex* each : {&index, &restored}) {
    each->begin_rehash(changed, rows.matrix());
    each->work();
    each->finish_rehash();
  }
  EXPECT_THAT(restored.codes(), ElementsAreArray(index.codes()));
  EXPECT_EQ(queries(index), queries(restored));
}

TEST_P(Rehash, NamingAllRowsMovesTheCentreAsABuildDoes) {
  Rows rows = normal_rows(300, kDim, 13);
  LshIndex index(options(GetParam()), rows.count()), fresh(options(GetParam()), rows.count());
  index.build(rows.matrix());
  const std::vector<float> old_centre(index.centre().begin(), index.centre().end());
  for (float& value : rows.values) value += 3;
  std::vector<uint32_t> all(rows.count());
  std::iota(all.begin(), all.end(), 0);
  index.begin_rehash(std::span(all).first(299), rows.matrix());
  index.work();
  index.finish_rehash();
  EXPECT_THAT(index.centre(), ElementsAreArray(old_centre));
  index.begin_rehash(all, rows.matrix());
  index.work();
  index.finish_rehash();
  fresh.build(rows.matrix());
  EXPECT_THAT(index.centre(), ElementsAreArray(fresh.centre()));
  EXPECT_EQ(queries(index), queries(fresh));
}

TEST_P(Rehash, UsesTheWeightsAtBeginAndShowsAtFinish) {
  Rows rows = normal_rows(300, kDim, 14);
  LshIndex index(options(GetParam()), rows.count()), expected(options(GetParam()), rows.count());
  for (LshIndex* each : {&index, &expected}) each->build(rows.matrix());
  const std::vector<Result> before = queries(index);
  const std::vector<uint32_t> changed = change_rows(rows, 100, 3);
  for (LshIndex* each : {&index, &expected}) each->begin_rehash(changed, rows.matrix());
  std::fill(rows.values.begin(), rows.values.end(), 0.0f);
  index.work();
  EXPECT_EQ(queries(index), before);
  index.finish_rehash();
  expected.work();
  expected.finish_rehash();
  EXPECT_NE(queries(index), before);
  EXPECT_EQ(queries(index), queries(expected));
}

// A checkpoint is made between work() and finish_rehash(). The restored index answers like the original
// before and after that.
TEST_P(Rehash, PendingRehashSurvivesACheckpoint) {
  for (size_t count : {0, 60, 300}) {  // 300 of 300 rows also move the centre
    Rows rows = normal_rows(300, kDim, 19);
    LshIndex index(options(GetParam()), rows.count()), restored(options(GetParam()), rows.count());
    index.build(rows.matrix());
    std::vector<uint32_t> changed(count);
    std::iota(changed.begin(), changed.end(), 0);
    for (uint32_t row : changed) rows.row(row)[row % kDim] += 3;
    index.begin_rehash(changed, rows.matrix());
    index.work();
    restored.restore(index.codes(), index.centre());
    restored.restore_rehash(index.next_codes(), index.next_centre());
    EXPECT_TRUE(restored.rehash_is_done());
    EXPECT_EQ(queries(restored), queries(index));
    for (LshIndex* each : {&index, &restored}) each->finish_rehash();
    EXPECT_THAT(restored.codes(), ElementsAreArray(index.codes()));
    EXPECT_THAT(restored.centre(), ElementsAreArray(index.centre()));
    EXPECT_EQ(queries(restored), queries(index)) << count << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Capacity, Rehash, testing::Values(kNoCapacity, 5u));

TEST(LshIndex, StaleShareCountsCodesThatChanged) {
  Rows rows = normal_rows(300, kDim, 17);
  LshIndex index(options(kNoCapacity, /*centre=*/false), rows.count());
  index.build(rows.matrix());
  std::vector<uint32_t> all(rows.count());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(index.stale_share(all, rows.matrix()), 0);
  EXPECT_EQ(index.stale_share({}, rows.matrix()), 0);
  const std::vector<uint32_t> changed = change_rows(rows, 60, 5);
  LshIndex fresh(options(kNoCapacity, /*centre=*/false), rows.count());
  fresh.build(rows.matrix());
  double different = 0;
  for (size_t i = 0; i < fresh.codes().size(); ++i) different += fresh.codes()[i] != index.codes()[i];
  EXPECT_GT(different, 0);
  EXPECT_NEAR(index.stale_share(all, rows.matrix()), different / static_cast<double>(fresh.codes().size()),
              1e-12);
  EXPECT_NEAR(index.stale_share(changed, rows.matrix()), different / static_cast<double>(changed.size() * 12),
              1e-12);
}

TEST(LshIndex, BuildAndRestoreDropABegunRehash) {
  Rows rows = normal_rows(200, kDim, 15);
  LshIndex index(options(), rows.count()), fresh(options(), rows.count());
  fresh.build(rows.matrix());
  index.build(rows.matrix());
  Rows other = rows;
  for (bool by_build : {true, false}) {
    index.begin_rehash(change_rows(other, 50, 4), other.matrix());
    index.work();
    if (by_build) {
      index.build(rows.matrix());
    } else {
      index.restore(fresh.codes(), fresh.centre());
    }
    EXPECT_EQ(queries(index), queries(fresh));
  }
  EXPECT_DEATH(index.finish_rehash(), "before work");
}

// Two threads query while a third re-hashes. Run this under the thread sanitizer. Without it, the test still
// shows that queries see the old tables until finish_rehash().
TEST(LshIndex, QueriesGoOnDuringWork) {
  Rows rows = normal_rows(2000, kDim, 16);
  LshIndex index(options(64), rows.count());
  index.build(rows.matrix());
  for (uint64_t round = 0; round < 3; ++round) {
    const std::vector<Result> before = queries(index);
    const std::vector<uint32_t> codes_before(index.codes().begin(), index.codes().end());
    index.begin_rehash(change_rows(rows, 1000, round), rows.matrix());
    std::atomic<bool> working = true;
    std::thread worker([&] {
      index.work();
      working = false;
    });
    std::vector<std::thread> readers;
    for (int i = 0; i < 2; ++i) {
      readers.emplace_back([&] {
        do {
          EXPECT_EQ(queries(index), before);
          EXPECT_TRUE(std::equal(codes_before.begin(), codes_before.end(), index.codes().begin()));
        } while (working);
      });
    }
    worker.join();
    for (std::thread& reader : readers) reader.join();
    index.finish_rehash();
    EXPECT_NE(queries(index), before);
  }
}

class Restore : public testing::Test {
 protected:
  void SetUp() override {
    index_.build(rows_.matrix());
    codes_.assign(index_.codes().begin(), index_.codes().end());
    centre_.assign(index_.centre().begin(), index_.centre().end());
  }

  void expect_refused(const std::string& why) {
    const std::vector<Result> before = queries(index_);
    for (bool pending : {false, true}) {
      try {
        pending ? index_.restore_rehash(codes_, centre_) : index_.restore(codes_, centre_);
        ADD_FAILURE() << "accepted: " << why;
      } catch (const FormatError& error) {
        EXPECT_THAT(error.what(), testing::HasSubstr(why));
      }
      EXPECT_FALSE(index_.rehash_is_done());
      EXPECT_EQ(queries(index_), before);
    }
  }

  const Rows rows_ = normal_rows(50, kDim, 17);
  LshIndex index_{options(), 50};
  std::vector<uint32_t> codes_;
  std::vector<float> centre_;
};

TEST_F(Restore, RefusesAnotherNumberOfCodes) {
  codes_.pop_back();
  expect_refused("expected 50 x 12 codes, got 599");
}

TEST_F(Restore, RefusesACodeOutsideTheTable) {
  codes_[25] = 16;
  expect_refused("code 16 of row 2 is outside a table of 16 buckets");
}

TEST_F(Restore, RefusesAnotherWidthOfTheCentre) {
  centre_.clear();
  expect_refused("expected a centre of 32 values, got 0");
}

TEST_F(Restore, RefusesACentreThatIsNotFinite) {
  centre_[3] = std::numeric_limits<float>::quiet_NaN();
  expect_refused("not finite");
}

using LshIndexDeathTest = Restore;

TEST_F(LshIndexDeathTest, RehashHasAnOrder) {
  const std::vector<uint32_t> some = {1, 2}, descending = {2, 1}, twice = {1, 1}, outside = {50};
  EXPECT_DEATH(index_.work(), "without begin_rehash");
  EXPECT_DEATH(index_.finish_rehash(), "before work");
  for (const auto& bad : {descending, twice})
    EXPECT_DEATH(index_.begin_rehash(bad, rows_.matrix()), "ascend");
  EXPECT_DEATH(index_.begin_rehash(outside, rows_.matrix()), "rows.back");
  EXPECT_DEATH((void)index_.next_codes(), "before work");
  index_.begin_rehash(some, rows_.matrix());
  EXPECT_DEATH(index_.begin_rehash(some, rows_.matrix()), "not finished");
  EXPECT_DEATH(index_.finish_rehash(), "before work");
}

TEST(LshIndex, MemoryCountsTheLargeArrays) {
  constexpr size_t kRows = 10000;
  LshIndex index(options(), kRows);
  const size_t arrays =
      kRows * 12 * sizeof(uint32_t);  // codes; entries of the active and of the standby tables
  EXPECT_GE(index.memory_bytes(), 3 * arrays);
  EXPECT_LE(index.memory_bytes(), 3 * arrays + (64u << 10));
  const Rows rows = normal_rows(kRows, kDim, 18);
  index.begin_rehash(std::vector<uint32_t>{1, 2, 3}, rows.matrix());
  EXPECT_LE(index.memory_bytes(), 3 * arrays + (64u << 10));
}

TEST(LshIndex, ARehashKeepsItsCopyOfTheRowsOnlyWhileItWorks) {
  constexpr size_t kRows = 2000, kCopy = kRows * kDim * sizeof(float), kCodes = kRows * 13 * sizeof(uint32_t);
  LshIndex index(options(), kRows);
  const size_t before = index.memory_bytes();
  const Rows rows = normal_rows(kRows, kDim, 18);
  std::vector<uint32_t> all(kRows);
  std::iota(all.begin(), all.end(), 0u);
  index.begin_rehash(all, rows.matrix());
  EXPECT_GE(index.memory_bytes(), before + kCopy);
  index.work();
  EXPECT_LE(index.memory_bytes(), before + kCodes + 4096);
}

}  // namespace
}  // namespace modelet::hashing
