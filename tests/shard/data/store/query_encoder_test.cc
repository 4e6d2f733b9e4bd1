#include "shard/data/store/query_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <thread>

#include "tests/error_of.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using ::testing::HasSubstr;
using testing::OwnedSample;

LineReader lines_of(const std::string& text) {
  return {std::make_unique<std::stringbuf>(text, std::ios::in), "query"};
}

// A format, a text to fit it on, and the same samples as queries without labels.
struct Case {
  std::string options, train, queries;
};

std::vector<OwnedSample> without_labels(std::vector<OwnedSample> samples) {
  for (OwnedSample& sample : samples) sample.labels.clear();
  return samples;
}

class QueryEncoderTest : public ::testing::TestWithParam<Case> {
 protected:
  QueryEncoderTest() {
    prepare_training_data(folder_.write("train", GetParam().train), Normalize::kL2,
                          parse_encoding(GetParam().options, "test"), folder_ / "train.mlt");
    data_.emplace(Dataset::open(folder_ / "train.mlt"));
  }

  QueryEncoder encoder() const {
    return {
        data_->encoder(), {.features = data_->features(), .labels = data_->labels()}, Normalize::kL2, "test"};
  }
  static std::vector<OwnedSample> read(const QueryEncoder& encoder, LineReader text) {
    const auto reader = encoder.open(std::move(text));
    std::vector<OwnedSample> samples;
    for (Sample sample; reader->next(sample);) samples.emplace_back(sample);
    return samples;
  }

  testing::TemporaryFolder folder_;
  std::optional<Dataset> data_;
};

TEST_P(QueryEncoderTest, ReadsAsTrainingDidWithAndWithoutLabels) {
  const std::vector<OwnedSample> expected = testing::samples_of(*data_);
  ASSERT_GT(expected.size(), 1u);
  EXPECT_EQ(read(encoder(), lines_of(GetParam().train)), expected);
  EXPECT_EQ(read(encoder(), lines_of(GetParam().queries)), without_labels(expected));
}

std::vector<OwnedSample> read_all(const std::unique_ptr<SampleReader>& reader) {
  std::vector<OwnedSample> samples;
  for (Sample sample; reader->next(sample);) samples.emplace_back(sample);
  return samples;
}

QueryEncoder encoder_of(const testing::TemporaryFolder& folder, const std::string& options,
                        const std::string& train) {
  prepare_training_data(folder.write("train", train), Normalize::kNone, parse_encoding(options, "test"),
                        folder / "train.mlt");
  const Dataset data = Dataset::open(folder / "train.mlt");
  return {data.encoder(), {.features = data.features(), .labels = data.labels()}, Normalize::kNone, "test"};
}

// The rows of a table, whatever door they come through.
TEST(QueryEncoderRowsTest, ARowIsReadAsItsRecord) {
  const testing::TemporaryFolder folder;
  const std::string table =
      "[data]\nformat='table'\n[table]\ncolumns=['label:y','num:n','cat:c,d']\nmin_count=1\n";
  const std::string records = "1,2,\"a,\"\"b\"\"\n\",c\n0,,n,d\n1,0.5,y,\n";
  const std::vector<Row> rows = {{"2.0", "a,\"b\"\r\n", "c"}, {"nan", "n", "d"}, {"0.5", "y", ""}};
  for (const bool header : {true, false}) {
    const QueryEncoder encoder = encoder_of(folder, table + "[csv]\nheader=" + (header ? "true" : "false"),
                                            (header ? "y,n,c,d\n" : "") + records);
    const auto expected = without_labels(read_all(encoder.open(LineReader(folder / "train"))));
    EXPECT_EQ(read_all(encoder.open_rows(rows, "rows")), expected);
    // A row of the names of the columns is no header.
    EXPECT_EQ(read_all(encoder.open_rows({{"", "n", "d"}}, "rows")), std::vector(1, expected[1]));
    EXPECT_THAT(test::error_of([&] {
                  read_all(encoder.open_rows({{"n", "c", "d"}}, "rows"));
                }),
                HasSubstr("rows: column 'n': expected a number"));
    EXPECT_THAT(test::error_of([&] {
                  read_all(encoder.open_rows({rows[0], {"x", "", ""}}, "rows"));
                }),
                HasSubstr("rows[1]: column 'n': expected a number"));
    EXPECT_THAT(test::error_of([&] {
                  read_all(encoder.open_rows({rows[0], {"1"}}, "rows"));
                }),
                HasSubstr("rows[1]: 1 values for the 3 columns of this model, n, c, d"));
    EXPECT_THAT(test::error_of([&] { read_all(encoder.open_texts({"a"}, "rows")); }),
                HasSubstr("reads columns"));
  }
}

TEST(QueryEncoderRowsTest, ATextStaysAText) {
  const testing::TemporaryFolder folder;
  const std::string csv = "[data]\nformat='csv'\n[csv]\nlabels='tag'\ntext=['title','body']\n";
  for (const char* delimiter : {"comma", "tab", "semicolon"}) {
    const char d = *delimiter == 'c' ? ',' : *delimiter == 't' ? '\t' : ';';
    std::string train = "title,tag,body\none two,a,2001.0\ntitle,b,body\n";
    std::ranges::replace(train, ',', d);
    const QueryEncoder encoder = encoder_of(folder, csv + "delimiter='" + delimiter + "'", train);
    const auto expected = without_labels(read_all(encoder.open(LineReader(folder / "train"))));
    EXPECT_EQ(read_all(encoder.open_rows({{"one\ttwo", "2001"}, {"title", "body"}}, "rows")), expected)
        << delimiter;
    EXPECT_EQ(read_all(encoder.open_texts({"\"one\", two; \n title\r"}, "rows")),
              read_all(encoder.open_rows({{"\"one\", two;\ttitle", ""}}, "rows")));
    EXPECT_EQ(read_all(encoder.open_texts({"title", "", "one"}, "rows")).size(), 3u);
  }
  const QueryEncoder text =
      encoder_of(folder, "[data]\nformat='text'", "__label__a one two, \"three\"\n__label__b four\n");
  const auto expected = without_labels(read_all(text.open(LineReader(folder / "train"))));
  EXPECT_EQ(read_all(text.open_texts({"one\ntwo,\t\"three\"", "four\r\n"}, "rows")), expected);
  EXPECT_THAT(test::error_of([&] { text.open_rows({{"a"}}, "rows"); }), HasSubstr("does not read columns"));
}

