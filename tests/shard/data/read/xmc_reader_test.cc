#include "shard/data/read/xmc_reader.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <array>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filter/lzma.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <cmath>
#include <limits>
#include <streambuf>

#include "base/error.h"
#include "tests/error_of.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OwnedSample;
using testing::read_all;
using testing::read_text;
using testing::TemporaryFolder;

std::string xmc_error(const std::string& text) {
  try {
    read_text(text);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

template <class Compressor>
std::string compressed(const std::string& text, const Compressor& compressor) {
  std::string bytes;
  boost::iostreams::filtering_ostream stream;
  stream.push(compressor);
  stream.push(boost::iostreams::back_inserter(bytes));
  stream << text;
  stream.reset();
  return bytes;
}

std::string xz(const std::string& text) { return compressed(text, boost::iostreams::lzma_compressor()); }
std::string gz(const std::string& text) { return compressed(text, boost::iostreams::gzip_compressor()); }

TEST(XmcReader, ReadsHeaderAndSamples) {
  XmcReader reader = testing::reader_of("2 40 30\n0,29 1:0.5 39:-2e3\n7 0:1\n");
  EXPECT_EQ(reader.header().rows, 2u);
  EXPECT_EQ(reader.header().features, 40u);
  EXPECT_EQ(reader.header().labels, 30u);
  EXPECT_THAT(read_all(std::move(reader)),
              ElementsAre(OwnedSample({1, 39}, {0.5f, -2000.0f}, {0, 29}), OwnedSample({0}, {1.0f}, {7})));
}

TEST(XmcReader, AcceptsWhatTheManualSays) {
  struct Case {
    const char* line;
    OwnedSample sample;
  };
  const Case cases[] = {
      {" 3:1", {{3}, {1}, {}}},
      {"4", {{}, {}, {4}}},
      {"4 ", {{}, {}, {4}}},
      {"", {{}, {}, {}}},
      {"   ", {{}, {}, {}}},
      {"4,1 3:1 2:2", {{2, 3}, {2, 1}, {1, 4}}},
      {"4,1,4 3:1", {{3}, {1}, {1, 4}}},
      {"4 3:1 2:5 3:0.25", {{2, 3}, {5, 1.25}, {4}}},
      {"4 2:0 3:1 5:-0", {{3}, {1}, {4}}},
      {"4 3:1 3:-1", {{}, {}, {4}}},
      {"4 3:1e-60 5:1", {{5}, {1}, {4}}},
      {"4\t3:1\t \t5:.5  ", {{3, 5}, {1, 0.5}, {4}}},
  };
  for (const Case& c : cases)
    for (const std::string end : {"\n", "\r\n", "\n\n \n"})
      EXPECT_THAT(read_text("2 9 9\n1 1:1\n" + std::string(c.line) + end),
                  ElementsAre(OwnedSample({1}, {1}, {1}), c.sample))
          << "line '" << c.line << "'";
}

TEST(XmcReader, TheLastLineNeedsNoEnd) {
  EXPECT_THAT(read_text("1 9 9\n4 3:1"), ElementsAre(OwnedSample({3}, {1}, {4})));
  EXPECT_THAT(read_text("1 9 9\n "), ElementsAre(OwnedSample()));
  EXPECT_THAT(xmc_error("1 9 9\n"), HasSubstr("the file ends after 0 samples"));
}

TEST(XmcReader, RoundsSmallValuesLikeFloats) {
  const auto samples = read_text("1 9 9\n1 1:1e-40 2:1.17549435e-38\n");
  EXPECT_THAT(samples.at(0).values, ElementsAre(1e-40f, std::numeric_limits<float>::min()));
  const std::string zeros(400, '0');
  for (const std::string tiny : {"1e-400", "-1e-400", "1e-99999999999999999999"})
    EXPECT_THAT(read_text("1 9 9\n4 2:" + tiny + " 3:1\n"), ElementsAre(OwnedSample({3}, {1}, {4}))) << tiny;
  EXPECT_THAT(read_text("1 9 9\n4 2:0." + zeros + "1 3:1\n"), ElementsAre(OwnedSample({3}, {1}, {4})));
  EXPECT_THAT(xmc_error("1 9 9\n4 2:1" + zeros + "\n"), HasSubstr("beyond the range"));
  EXPECT_THAT(xmc_error("1 9 9\n4 2:-1e400\n"), HasSubstr("beyond the range"));
}

TEST(XmcReader, HeaderMayHaveCrlfAndSpaces) {
  EXPECT_EQ(read_text(" 1  9\t9 \r\n1 1:1\r\n").size(), 1u);
  EXPECT_EQ(read_text("0 0 0").size(), 0u);
}

TEST(XmcReader, ErrorsNameFileLineAndCause) {
  struct Case {
    const char *text, *where, *what;
  };
  const Case cases[] = {
      {"", "data.txt: ", "the file is empty"},
      {"1,2 3:4\n", "data.txt:1: ", "expected the header 'SAMPLES FEATURES LABELS'"},
      {"1 3:4 5:6\n", "data.txt:1: ", "found '1 3:4 5:6'"},
      {"1 2\n1 1:1\n", "data.txt:1: ", "found '1 2'"},
      {"1 2 3 4\n", "data.txt:1: ", "found '1 2 3 4'"},
      {"1 -2 3\n", "data.txt:1: ", "expected the header"},
      {"1 2.5 3\n", "data.txt:1: ", "expected the header"},
      {"1 2147483648 3\n", "data.txt:1: ", "'2147483648' is too large"},
      {"99999999999999999999999 2 3\n", "data.txt:1: ", "too large"},
      {"\177ELF\x02\x01\n", "data.txt:1: ", "found '\\x7fELF\\x02\\x01'"},
      {"1 9 9\n9 1:1\n", "data.txt:2: ", "label id 9 is not below 9"},
      {"1 9 9\n1 9:1\n", "data.txt:2: ", "feature id 9 is not below 9"},
      {"1 9 9\n4294967297 1:1\n", "data.txt:2: ", "label id 4294967297 is not below 9"},
      {"1 9 9\n1 123456789012345678901234567890:1\n", "data.txt:2: ", "expected FEATURE:VALUE"},
      {"1 9 9\n-1 1:1\n", "data.txt:2: ", "expected a label id (an integer), found '-1'"},
      {"1 9 9\n1, 1:1\n", "data.txt:2: ", "expected a label id"},
      {"1 9 9\n1;2 1:1\n", "data.txt:2: ", "found '1;2'; ids count from zero, and commas join several"},
      {"1 9 9\n12345678901 1:1\n",
       "data.txt:2: ", "expected a label id (an integer), found '12345678901', which is too large"},
      {"1 9 9\n1 12345678901:1\n", "data.txt:2: ", "found '12345678901:1', which is too large"},
      {"title,tag\nfoo,a\n", "data.txt:1: ", "or say with data.format that this is text of another kind"},
      {"1 9 9\n,1 1:1\n", "data.txt:2: ", "expected a label id"},
      {"1 9 9\n1:1 2:1\n", "data.txt:2: ", "a sample without labels starts with a space"},
      {"1 9 9\n1 -1:1\n", "data.txt:2: ", "found '-1:1'"},
      {"1 9 9\n1 2\n", "data.txt:2: ", "expected FEATURE:VALUE (for example '17:0.25'), found '2'"},
      {"1 9 9\n1 2:\n", "data.txt:2: ", "found '2:'"},
      {"1 9 9\n1 :2\n", "data.txt:2: ", "found ':2'"},
      {"1 9 9\n1 2: 3\n", "data.txt:2: ", "found '2:'"},
      {"1 9 9\n1 2:1x\n", "data.txt:2: ", "found '2:1x'"},
      {"1 9 9\n1 2:1,3:4\n", "data.txt:2: ", "found '2:1,3:4'"},
      {"1 9 9\n1 2:nan\n", "data.txt:2: ", "'2:nan' is not finite"},
      {"1 9 9\n1 2:-inf\n", "data.txt:2: ", "'2:-inf' is not finite"},
      {"1 9 9\n1 2:1e39\n", "data.txt:2: ", "'2:1e39' is beyond the range"},
      {"1 9 9\n1 2:1e999\n", "data.txt:2: ", "'2:1e999' is beyond the range"},
      {"1 9 9\n1 2:3e38 2:3e38\n", "data.txt:2: ", "feature 2 add up beyond the range"},
      {"2 9 9\n1 1:1\n", "data.txt:2: ", "the file ends after 1 samples, the header promises 2"},
      {"2000000000 2147483647 2147483647\n", "data.txt:1: ", "the file ends after 0 samples"},
      {"1 9 9\n1 1:1\n\n2 2:2\n", "data.txt:4: ", "more lines than the 1 samples"},
  };
  for (const Case& c : cases) {
    const std::string error = xmc_error(c.text);
    EXPECT_THAT(error, ::testing::StartsWith(c.where)) << c.text;
    EXPECT_THAT(error, HasSubstr(c.what)) << c.text;
  }
  EXPECT_THAT(xmc_error(std::string("1 9 9\n1 2:1\0junk\n", 18)),
              HasSubstr("data.txt:2: expected FEATURE:VALUE"));
}

// A text without end: `unit` over and over.
class Endless : public std::streambuf {
 public:
  explicit Endless(std::string unit) : unit_(std::move(unit)) {}
  int_type underflow() override {
    setg(unit_.data(), unit_.data(), unit_.data() + unit_.size());
    return traits_type::to_int_type(unit_[0]);
  }

 private:
  std::string unit_;
};

TEST(XmcReader, RefusesAnEndlessLine) {
  try {
    XmcReader reader(std::make_unique<Endless>(std::string(1 << 20, '7')), "data.txt");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("data.txt:1: the line is longer than 64 MiB"));
  }
}

TEST(XmcReader, ReadsLinesLongerThanItsBuffer) {
  std::string text = "3 300000 9\n";
  for (int row = 0; row < 3; ++row) {
    text += "1";
    for (int f = 0; f < 300000; ++f) text += " " + std::to_string(f) + ":" + std::to_string(row + 1);
    text += "\n";
  }
  const auto samples = read_text(text);
  ASSERT_EQ(samples.size(), 3u);
  for (size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(samples[row].features.size(), 300000u);
    EXPECT_EQ(samples[row].values, std::vector<float>(300000, static_cast<float>(row + 1)));
  }
}

std::string long_text(int rows) {
  std::string text = std::to_string(rows) + " 100 50\n";
  for (int row = 0; row < rows; ++row)
    text += std::to_string(row % 50) + " " + std::to_string(row % 100) + ":" +
            std::to_string(row * 7919 % 1000 + 1) + "\n";
  return text;
}

TEST(XmcReader, ReadsCompressedFilesWhateverTheirName) {
  const TemporaryFolder folder;
  const std::string text = long_text(20000);
  const auto expected = read_text(text);
  EXPECT_EQ(read_all(XmcReader(folder.write("a", text))), expected);
  EXPECT_EQ(read_all(XmcReader(folder.write("b", xz(text)))), expected);
  EXPECT_EQ(read_all(XmcReader(folder.write("c.txt", gz(text)))), expected);
}

TEST(XmcReader, ReadsJoinedStreams) {
  const TemporaryFolder folder;
  const std::string text = long_text(20000), head = text.substr(0, 70000), tail = text.substr(70000);
  const auto expected = read_text(text);
  EXPECT_EQ(read_all(XmcReader(folder.write("a.xz", xz(head) + xz(tail)))), expected);
  EXPECT_EQ(read_all(XmcReader(folder.write("a.gz", gz(head) + gz(tail)))), expected);
}

TEST(XmcReader, RefusesDamagedCompressedFiles) {
  const TemporaryFolder folder;
  const std::string text = long_text(20000);
  for (const std::string& whole : {xz(text), gz(text)}) {
    for (const size_t cut : {size_t{1}, size_t{7}, whole.size() / 2, whole.size() - 10}) {
      const auto path = folder.write("cut", whole.substr(0, whole.size() - cut));
      EXPECT_THROW(read_all(XmcReader(path)), FormatError) << "cut by " << cut;
    }
    for (size_t at = 12; at < whole.size(); at += whole.size() / 40) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      EXPECT_THROW(read_all(XmcReader(folder.write("damaged", damaged))), FormatError) << "byte " << at;
    }
  }
}

