#include "shard/data/store/dataset.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "tests/error_of.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using test::error_of;
using ::testing::HasSubstr;
using testing::samples_of;

class LoadDataset : public ::testing::Test {
 protected:
  LoadDataset() { ::setenv("MODELET_CACHE", (folder_ / "cache").c_str(), 1); }
  ~LoadDataset() override { ::unsetenv("MODELET_CACHE"); }

  std::vector<std::filesystem::path> cache_entries() const {
    std::vector<std::filesystem::path> entries;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache"))
      entries.push_back(entry.path());
    return entries;
  }

  testing::TemporaryFolder folder_;
};

constexpr char kText[] = "3 9 5\n1 2:3 4:4\n0,3 1:1\n 7:2\n";

TEST_F(LoadDataset, TextGivesTheSamplesOfTheReader) {
  const auto path = folder_.write("data.txt", kText);
  EXPECT_EQ(samples_of(load_dataset(path, Normalize::kNone)), testing::read_text(kText));
}

TEST_F(LoadDataset, UsesTheCacheTheSecondTime) {
  const auto path = folder_.write("data.txt", kText);
  load_dataset(path, Normalize::kNone);
  ASSERT_EQ(cache_entries().size(), 1u);
  const auto entry = cache_entries().front();
  std::filesystem::create_hard_link(entry, folder_ / "made");
  load_dataset(path, Normalize::kNone);
  EXPECT_EQ(cache_entries().size(), 1u);
  EXPECT_TRUE(std::filesystem::equivalent(entry, folder_ / "made")) << "it was made anew";
}

TEST_F(LoadDataset, QueriesAreReadFromTheCacheButNotKeptThere) {
  const auto path = folder_.write("data.txt", kText);
  EXPECT_EQ(samples_of(load_queries(path, Normalize::kNone, {})), testing::read_text(kText));
  EXPECT_TRUE(cache_entries().empty());
  load_dataset(path, Normalize::kNone);
  const auto entry = cache_entries().at(0);
  EXPECT_EQ(samples_of(load_queries(path, Normalize::kNone, {})), testing::read_text(kText));
  std::ofstream(entry, std::ios::binary) << "damaged";
  EXPECT_EQ(samples_of(load_queries(path, Normalize::kNone, {})), testing::read_text(kText));
  EXPECT_EQ(cache_entries().size(), 1u);
}

TEST_F(LoadDataset, TextIsReadWithTheEncoderOfTheTrainingData) {
  const auto text = folder_.write("train.txt", "__label__x a b\n__label__y b c\n");
  const auto test = folder_.write("test.txt", "__label__z b __label__y\n");
  const Dataset train = load_training_data(text, Normalize::kNone, {});
  EXPECT_EQ(train.rows(), 2u);
  EXPECT_EQ(train.features(), 3u);
  EXPECT_FALSE(train.encoder().empty());
  const Dataset read = load_dataset(test, Normalize::kNone, train.encoder());
  EXPECT_EQ(read.features(), 3u);
  EXPECT_EQ(read.unknown_labels(), 1u);
  EXPECT_EQ(read.sample(0).labels.size(), 1u);
  EXPECT_EQ(describe_shape(train, read).encoder, train.encoder_checksum());
  EXPECT_EQ(cache_entries().size(), 2u);
  // Reading the same text in another way makes another entry.
  const Dataset of_pairs = load_training_data(text, Normalize::kNone, {.text = {.word_ngrams = 2}});
  EXPECT_EQ(of_pairs.features(), 5u);
  EXPECT_EQ(load_dataset(test, Normalize::kNone, of_pairs.encoder()).features(), 5u);
  EXPECT_EQ(cache_entries().size(), 4u);
}