TEST(QueryEncoderRowsTest, TheFirstTextIsNoHeadOfAFile) {
  using namespace std::string_literals;
  const testing::TemporaryFolder folder;
  const std::string train = "__label__a x \ufeffx\n__label__b a\0b\0 y\n"s;
  const QueryEncoder text = encoder_of(folder, "[data]\nformat='text'\n[text]\nmin_count=1", train);
  for (const std::string& each : {"\ufeffx"s, "a\0b\0"s, "\xff\xfey"s}) {
    const auto twice = read_all(text.open_texts({each, each}, "rows"));
    ASSERT_EQ(twice.size(), 2u) << each;
    EXPECT_EQ(twice[0], twice[1]) << each;
  }
  EXPECT_NE(read_all(text.open_texts({"\ufeffx"}, "rows")), read_all(text.open_texts({"x"}, "rows")));
  const QueryEncoder ids({}, {.features = 9, .labels = 5}, Normalize::kNone, "test");
  EXPECT_THAT(test::error_of([&] { read_all(ids.open_texts({"3 9 5"}, "rows")); }),
              HasSubstr("expected FEATURE:VALUE"));
}

TEST_P(QueryEncoderTest, APipeIsReadAsItComes) {
  const std::filesystem::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(is_stream(pipe));
  EXPECT_FALSE(is_stream(folder_ / "train"));
  EXPECT_FALSE(is_stream(folder_.path()));
  EXPECT_FALSE(is_stream(folder_ / "nowhere"));
  EXPECT_TRUE(is_stream("-"));
  const std::string& text = GetParam().queries;
  std::thread writer([&] {
    std::ofstream out(pipe);
    for (const char c : text) out << c << std::flush;
  });
  const std::vector<OwnedSample> found = read(encoder(), LineReader::of_stream(pipe));
  writer.join();
  EXPECT_EQ(found, without_labels(testing::samples_of(*data_)));
}

INSTANTIATE_TEST_SUITE_P(
    Formats, QueryEncoderTest,
    ::testing::Values(
        Case{"[data]\nformat='xmc'", "3 9 5\n0,2 1:0.5 3:2\n4 8:1 2:3\n1 0:1\n",
             "1:0.5 3:2\n 8:1 2:3\n0:1\n"},
        Case{"[data]\nformat='xmc'", "2 9 5\n0,2 1:0.5 3:2\n4 8:1 2:3\n", "700 9 5\n1:0.5 3:2\n8:1 2:3"},
        Case{"[data]\nformat='text'", "__label__a one two\n__label__b two, two three\r\n",
             "one two\ntwo, two three"},
        Case{"[data]\nformat='csv'\n[csv]\nlabels='tag'\ntext=['title','body']",
             "title,tag,body\none two,a,\"three, \"\"four\"\"\nfive\"\nsix,b,one\n",
             "body,title\n\"three, \"\"four\"\"\nfive\",one two\none,six\n"},
        Case{"[data]\nformat='csv'\n[csv]\nlabels='1'\nheader=false\ntext=['2']", "a,one two\nb,two three\n",
             ",one two\n,two three\n"},
        Case{"[data]\nformat='table'\n[table]\ncolumns=['label:y','num:n','cat:c']\nmin_count=1",
             "y,n,c\n1,2.5,red\n0,-1,blue\n1,3,red\n", "c,n\nred,2.5\nblue,-1\nred,3\n"},
        Case{"[data]\nformat='table'\n[csv]\nheader=false\n[table]\ncolumns=['label:y','num:n','cat:c']"
             "\nmin_count=1",
             "1,2.5,red\n0,-1,blue\n1,3,red\n", "2.5,red\n-1,blue\n3,red\n"}));

TEST(QueryEncoderXmcTest, SaysWhatIsWrong) {
  const QueryEncoder encoder({}, {.features = 9, .labels = 5}, Normalize::kNone, "test");
  const auto error = [&](const std::string& text) {
    return test::error_of([&] {
      const auto reader = encoder.open(lines_of(text));
      for (Sample sample; reader->next(sample);) {
      }
    });
  };
  EXPECT_THAT(error("1:1\n9:1\n"), HasSubstr("query:2: feature id 9 is not below 9"));
  EXPECT_THAT(error("2 10 5\n1:1\n"), HasSubstr("10 features and 5 labels, the model has 9 and 5"));
  EXPECT_THAT(error("some words\n"), HasSubstr("expected a label id"));
  EXPECT_THAT(error("1:1\n2 9 5\n"), HasSubstr("expected FEATURE:VALUE"));
}

TEST(LineReaderStreamTest, RefusesWhatIsCompressedAndWhatHasNoLines) {
  testing::TemporaryFolder folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << "\x1F\x8B and more"; });
  LineReader reader = LineReader::of_stream(pipe);
  std::string_view line;
  EXPECT_THAT(test::error_of([&] { reader.next(line); }), HasSubstr("gzip -dc |"));
  writer.join();
}

}  // namespace
}  // namespace modelet::shard
