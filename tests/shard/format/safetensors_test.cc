// safetensors: round trip, the bytes that the format defines, and every kind of malformed header.
#include "shard/format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace modelet::shard {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() : path_(testing::TempDir() + "modelet_safetensors_test.safetensors") {}
  ~SafetensorsTest() override { fs::remove(path_); }

  void write_anyway(const std::vector<Tensor>& tensors) const {
    const std::vector<std::byte> bytes = safetensors_bytes(tensors);
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

  fs::path path_;
};

std::string file_with(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

SafetensorsFile view(const std::string& bytes) { return {std::as_bytes(std::span(bytes)), "f"}; }

auto rejects(const std::string& text) { return ThrowsMessage<FormatError>(HasSubstr(text)); }

TEST_F(SafetensorsTest, NumbersAreFinite) {
  const float bad[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  for (const float value : bad)
    for (const size_t at : {size_t{0}, size_t{5}, size_t{2 * 4500 - 1}}) {
      std::vector<float> floats(size_t{2} * 4500, 1e38f);
      floats[at] = value;
      std::vector<Bf16> halves(floats.size());
      halves[at].bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      const std::string place = "[" + std::to_string(at / 4500) + ", " + std::to_string(at % 4500) + "]";
      // Neither written nor read.
      const std::vector of_floats{tensor("weight", {2, 4500}, floats)},
          of_halves{tensor("half", {2, 4500}, halves)};
      EXPECT_THAT([&] { write_safetensors(path_, of_floats); }, rejects(" at " + place + "; "));
      EXPECT_THAT([&] { write_safetensors(path_, of_halves); }, rejects(" at " + place + "; "));
      EXPECT_FALSE(fs::exists(path_));
      write_anyway(of_floats);
      EXPECT_THAT([&] { SafetensorsFile file(path_); }, rejects("tensor 'weight': "));
      EXPECT_THAT([&] { SafetensorsFile file(path_); }, rejects(" at " + place + "; "));
      EXPECT_THAT([&] { SafetensorsFile file(path_); }, rejects(path_.string()));
      write_anyway(of_halves);
      EXPECT_THAT([&] { SafetensorsFile file(path_); }, rejects(" at " + place + "; "));
      fs::remove(path_);
    }
  // Elements of a file from elsewhere may lie at any byte. Integers may have any bits.
  const std::string infinite("\x00\x00\x80\x7f", 4);
  EXPECT_THAT(
      [&] {
        view(file_with(R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
                       "u" + infinite));
      },
      rejects("tensor 'f': inf at [0]; "));
  EXPECT_NO_THROW(view(file_with(R"({"u":{"dtype":"U32","shape":[1],"data_offsets":[0,4]}})", infinite)));
}

TEST_F(SafetensorsTest, RoundTrip) {
  std::vector<float> f32(6);
  std::iota(f32.begin(), f32.end(), 0.5f);
  const std::vector<uint8_t> u8 = {1, 2, 3};
  const std::vector<uint16_t> bf16 = {0x3f80, 0x4000};
  const std::vector<uint32_t> u32 = {7};
  const std::vector<int64_t> i64 = {-5};
  const std::vector<uint64_t> u64 = {~uint64_t{0}, 1};
  const FileDigest digest = write_safetensors(
      path_,
      std::vector{tensor("u8", {3}, u8), tensor("f32", {2, 3}, f32), tensor("bf16", {1, 2}, bf16),
                  tensor("u32", {}, u32), tensor("i64", {1}, i64), tensor("u64", {2}, u64),
                  tensor("empty \"name\"", {0, 4}, std::vector<float>{})},
      {{"step", "12"}, {"é", "ü"}});
  const SafetensorsFile file(path_, &digest);
  EXPECT_EQ(digest.bytes, fs::file_size(path_));
  EXPECT_EQ(digest.xxh3, xxh3_of(file.bytes()));
  EXPECT_EQ(file.tensors().size(), 7u);
  EXPECT_EQ(file.metadata(), (Metadata{{"step", "12"}, {"é", "ü"}}));
  EXPECT_THAT(file.values<uint8_t>("u8", {3}), ElementsAre(1, 2, 3));
  EXPECT_THAT(file.values<float>("f32", {2, 3}), testing::ElementsAreArray(f32));
  EXPECT_THAT(file.values<uint16_t>("bf16", {1, 2}), ElementsAre(0x3f80, 0x4000));
  EXPECT_THAT(file.values<uint32_t>("u32", {}), ElementsAre(7));
  EXPECT_THAT(file.values<int64_t>("i64", {1}), ElementsAre(-5));
  EXPECT_THAT(file.values<uint64_t>("u64", {2}), ElementsAre(~uint64_t{0}, 1));
  EXPECT_EQ(file.values<float>("empty \"name\"", {0, 4}).size(), 0u);
  EXPECT_FALSE(file.contains("x"));
  for (const Tensor& t : file.tensors())
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.bytes.data()) % element_bytes(t.dtype), 0u) << t.name;
}