TEST(XmcReader, NamesOtherCompressionsAndWhatUnpacksThem) {
  const TemporaryFolder folder;
  using namespace std::string_literals;
  for (const auto& [start, name, command] : {std::array{"\x28\xB5\x2F\xFD\x04\0"s, "zstd"s, "zstd -d"s},
                                             {"BZh91AY&SY\x11"s, "bzip2"s, "bzip2 -d"s},
                                             {"\x04\x22\x4D\x18\x60"s, "lz4"s, "lz4 -d"s},
                                             {"PK\x03\x04\x14"s, "zip"s, "unzip"s}}) {
    const auto path = folder.write("data.txt", start);
    EXPECT_THAT(
        error_of([&] { XmcReader reader(path); }),
        AllOf(HasSubstr("compressed with " + name), HasSubstr("'" + command + " " + path.string() + "'")));
  }
  folder.write("data.txt", "BZh 1AY&");
  EXPECT_THAT(error_of([&] { XmcReader reader(folder / "data.txt"); }), HasSubstr("expected the header"));
}

TEST(XmcReader, NamesFilesThatAreNoText) {
  const TemporaryFolder folder;
  using namespace std::string_literals;
  for (const auto& [start, name, way_out] : {std::tuple("PAR1\x15\x04"s, "Parquet", "python3 -m modelet.table"),
                                             {"\x89HDF\r\n\x1A\n\0"s, "HDF5", "data.format"},
                                             {"\x93NUMPY\1\0v"s, "NumPy", "data.format"},
                                             {"ARROW1\0\0"s, "Arrow", "data.format"},
                                             {"SQLite format 3\0"s, "SQLite", "data.format"}}) {
    const auto path = folder.write("data.txt", start);
    EXPECT_THAT(error_of([&] { XmcReader reader(path); }),
                AllOf(HasSubstr("data.txt: is a file of "s + name), HasSubstr(way_out)));
  }
  folder.write("data.txt", "PAR1, SQLite and ARROW1 are words");
  EXPECT_THAT(error_of([&] { XmcReader reader(folder / "data.txt"); }), HasSubstr("expected the header"));
}