TEST_F(LoadDataset, TextOfTheOtherKindIsRefused) {
  const auto text = folder_.write("train.txt", "__label__x a b\n__label__y b c\n");
  const Dataset train = load_training_data(text, Normalize::kNone, {});
  const auto xmc = folder_.write("xmc.txt", kText);
  EXPECT_THAT(error_of([&] { load_dataset(xmc, Normalize::kNone, train.encoder()); }),
              HasSubstr("xmc.txt: is XMC text"));
  EXPECT_THAT(error_of([&] { load_dataset(text, Normalize::kNone); }),
              HasSubstr("train.txt: is labelled words"));
  // Words that look a little like XMC text.
  for (const char* words :
       {"1 2 3\nfour five\n", "1 2 3\n4 5:six seven\n", "1 2\n3 4:5\n", "1 2 3\n", "1 2 3"})
    EXPECT_EQ(
        error_of([&] { load_dataset(folder_.write("words.txt", words), Normalize::kNone, train.encoder()); }),
        "no error")
        << words;
}

TEST_F(LoadDataset, PreparedDataOfAnotherEncoderIsRefused) {
  const auto text = folder_.write("train.txt", "__label__x a b\n__label__y b c\n");
  prepare_training_data(text, Normalize::kNone, {}, folder_ / "train.mlt");
  prepare_training_data(text, Normalize::kNone, {.text = {.word_ngrams = 2}}, folder_ / "other.mlt");
  const Dataset train = Dataset::open(folder_ / "train.mlt");
  EXPECT_EQ(load_dataset(folder_ / "train.mlt", Normalize::kNone, train.encoder()).rows(), 2u);
  EXPECT_THAT(error_of([&] { load_dataset(folder_ / "other.mlt", Normalize::kNone, train.encoder()); }),
              HasSubstr("--like"));
  EXPECT_THROW(load_dataset(folder_ / "train.mlt", Normalize::kNone), UsageError);
}

TEST_F(LoadDataset, NoticesAChangedText) {
  const auto path = folder_.write("data.txt", kText);
  EXPECT_EQ(load_dataset(path, Normalize::kNone).rows(), 3u);
  folder_.write("data.txt", "1 9 5\n1 1:1\n");
  EXPECT_EQ(load_dataset(path, Normalize::kNone).rows(), 1u);
}

TEST_F(LoadDataset, NoticesAnotherTextOfTheSamePathSizeAndTime) {
  const auto write = [&](const char* name, const char* text) {
    const auto path = folder_.write(name, text);
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::days(1000) -
                  std::filesystem::file_time_type::clock::now().time_since_epoch() % std::chrono::days(1));
    return path;
  };
  const auto path = write("data.txt", "1 9 5\n1 2:3\n");
  const auto first = [&] { return load_dataset(path, Normalize::kNone).sample(0).features[0]; };
  EXPECT_EQ(first(), 2u);
  write("data.txt", "1 9 5\n1 3:3\n");
  EXPECT_EQ(first(), 3u) << "written again";
  std::filesystem::rename(write("other.txt", "1 9 5\n1 4:3\n"), path);
  EXPECT_EQ(first(), 4u) << "another file";
  write("data.txt", "1 9 5\n1 5:3\n");
  EXPECT_EQ(load_queries(path, Normalize::kNone, {}).sample(0).features[0], 5u);
}

TEST_F(LoadDataset, ATextThatIsChangedWhileItIsReadIsRefused) {
  const auto path = folder_.write("data.txt", kText);
  const auto change = [&](uint64_t, uint64_t, double) { folder_.write("data.txt", "1 9 5\n1 1:1\n"); };
  EXPECT_THAT(error_of([&] { load_dataset(path, Normalize::kNone, {}, {}, change); }),
              HasSubstr("data.txt: was changed while it was read"));
  EXPECT_TRUE(cache_entries().empty());
  EXPECT_THAT(error_of([&] { load_queries(path, Normalize::kNone, {}, change); }),
              HasSubstr("was changed while it was read"));
  EXPECT_EQ(load_dataset(path, Normalize::kNone).rows(), 1u);
}

TEST_F(LoadDataset, KeepsNormalisationsApart) {
  const auto path = folder_.write("data.txt", kText);
  EXPECT_EQ(load_dataset(path, Normalize::kNone).sample(0).values[0], 3);
  EXPECT_FLOAT_EQ(load_dataset(path, Normalize::kL2).sample(0).values[0], 0.6f);
}