TEST_F(SafetensorsTest, BytesAreThoseOfTheDefinition) {
  const std::vector<float> values = {1.0f};
  write_safetensors(path_, std::vector{tensor("a", {1}, values)});
  std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  ASSERT_LT(header.size(), 56u);
  header.resize(56, ' ');  // 8 + 56 = 64: the data starts at a cache line
  EXPECT_EQ(read_text_file(path_), file_with(header, std::string("\x00\x00\x80\x3f", 4)));
}

TEST_F(SafetensorsTest, DigestIsCompared) {
  const std::vector<float> values(10, 1.0f);
  FileDigest digest = write_safetensors(path_, std::vector{tensor("a", {10}, values)});
  digest.bytes += 1;
  EXPECT_THAT([&] { SafetensorsFile(path_, &digest); }, rejects("expected"));
  digest.bytes -= 1;
  digest.xxh3 ^= 1;
  EXPECT_THAT([&] { SafetensorsFile(path_, &digest); }, rejects("damaged"));
}

TEST_F(SafetensorsTest, ForeignFilesOpen) {
  // Other writers do not pad, order by name, and may add metadata anywhere.
  const std::string bytes = file_with(
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})",
      "\x01\x02\x03\x04xy");
  const SafetensorsFile file = view(bytes);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_THAT(file.values<uint8_t>("b", {2}), ElementsAre('x', 'y'));
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST_F(SafetensorsTest, MalformedHeadersAreRefused) {
  const auto open = [](const std::string& header, size_t data = 8) {
    return [=] { view(file_with(header, std::string(data, 'd'))); };
  };
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"("t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const auto one = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return open("{" + entry(dtype, shape, offsets) + "}");
  };
  EXPECT_NO_THROW(one("F32", "[2]", "[0,8]")());

  EXPECT_THAT([] { view("1234567"); }, rejects("too short"));
  EXPECT_THAT([] { view(std::string(8, '\xff')); }, rejects("header of 18446744073709551615 bytes"));
  EXPECT_THAT([] { view(file_with("{}", "").substr(0, 9)); }, rejects("a header of 2 bytes in a file of 9"));
  EXPECT_THAT(open(std::string(17 << 20, ' ')), rejects("limit"));
  EXPECT_THAT(open(""), rejects("not valid JSON"));
  EXPECT_THAT(open("{} x"), rejects("not valid JSON"));
  EXPECT_THAT(open("[]"), rejects("not an object"));
  EXPECT_THAT(open("{"), rejects("not valid JSON"));
  EXPECT_THAT(open("{\"a\":\"\xff\"}"), rejects("not valid JSON"));
  EXPECT_THAT(open("{\"t\":" + std::string(100000, '[')), rejects("nested deeper"));
  EXPECT_THAT(open("{" + entry("F32", "[1]", "[0,4]") + "," + entry("F32", "[1]", "[4,8]") + "}"),
              rejects("'t' appears twice"));
  EXPECT_THAT(open(R"({"t":5})"), rejects("tensor 't'"));
  EXPECT_THAT(open(R"({"t":{"dtype":"F32","shape":[2]}})"), rejects("tensor 't'"));
  EXPECT_THAT(open(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})"),
              rejects("members other"));
  EXPECT_THAT(open(R"({"t":{"dtype":5,"shape":[2],"data_offsets":[0,8]}})"),
              rejects("'dtype' is not a string"));
  EXPECT_THAT(open(R"({"__metadata__":5})", 0), rejects("__metadata__"));
  EXPECT_THAT(open(R"({"__metadata__":{"a":5}})", 0), rejects("__metadata__"));
  EXPECT_THAT(one("F99", "[2]", "[0,8]"), rejects("type 'F99' is not supported"));
  EXPECT_THAT(one("F32", "5", "[0,8]"), rejects("'shape' is not a list"));
  EXPECT_THAT(one("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), rejects("'shape' is not a list of at most 8"));
  EXPECT_THAT(one("F32", "[-2]", "[0,8]"), rejects("unsigned"));
  EXPECT_THAT(one("F32", "[2.0]", "[0,8]"), rejects("unsigned"));
  EXPECT_THAT(one("F32", "[18446744073709551616]", "[0,8]"), rejects("unsigned"));
  EXPECT_THAT(one("F32", "[4611686018427387906]", "[0,8]"), rejects("do not fit"))
      << "the product overflows to 8";
  EXPECT_THAT(one("F32", "[3]", "[0,8]"), rejects("8 bytes do not fit F32 [3]"));
  EXPECT_THAT(one("F32", "[2]", "[0,8,8]"), rejects("data_offsets"));
  EXPECT_THAT(one("F32", "[2]", "[8,0]"), rejects("data_offsets [8, 0] are not inside"));
  EXPECT_THAT(one("F32", "[2]", "[4,12]"), rejects("not inside the 8 bytes"));
  EXPECT_THAT(one("F32", "[2]", "[18446744073709551612,4]"), rejects("not inside"));
  EXPECT_THAT(one("F32", "[1]", "[4,8]"), rejects("hole"));
  EXPECT_THAT(one("F32", "[1]", "[0,4]"), rejects("4 bytes after the last tensor"));
  EXPECT_THAT(open("{}"), rejects("8 bytes after"));
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[6],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[6],"data_offsets":)" + b + "}}";
  };
  EXPECT_THAT(open(two("[0,6]", "[2,8]")), rejects("overlaps"));
  EXPECT_THAT(open(two("[0,6]", "[0,6]")), rejects("overlaps"));
}