// In every format, and wherever the text comes from.
TEST(LineReader, NamesUtf16AndWhatConvertsIt) {
  const TemporaryFolder folder;
  using namespace std::string_literals;
  const std::string little = "1\0 \0002\0 \0003\0\n\0"s, big = "\0001\0 \0002\0 \0003\0\n"s;
  for (const std::string& text : {little, big, "\xFF\xFE" + little, "\xFE\xFF" + big}) {
    const auto refused =
        AllOf(HasSubstr("data.txt:1: the text is UTF-16"), HasSubstr("iconv -f UTF-16 -t UTF-8"));
    std::string_view line;
    EXPECT_THAT(error_of([&] { LineReader(folder.write("data.txt", text)).next(line); }), refused);
    EXPECT_THAT(error_of([&] { LineReader(folder.write("data.txt", text)).next_buffer(line, 0); }), refused);
    EXPECT_THAT(error_of([&] {
                  LineReader(std::make_unique<std::stringbuf>(text, std::ios::in), "data.txt").next(line);
                }),
                refused);
  }
}

TEST(XmcReader, RefusesPipesInsteadOfWaiting) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { XmcReader reader(folder / "pipe"); }), HasSubstr("is a pipe or a device"));
  EXPECT_THAT(error_of([&] { is_prepared(folder / "pipe"); }), HasSubstr("is a pipe or a device"));
  EXPECT_THAT(error_of([&] { Dataset::open(folder / "pipe"); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of([&] { is_prepared("/dev/null"); }), HasSubstr("is a pipe or a device"));
}

TEST(XmcReader, RefusesMoreLabelsThanTheTextCanAccountFor) {
  EXPECT_THAT(xmc_error("1 5 2147483647\n0 1:1\n"),
              HasSubstr("data.txt:1: the header says 2147483647 labels"));
  EXPECT_EQ(read_text("1 5 " + std::to_string(kMostLabelsUnseen) + "\n0 1:1\n").size(), 1u)
      << "one sample for a wide model";
  EXPECT_EQ(read_text("1 5 2147483647\n0 1:1" + std::string(size_t{2} << 20, ' ') + "\n").size(), 1u);
}

TEST(XmcReader, NamesFilesThatCannotBeRead) {
  const TemporaryFolder folder;
  try {
    XmcReader reader(folder / "missing.txt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("missing.txt: No such file or directory"));
  }
  EXPECT_THROW(XmcReader{folder.path()}, Error);
}

}  // namespace
}  // namespace modelet::shard
