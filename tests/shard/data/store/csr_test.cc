// Dataset::of: samples in memory form a data set like that of a prepared file.
#include "shard/data/store/csr.h"

#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <utility>

#include "shard/data/store/dataset.h"
#include "tests/error_of.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using ::testing::HasSubstr;

// Arrays of some samples. The second sample has no features and no labels.
struct Arrays {
  std::vector<uint64_t> offsets = {0, 3, 3, 5, 6}, label_offsets = {0, 1, 1, 3, 4};
  std::vector<uint32_t> ids = {0, 2, 8, 1, 2, 7}, labels = {4, 0, 2, 1};
  std::vector<float> values = {1, -2, 3, 0, 4, 0};

  CsrSamples view() const {
    return {.features = 9,
            .labels = 5,
            .feature_offsets = offsets,
            .feature_ids = ids,
            .values = values,
            .label_offsets = label_offsets,
            .label_ids = labels};
  }
};

TEST(CsrTest, IsTheDataSetOfAPreparedFile) {
  testing::TemporaryFolder folder;
  const Arrays arrays;
  for (const Normalize normalize : {Normalize::kNone, Normalize::kL2}) {
    const Dataset given = Dataset::of(arrays.view(), Normalize::kNone);
    PreparedWriter writer(folder / "data.mlt", given.features(), given.labels(), normalize);
    for (size_t row = 0; row < given.rows(); ++row) writer.add(given.sample(row));
    writer.finish();
    const Dataset file = Dataset::open(folder / "data.mlt");
    Dataset made = Dataset::of(arrays.view(), normalize);
    const Dataset memory = std::move(made);  // the views must move with it
    EXPECT_EQ(testing::samples_of(memory), testing::samples_of(file));
    EXPECT_EQ(memory.nonzeros(), file.nonzeros());
    EXPECT_EQ(memory.label_entries(), file.label_entries());
    EXPECT_EQ(memory.normalize(), normalize);
    EXPECT_EQ(count_labels(memory), count_labels(file));
    for (size_t row = 0; row < memory.rows(); ++row)
      EXPECT_EQ(memory.label_count(row), file.label_count(row));
  }
}

TEST(CsrTest, CopiesNoFeatures) {
  const Arrays arrays;
  const Dataset data = Dataset::of(arrays.view(), Normalize::kNone);
  EXPECT_EQ(data.sample(2).features.data(), arrays.ids.data() + 3);
  EXPECT_EQ(data.sample(2).values.data(), arrays.values.data() + 3);
}

TEST(CsrTest, TheFingerprintIsOfEverything) {
  const auto fingerprint = [](const std::function<void(Arrays&)>& change) {
    Arrays arrays;
    change(arrays);
    return Dataset::of(arrays.view(), Normalize::kNone).fingerprint();
  };
  const uint64_t same = fingerprint([](Arrays&) {});
  EXPECT_EQ(same, fingerprint([](Arrays&) {}));
  EXPECT_NE(same, fingerprint([](Arrays& a) { a.values[0] = 2; }));
  EXPECT_NE(same, fingerprint([](Arrays& a) { a.ids[0] = 1; }));
  EXPECT_NE(same, fingerprint([](Arrays& a) { a.labels[0] = 3; }));
  EXPECT_NE(same, fingerprint([](Arrays& a) { a.offsets[1] = 2; }));
  EXPECT_NE(same, fingerprint([](Arrays& a) { a.label_offsets[1] = 0; }));
}

TEST(CsrTest, RefusesWhatIsNoCsr) {
  const auto problem = [](const std::function<void(Arrays&)>& change) {
    Arrays arrays;
    change(arrays);
    return test::error_of([&] { Dataset::of(arrays.view(), Normalize::kNone); });
  };
  EXPECT_THAT(problem([](Arrays& a) { a.offsets.pop_back(); }), HasSubstr("another number of rows"));
  EXPECT_THAT(problem([](Arrays& a) { a.values.pop_back(); }), HasSubstr("6 features have 5 values"));
  EXPECT_THAT(problem([](Arrays& a) { a.offsets.back() = 7; }), HasSubstr("do not lead from 0 to 6"));
  EXPECT_THAT(problem([](Arrays& a) { a.offsets[1] = 4; }), HasSubstr("do not ascend at row 1"));
  EXPECT_THAT(problem([](Arrays& a) { a.offsets[1] = uint64_t{1} << 60; }), HasSubstr("do not ascend"));
  EXPECT_THAT(problem([](Arrays& a) { a.ids[1] = 0; }), HasSubstr("features of row 0"));
  EXPECT_THAT(problem([](Arrays& a) { a.ids[5] = 9; }), HasSubstr("not below 9"));
  EXPECT_THAT(problem([](Arrays& a) { a.labels[3] = 5; }), HasSubstr("labels of row 3"));
  EXPECT_THAT(problem([](Arrays& a) { a.values[2] = std::numeric_limits<float>::infinity(); }),
              HasSubstr("finite"));
  EXPECT_THAT(test::error_of([&] { Dataset::of({}, Normalize::kNone); }), HasSubstr("rows"));
}

}  // namespace
}  // namespace modelet::shard