TEST_F(SafetensorsTest, WrongExpectationsAreRefused) {
  const std::string bytes =
      file_with(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, 'd'));
  const SafetensorsFile file = view(bytes);
  EXPECT_THAT([&] { file.values<float>("u", {2}); }, rejects("no tensor 'u'"));
  EXPECT_THAT([&] { file.values<uint32_t>("t", {2}); }, rejects("is F32 [2], expected U32 [2]"));
  EXPECT_THAT([&] { file.values<float>("t", {2, 1}); }, rejects("expected F32 [2, 1]"));
}

TEST_F(SafetensorsTest, MutatedHeadersNeverDoMoreThanFail) {
  const std::vector<float> weights(12, 1.0f);
  const std::vector<uint32_t> clocks(3, 1);
  write_safetensors(path_, std::vector{tensor("weight", {3, 4}, weights), tensor("clock", {3}, clocks)},
                    {{"k", "v"}});
  const std::string original = read_text_file(path_);
  const size_t header_end = original.size() - 60;
  Rng rng(5);
  int accepted = 0;
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = original;
    for (uint32_t edits = 1 + rng.below(3); edits > 0; --edits) {
      const uint32_t at = rng.below(static_cast<uint32_t>(header_end));
      if (rng.below(2) != 0) {
        bytes[at] = static_cast<char>(rng.below(256));
      } else {
        bytes[at] = "0123456789[]{},:\"-. eE"[rng.below(22)];
      }
    }
    if (rng.below(10) == 0) bytes.resize(rng.below(static_cast<uint32_t>(bytes.size())));
    try {
      const SafetensorsFile file = view(bytes);
      ++accepted;
      uint64_t total = 0, sum = 0;  // touch every byte, so that the sanitizer sees a range outside
      for (const Tensor& t : file.tensors()) {
        total += t.bytes.size();
        for (const std::byte b : t.bytes) sum += static_cast<uint64_t>(b);
      }
      ASSERT_LE(total, bytes.size());
      ASSERT_LE(sum, 255 * total);
    } catch (const FormatError&) {
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, kRounds);
}

}  // namespace
}  // namespace modelet::shard