TEST_F(LoadDataset, ReplacesADamagedEntry) {
  const auto path = folder_.write("data.txt", kText);
  load_dataset(path, Normalize::kNone);
  const auto entry = cache_entries().front();
  std::string bytes = testing::bytes_of(entry);
  bytes[200] = static_cast<char>(bytes[200] ^ 1);
  std::ofstream(entry, std::ios::binary) << bytes;
  EXPECT_EQ(samples_of(load_dataset(path, Normalize::kNone)), testing::read_text(kText));
}

// Without a word from the user: the text is known.
TEST_F(LoadDataset, ReplacesAnEntryOfAnotherVersion) {
  const auto path = folder_.write("data.txt", kText);
  load_dataset(path, Normalize::kNone);
  ASSERT_EQ(cache_entries().size(), 1u);
  const auto entry = cache_entries().front();
  const std::string good = testing::bytes_of(entry);
  std::string earlier = good;
  earlier[8] = 3;
  std::ofstream(entry, std::ios::binary) << earlier;
  EXPECT_EQ(samples_of(load_dataset(path, Normalize::kNone)), testing::read_text(kText));
  EXPECT_EQ(testing::bytes_of(entry), good);
}

TEST_F(LoadDataset, OpensPreparedFilesAndRefusesAnotherNormalisation) {
  testing::prepare_xmc(folder_.write("data.txt", kText), folder_ / "data.mlt", Normalize::kL2);
  EXPECT_EQ(load_dataset(folder_ / "data.mlt", Normalize::kL2).rows(), 3u);
  EXPECT_THROW(load_dataset(folder_ / "data.mlt", Normalize::kNone), UsageError);
}

TEST_F(LoadDataset, RefusesAFileWithoutSamples) {
  const auto path = folder_.write("data.txt", "0 9 5\n");
  EXPECT_THAT(error_of([&] { load_dataset(path, Normalize::kNone); }), HasSubstr("holds no samples"));
}

TEST_F(LoadDataset, DoesWithoutACacheThatCannotBeHad) {
  const auto path = folder_.write("data.txt", kText), words = folder_.write("words.txt", "__label__x a b\n");
  folder_.write("cache", "a file where the folder should be");
  const auto expect_samples = [&](const std::string& why) {
    EXPECT_EQ(samples_of(load_dataset(path, Normalize::kNone)), testing::read_text(kText)) << why;
    EXPECT_EQ(samples_of(load_queries(path, Normalize::kNone, {})), testing::read_text(kText)) << why;
    EXPECT_EQ(load_training_data(words, Normalize::kNone, {}).features(), 2u) << why;
  };
  expect_samples("the cache is a file");
  for (const char* nowhere : {"/proc", "/proc/none", "/dev/null/x"}) {  // root, too, cannot write there
    ::setenv("MODELET_CACHE", nowhere, 1);
    expect_samples(nowhere);
  }
  ::unsetenv("MODELET_CACHE");
  const std::string home = ::getenv("HOME") != nullptr ? ::getenv("HOME") : "";
  ::unsetenv("XDG_CACHE_HOME");
  ::setenv("HOME", "/proc/none", 1);
  expect_samples("no home");
  ::unsetenv("HOME");
  expect_samples("no HOME");
  ::setenv("HOME", home.c_str(), 1);
}

// Each entry has some hundred KiB, so there is room for two.
TEST_F(LoadDataset, TheCacheKeepsWhatWasUsedLast) {
  ::setenv("MODELET_CACHE_MIB", "1", 1);
  std::string text = "20000 100 50\n";
  for (int row = 0; row < 20000; ++row)
    text += std::to_string(row % 50) + " " + std::to_string(row % 100) + ":2\n";
  const auto age = [&](const char* name, int minutes) {
    for (const auto& entry : cache_entries())
      if (entry.filename().string().starts_with(name))
        std::filesystem::last_write_time(
            entry, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(minutes));
  };
  const auto has = [&](const char* name) {
    return std::ranges::any_of(
        cache_entries(), [&](const auto& entry) { return entry.filename().string().starts_with(name); });
  };
  const auto a = folder_.write("a", text), b = folder_.write("b", text), c = folder_.write("c", text);
  const Dataset first = load_dataset(a, Normalize::kNone);
  const auto bytes = std::filesystem::file_size(cache_entries().front());
  ASSERT_GT(3 * bytes, 1u << 20);
  ASSERT_LT(2 * bytes, 1u << 20);
  load_dataset(b, Normalize::kNone);
  folder_.write("cache/mine.mlt", std::string(2 << 20, 'x'));
  age("a", 20);
  age("b", 30);
  age("mine", 40);
  load_dataset(b, Normalize::kNone);  // so a was used longest ago
  load_dataset(c, Normalize::kNone);
  EXPECT_FALSE(has("a."));
  EXPECT_TRUE(has("b.") && has("c.") && has("mine.mlt"));
  EXPECT_EQ(samples_of(first), testing::read_text(text)) << "what is mapped can be read on";
  ::setenv("MODELET_CACHE_MIB", "much", 1);
  EXPECT_THAT(error_of([&] { load_dataset(c, Normalize::kNone); }), HasSubstr("MODELET_CACHE_MIB"));
  ::unsetenv("MODELET_CACHE_MIB");
}

TEST_F(LoadDataset, ManyProcessesAndThreadsAtOnce) {
  std::string text = "5000 100 50\n";
  for (int row = 0; row < 5000; ++row)
    text += std::to_string(row % 50) + " " + std::to_string(row % 100) + ":2\n";
  const auto path = folder_.write("data.txt", text);
  const auto expected = testing::read_text(text);
  const auto load_is_right = [&] { return samples_of(load_dataset(path, Normalize::kNone)) == expected; };

  constexpr int kProcesses = 4, kThreads = 4;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      bool right = false;
      try {
        right = load_is_right();
      } catch (const std::exception&) {
      }
      ::_exit(right ? 0 : 1);
    }
    children.push_back(child);
  }
  std::vector<int> right(kThreads);
  std::vector<std::thread> threads;
  for (int& mine : right) threads.emplace_back([&] { mine = load_is_right(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(right, ::testing::Each(1));
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(cache_entries().size(), 1u);
}

TEST(LabelNames, OneALine) {
  const testing::TemporaryFolder folder;
  const auto path = folder.write("labels.txt", "zero\r\n\ntwo words\n");
  EXPECT_THAT(load_label_names(path, 3), ::testing::ElementsAre("zero", "", "two words"));
  EXPECT_THAT(error_of([&] { load_label_names(path, 4); }),
              HasSubstr("labels.txt:3: the file ends after 3 names; one name a line for each of 4 labels"));
  EXPECT_THAT(error_of([&] { load_label_names(path, 2); }),
              HasSubstr("labels.txt:3: more lines than labels"));
  EXPECT_THAT(error_of([&] { load_label_names(folder / "missing", 2); }), HasSubstr("No such file"));
}

TEST(DescribeShape, CountsAndMeans) {
  const testing::TemporaryFolder folder;
  const auto dataset = [&](const std::string& text) {
    testing::prepare_xmc(folder.write("data.txt", text), folder / "data.mlt", Normalize::kNone);
    return Dataset::open(folder / "data.mlt");
  };
  const DataShape shape =
      describe_shape(dataset("2 9 5\n1,2 1:1 2:1 3:1\n0 1:1\n"), dataset("1 9 5\n0 1:1\n"));
  EXPECT_EQ(shape.features, 9u);
  EXPECT_EQ(shape.labels, 5u);
  EXPECT_EQ(shape.train_rows, 2u);
  EXPECT_EQ(shape.test_rows, 1u);
  EXPECT_EQ(shape.features_per_row, 2);
  EXPECT_EQ(shape.labels_per_row, 1.5);
  EXPECT_THROW(describe_shape(dataset("1 9 5\n0 1:1\n"), dataset("1 9 6\n0 1:1\n")), UsageError);
}

}  // namespace
}  // namespace modelet::shard
