#include "shard/data/store/prepared.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/array/aligned.h"
#include "base/error.h"
#include "base/rng.h"
#include "shard/data/store/label_spread.h"
#include "shard/synth/synth_clicks.h"
#include "tests/shard/data_testing.h"

namespace modelet::shard {
namespace {

using testing::bytes_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OwnedSample;
using testing::TemporaryFolder;

constexpr size_t kHeaderBytes = 64, kEntryBytes = 64;
constexpr char kExampleText[] = "2 4 3\n0,2 1:0.5 3:2\n 0:1\n";

std::vector<OwnedSample> random_samples(size_t rows, uint32_t features, uint32_t labels, uint64_t seed) {
  std::vector<OwnedSample> samples(rows);
  for (size_t row = 0; row < rows; ++row) {
    Rng rng(seed, {row});
    for (uint32_t f = rng.below(3); f < features; f += 1 + rng.below(8)) {
      samples[row].features.push_back(f);
      samples[row].values.push_back(rng.normal());
    }
    for (uint32_t l = rng.below(20); l < labels; l += 1 + rng.below(20)) samples[row].labels.push_back(l);
  }
  return samples;
}

// The bytes of the file, aligned as parse_prepared wants them.
AlignedVector<std::byte> aligned_bytes(const std::string& bytes) {
  const auto source = std::as_bytes(std::span(bytes));
  return {source.begin(), source.end()};
}

// Reads all samples, with the labels of these neurons.
std::vector<OwnedSample> walk(const PreparedView& view, std::span<const NeuronRange> neurons) {
  const SampleLabels labels(view, neurons, "data.mlt");
  std::vector<OwnedSample> samples;
  for (size_t row = 0; row < view.rows; ++row) {
    const uint64_t begin = view.features.offsets[row], count = view.features.offsets[row + 1] - begin;
    samples.emplace_back(Sample{view.features.ids.subspan(begin, count),
                                view.features.values.subspan(begin, count), labels.of(row)});
  }
  return samples;
}
std::vector<OwnedSample> walk(const PreparedView& view) {
  return walk(view, std::vector<NeuronRange>{{0, view.labels}});
}

std::string prepared_bytes(const std::vector<OwnedSample>& samples, uint64_t features, uint64_t labels) {
  const TemporaryFolder folder;
  PreparedWriter writer(folder / "data.mlt", features, labels, Normalize::kNone);
  for (const OwnedSample& sample : samples) writer.add(sample.view());
  writer.set_encoder(std::as_bytes(std::span("some state")), 3);
  writer.finish();
  return bytes_of(folder / "data.mlt");
}

TEST(Prepared, RoundTripAndNothingLeftBehind) {
  const TemporaryFolder folder;
  const auto samples = random_samples(500, 100, 60, 7);
  PreparedWriter writer(folder / "data.mlt", 100, 60, Normalize::kNone);
  for (const OwnedSample& sample : samples) writer.add(sample.view());
  writer.finish();
  const Dataset data = Dataset::open(folder / "data.mlt", true);
  EXPECT_EQ(data.features(), 100u);
  EXPECT_EQ(data.labels(), 60u);
  EXPECT_EQ(testing::samples_of(data), samples);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

// Samples with a second block, in which ids have an order and are repeated, and a third, in which few samples
// have anything.
constexpr uint32_t kItems = 7;
std::vector<OwnedSample> other_part(size_t rows, uint32_t features, uint32_t one_in, uint64_t seed) {
  std::vector<OwnedSample> parts(rows);
  for (size_t row = 0; row < rows; ++row) {
    Rng rng(seed, {row});
    for (uint32_t left = rng.below(one_in) == 0 ? 1 + rng.below(9) : 0; left > 0; --left) {
      parts[row].features.push_back(rng.below(features));
      parts[row].values.push_back(rng.normal());
    }
  }
  return parts;
}
std::string bytes_of_blocks(const std::vector<OwnedSample>& samples, const std::vector<OwnedSample>& history,
                            const std::vector<OwnedSample>& rare, Normalize normalize = Normalize::kNone) {
  const TemporaryFolder folder;
  PreparedWriter writer(folder / "data.mlt", 100, 60, normalize, Existing::kReplace, 0,
                        {{"history", kItems}, {"rare", 1u << 30}});
  for (size_t row = 0; row < samples.size(); ++row) {
    const BlockSample others[] = {{history[row].features, history[row].values},
                                  {rare[row].features, rare[row].values}};
    writer.add(samples[row].view(), others);
  }
  writer.finish();
  return bytes_of(folder / "data.mlt");
}
std::vector<OwnedSample> part_of(const BlockView& block) {
  std::vector<OwnedSample> parts;
  for (size_t row = 0; row + 1 < block.offsets.size(); ++row)
    parts.emplace_back(Sample{block.of(row).features, block.of(row).values, {}});
  return parts;
}

TEST(Prepared, BlocksRoundTrip) {
  const auto samples = random_samples(500, 100, 60, 7), history = other_part(500, kItems, 1, 8),
             rare = other_part(500, 1u << 30, 20, 9);
  const TemporaryFolder folder;
  folder.write("data.mlt", bytes_of_blocks(samples, history, rare));
  const Dataset data = Dataset::open(folder / "data.mlt", true);
  EXPECT_EQ(testing::samples_of(data), samples) << "the first block is as it is without the others";
  EXPECT_EQ(data.features(), 100u);
  ASSERT_EQ(data.other_blocks().size(), 2u);
  EXPECT_EQ(data.other_blocks()[0].shape, (BlockShape{"history", kItems}));
  EXPECT_EQ(data.other_blocks()[1].shape, (BlockShape{"rare", 1u << 30}));
  EXPECT_EQ(part_of(data.other_blocks()[0]), history);
  EXPECT_EQ(part_of(data.other_blocks()[1]), rare);
}

// What is normalised is the first block: a value of another one may be the age of an event.
TEST(Prepared, OtherBlocksKeepTheirValues) {
  const auto samples = random_samples(50, 100, 60, 7), history = other_part(50, kItems, 1, 8);
  const auto bytes =
      aligned_bytes(bytes_of_blocks(samples, history, other_part(50, 9, 2, 9), Normalize::kL2));
  const PreparedView view = parse_prepared(bytes, "data.mlt", true);
  EXPECT_EQ(part_of(view.others.at(0)), history);
  EXPECT_NE(walk(view), samples);
}

TEST(Prepared, OtherBlocksAreInTheFingerprint) {
  const auto samples = random_samples(50, 100, 60, 7), history = other_part(50, kItems, 1, 8);
  auto changed = history;
  ASSERT_FALSE(changed[3].values.empty());
  changed[3].values[0] += 1;
  const auto print = [&](const std::vector<OwnedSample>& of) {
    return parse_prepared(aligned_bytes(bytes_of_blocks(samples, of, history)), "data.mlt", true).fingerprint;
  };
  EXPECT_EQ(print(history), print(history));
  EXPECT_NE(print(history), print(changed));
}

// A reader that gives the same samples, each with its labels as a second block.
class WithLabelsAsBlock final : public SampleReader {
 public:
  explicit WithLabelsAsBlock(XmcReader reader) : reader_(std::move(reader)) {}
  uint64_t features() const override { return reader_.features(); }
  uint64_t labels() const override { return reader_.labels(); }
  std::vector<BlockShape> other_blocks() const override { return {{"own", reader_.labels()}}; }
  std::span<const BlockSample> others() const override { return {&own_, 1}; }
  bool next(Sample& sample) override {
    if (!reader_.next(sample)) return false;
    ones_.assign(sample.labels.size(), 1.0f);
    own_ = {sample.labels, ones_};
    return true;
  }
  bool ready() const override { return reader_.ready(); }
  uint64_t bytes() const override { return reader_.bytes(); }
  double fraction() const override { return reader_.fraction(); }

 private:
  XmcReader reader_;
  std::vector<float> ones_;
  BlockSample own_;
};

TEST(Prepared, AReaderMayHaveBlocks) {
  const TemporaryFolder folder;
  WithLabelsAsBlock reader(testing::reader_of(kExampleText));
  prepare_text(reader, {}, folder / "data.mlt", Normalize::kNone);
  const Dataset data = Dataset::open(folder / "data.mlt", true);
  EXPECT_EQ(testing::samples_of(data), testing::read_text(kExampleText));
  EXPECT_EQ(part_of(data.other_blocks().front()),
            (std::vector<OwnedSample>{{{0, 2}, {1, 1}, {}}, {{}, {}, {}}}));
}

TEST(Prepared, AnAbandonedWriterLeavesNoFile) {
  const TemporaryFolder folder;
  {
    PreparedWriter writer(folder / "data.mlt", 100, 60, Normalize::kNone);
    writer.add(random_samples(1, 100, 60, 1).front().view());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Prepared, AFileThatAnotherProgramMakesMeanwhileStays) {
  const TemporaryFolder folder;
  std::ofstream(folder / "text") << "1 2 2\n0 1:1\n";
  for (const std::string name : {"data.mlt", "train.mlt", "train.txt", "train.tsv", "truth.json"}) {
    const auto make = [&](Existing existing) {
      const auto meanwhile = [&](uint64_t, auto...) { std::ofstream(folder / name) << "of another program"; };
      if (name == "data.mlt")
        prepare_data(folder / "text", Normalize::kNone, {}, folder / name, meanwhile, existing);
      else if (name == "train.mlt" || name == "train.txt")
        write_synth({.rows_train = 5000, .rows_test = 1}, folder.path(), true, meanwhile, existing);
      else
        write_clicks({.rows_train = 5000, .rows_test = 1}, folder.path(), meanwhile, existing);
      for (const char* other :
           {"train.mlt", "test.mlt", "train.txt", "test.txt", "train.tsv", "test.tsv", "truth.json"})
        if (other != name) std::filesystem::remove(folder / other);
    };
    EXPECT_THROW(make(Existing::kKeep), UsageError) << name;
    EXPECT_EQ(bytes_of(folder / name), "of another program") << name;
    std::filesystem::remove(folder / name);
  }
}

TEST(Prepared, KeepsTheEncoderAndWhatItLeftOut) {
  const TemporaryFolder folder;
  const auto samples = random_samples(5, 100, 60, 7);
  const std::string state = "how the text was read";
  PreparedWriter writer(folder / "data.mlt", 100, 60, Normalize::kNone);
  for (const OwnedSample& sample : samples) writer.add(sample.view());
  writer.set_encoder(std::as_bytes(std::span(state)), 17);
  writer.finish();
  const Dataset data = Dataset::open(folder / "data.mlt", true);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(data.encoder().data()), data.encoder().size()), state);
  EXPECT_EQ(data.encoder_checksum(), XXH3_64bits(state.data(), state.size()));
  EXPECT_EQ(data.unknown_labels(), 17u);
  EXPECT_EQ(testing::samples_of(data), samples);
}

TEST(Prepared, SectionsLargerThanTheBuffers) {
  const auto samples = random_samples(3000, 1000, 60, 3);  // about 670,000 non-zeros, 2.7 MB a section
  const auto bytes = aligned_bytes(prepared_bytes(samples, 1000, 60));
  EXPECT_EQ(walk(parse_prepared(bytes, "data.mlt", true)), samples);
}

// The neurons of a node determine which labels it has. The rest of the file may contain anything.
TEST(Prepared, LabelsOfSomeNeuronsAreReadWithoutTheOthers) {
  const uint64_t labels = 60;
  const auto samples = random_samples(300, 20, labels, 9);
  const auto good = aligned_bytes(prepared_bytes(samples, 20, labels));
  const LabelSpread spread(labels);
  const auto section = label_section(std::span(good).first(std::min(good.size(), kPreparedHeadBytes)),
                                     good.size(), "data.mlt");
  EXPECT_EQ(section.end, good.size());
  using Ranges = std::vector<NeuronRange>;
  for (const Ranges& neurons :
       {Ranges{}, {{0, 60}}, {{0, 1}}, {{59, 60}}, {{7, 7}}, {{10, 30}}, {{0, 5}, {5, 9}, {40, 60}}}) {
    const auto held = [&](uint32_t label) {
      return std::ranges::any_of(neurons, [neuron = spread.neuron(label)](const NeuronRange& range) {
        return range.begin <= neuron && neuron < range.end;
      });
    };
    auto bytes = good;
    const auto ranges = bytes_of_labels(bytes, neurons, "data.mlt");
    uint64_t at = section.begin, kept = 0;
    for (const ByteRange& range : ranges) {
      std::fill(bytes.begin() + static_cast<ptrdiff_t>(at),
                bytes.begin() + static_cast<ptrdiff_t>(range.begin), std::byte{0xff});
      at = range.end;
      kept += range.end - range.begin;
    }
    std::fill(bytes.begin() + static_cast<ptrdiff_t>(at), bytes.end(), std::byte{0xff});
    uint64_t wanted = 0;
    auto expected = samples;
    for (OwnedSample& sample : expected) {
      std::erase_if(sample.labels, [&](uint32_t label) { return !held(label); });
      wanted += sample.labels.size();
    }
    EXPECT_EQ(kept, wanted * sizeof(uint32_t));
    const PreparedView view = parse_prepared(bytes, "data.mlt", true, false);
    EXPECT_EQ(walk(view, neurons), expected);
    for (size_t row = 0; row < samples.size(); ++row)
      EXPECT_EQ(view.label_counts[row], samples[row].labels.size());
    if (wanted < view.label_samples.size()) {
      EXPECT_THROW(parse_prepared(bytes, "data.mlt", true), FormatError) << "not whole";
      EXPECT_THROW(walk(view), FormatError);
    }
  }
}

// A node whose neurons the file does not have was planned for another file.
TEST(Prepared, NeuronsBeyondTheLabelsAreAnError) {
  const auto bytes = aligned_bytes(prepared_bytes(random_samples(10, 20, 60, 9), 20, 60));
  const std::vector<NeuronRange> neurons = {{10, 20}, {40, 61}};
  EXPECT_THROW(bytes_of_labels(bytes, neurons, "data.mlt"), Error);
  EXPECT_THROW(walk(parse_prepared(bytes, "data.mlt", true), neurons), Error);
}

// Entries that do not fit into memory at once are sorted for a few neurons at a time.
TEST(Prepared, SortedInRangesIsTheSame) {
  const TemporaryFolder folder;
  const auto samples = random_samples(400, 10, 60, 11);
  for (const uint64_t at_once : {uint64_t{1}, uint64_t{50}, PreparedWriter::kSortedAtOnce}) {
    PreparedWriter writer(folder / std::to_string(at_once), 10, 60, Normalize::kNone, Existing::kReplace,
                          at_once);
    for (const OwnedSample& sample : samples) writer.add(sample.view());
    writer.finish();
  }
  EXPECT_EQ(bytes_of(folder / "1"), bytes_of(folder / std::to_string(PreparedWriter::kSortedAtOnce)));
  EXPECT_EQ(bytes_of(folder / "50"), bytes_of(folder / "1"));
  EXPECT_EQ(testing::samples_of(Dataset::open(folder / "1", true)), samples);
}

// Labels from other nodes: some labels of each sample are there, and the rest comes in any order.
TEST(Prepared, LabelsCanBeAdded) {
  const TemporaryFolder folder;
  folder.write("data.mlt", prepared_bytes(random_samples(100, 20, 60, 13), 20, 60));
  const Dataset all = Dataset::open(folder / "data.mlt");
  Dataset own = Dataset::open(folder / "data.mlt", true, {.neurons = {{{20, 40}}}});
  std::vector<LabelEntry> others;
  const auto is_wanted = [](size_t row) { return row % 3 == 0; };
  for (uint32_t row = 0; row < all.rows(); ++row)
    for (const uint32_t label : all.sample(row).labels)
      if (is_wanted(row) && std::ranges::count(own.sample(row).labels, label) == 0)
        others.push_back({row, label});
  std::ranges::reverse(others);
  const auto before = testing::samples_of(own);
  own.add_labels(others);
  EXPECT_GT(others.size(), 10u);
  for (size_t row = 0; row < all.rows(); ++row)
    EXPECT_EQ(OwnedSample(own.sample(row)), is_wanted(row) ? OwnedSample(all.sample(row)) : before[row])
        << row;
}

TEST(Prepared, NormalisesRows) {
  const TemporaryFolder folder;
  PreparedWriter writer(folder / "data.mlt", 9, 9, Normalize::kL2);
  writer.add(OwnedSample({1, 2}, {3, 4}, {0}).view());
  writer.add(OwnedSample({1, 2}, {2e38f, 2e38f}, {0}).view());
  writer.add(OwnedSample({}, {}, {0}).view());
  writer.add(OwnedSample({1, 2}, {1e-42f, 1e-42f}, {0}).view());
  writer.add(OwnedSample({1, 2}, {3e-35f, 4e-35f}, {0}).view());
  writer.finish();
  const Dataset data = Dataset::open(folder / "data.mlt");
  EXPECT_EQ(data.normalize(), Normalize::kL2);
  EXPECT_THAT(data.sample(0).values, ElementsAre(::testing::FloatEq(0.6f), ::testing::FloatEq(0.8f)));
  EXPECT_THAT(data.sample(1).values, ::testing::Each(::testing::FloatNear(std::sqrt(0.5f), 1e-6f)));
  EXPECT_THAT(data.sample(3).values, ElementsAre(1e-42f, 1e-42f)) << "1 / length is no finite float";
  EXPECT_THAT(data.sample(4).values, ElementsAre(::testing::FloatEq(0.6f), ::testing::FloatEq(0.8f)));
}

// docs/data_format.md shows the bytes of an example. They must be the bytes that are written.
TEST(Prepared, TheDocumentedExampleIsWhatIsWritten) {
  const TemporaryFolder folder;
  testing::prepare_xmc(folder.write("example.txt", kExampleText), folder / "example.mlt", Normalize::kNone);
  const std::string manual = bytes_of(std::filesystem::path(MODELET_DOCS) / "data_format.md");
  EXPECT_THAT(manual, HasSubstr("```\n" + std::string(kExampleText) + "```"));
  const std::string fence = "```hexdump\n";
  ASSERT_NE(manual.find(fence), std::string::npos);
  std::istringstream dump(manual.substr(manual.find(fence) + fence.size()));
  std::string documented;
  for (std::string line; std::getline(dump, line) && line != "```";) {
    std::istringstream columns(line);
    size_t offset = 0;
    columns >> std::hex >> offset;
    EXPECT_EQ(offset, documented.size()) << line;
    for (unsigned byte = 0; columns >> byte;) documented += static_cast<char>(byte);
  }
  EXPECT_EQ(documented, bytes_of(folder / "example.mlt"));
}

// A run can be resumed with a file that a later program prepared of the same text.
TEST(Prepared, TheFingerprintIsThatOfEarlierVersions) {
  const TemporaryFolder folder;
  testing::prepare_xmc(folder.write("example.txt", kExampleText), folder / "example.mlt", Normalize::kNone);
  EXPECT_EQ(Dataset::open(folder / "example.mlt").fingerprint(), 0xed69b7fede46d458u) << "that of version 3";
}

TEST(Prepared, EveryDamagedByteIsFoundOrHarmless) {
  const auto samples = random_samples(20, 50, 60, 5), history = other_part(20, kItems, 1, 8);
  const std::string good = bytes_of_blocks(samples, history, history);
  auto bytes = aligned_bytes(good);
  size_t harmless = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int mask : {0x01, 0x80, 0xff}) {
      bytes[at] ^= static_cast<std::byte>(mask);
      try {
        const PreparedView view = parse_prepared(bytes, "data.mlt", true);
        EXPECT_EQ(walk(view), samples) << "byte " << at;
        for (const BlockView& block : view.others) EXPECT_EQ(part_of(block), history) << "byte " << at;
        ++harmless;
      } catch (const FormatError&) {
      }
      bytes[at] ^= static_cast<std::byte>(mask);
    }
  }
  // Only the gaps between the sections may change unseen.
  EXPECT_LT(harmless, 11 * 64 * 3u);
}

// A hand-made file may have right checksums. Recomputing the checksum of the header after each mutation gets
// past the first defence.
TEST(Prepared, MutatedFilesNeverLeadOutsideTheirBytes) {
  const auto samples = random_samples(20, 50, 60, 5);
  const std::string good =
      bytes_of_blocks(samples, other_part(20, kItems, 1, 8), other_part(20, 1u << 30, 4, 9));
  constexpr size_t kHead = kHeaderBytes + 13 * kEntryBytes;
  constexpr int kInputs = 1'000'000;
  size_t accepted = 0;
  auto bytes = aligned_bytes(good);
  for (int i = 0; i < kInputs; ++i) {
    Rng rng(2, {static_cast<uint64_t>(i)});
    std::memcpy(bytes.data(), good.data(), good.size());
    size_t size = good.size();
    for (uint32_t change = 0; change <= rng.below(3); ++change) {
      const size_t at = rng.below(static_cast<uint32_t>(rng.below(2) == 0 ? kHead : good.size()));
      bytes[at] = static_cast<std::byte>(rng.below(4) == 0 ? 0xff : rng.next());
    }
    if (rng.below(8) == 0) size = rng.below(static_cast<uint32_t>(good.size()));
    testing::seal_header(std::span(bytes).first(size));
    try {
      // An exact copy, so that a sanitizer sees a read past its end.
      const AlignedVector<std::byte> exact(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
      const PreparedView view = parse_prepared(exact, "data.mlt", false);
      walk(view);
      for (const BlockView& block : view.others)
        for (const OwnedSample& part : part_of(block))
          for (const uint32_t id : part.features) EXPECT_LT(id, block.shape.features);
      ++accepted;
    } catch (const FormatError&) {
    }
  }
  EXPECT_GT(accepted, 0u);
  EXPECT_LT(accepted, static_cast<size_t>(kInputs));
}

TEST(Prepared, ValuesAreFinite) {
  const auto samples = random_samples(20, 50, 60, 5);
  const std::string good = prepared_bytes(samples, 50, 60);
  const auto file = aligned_bytes(good);
  const PreparedView view = parse_prepared(file, "data.mlt", false);
  const size_t row = 13, at = view.features.offsets[row];
  const auto values =
      static_cast<size_t>(reinterpret_cast<const std::byte*>(view.features.values.data()) - file.data());
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::string bytes = good;
    std::memcpy(bytes.data() + values + at * sizeof(float), &bad, sizeof bad);
    try {
      parse_prepared(aligned_bytes(bytes), "data.mlt", false);
      FAIL();
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), HasSubstr("data.mlt: damaged: sample 13 has the value "));
    }
  }
}

// Why a file is refused. `sealed`: with the right checksum of header and table.
std::string error_of(std::string bytes, bool sealed = false) {
  if (sealed) testing::seal_header(std::as_writable_bytes(std::span(bytes)));
  try {
    parse_prepared(aligned_bytes(bytes), "data.mlt", true);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Prepared, SaysWhatIsWrong) {
  const std::string good = prepared_bytes(random_samples(20, 50, 60, 5), 50, 60);
  const auto changed = [&](size_t at, char value) {
    std::string bytes = good;
    bytes[at] = value;
    return bytes;
  };
  EXPECT_THAT(error_of(""), HasSubstr("data.mlt: a prepared file has at least 64 bytes, this one has 0"));
  EXPECT_THAT(error_of(changed(0, 'x')), HasSubstr("not a prepared data file"));
  EXPECT_THAT(error_of(changed(8, 3)),
              AllOf(HasSubstr("version 3 of the format, and this program reads version 4"),
                    HasSubstr("prepare it again with 'modelet data prepare'")));
  EXPECT_THAT(error_of(changed(12, 1)), HasSubstr("byte order"));
  EXPECT_THAT(error_of(changed(24, 100)), HasSubstr("header is damaged"));
  EXPECT_THAT(error_of(changed(32, 1)), HasSubstr("header is damaged"));
  EXPECT_THAT(error_of(changed(kHeaderBytes + 3, 1)), HasSubstr("header is damaged"));
  EXPECT_THAT(error_of(changed(good.size() - 1, 1)), HasSubstr("checksum of the section 'labels.samples'"));
  EXPECT_THAT(error_of(good.substr(0, good.size() - 1)), HasSubstr("it is cut off"));
  EXPECT_THAT(error_of(good.substr(0, kHeaderBytes)), HasSubstr("header is damaged"));
  EXPECT_THAT(error_of(good + "x"), HasSubstr("was written to"));
}

// The table says what the file has. It is believed only as far as it makes sense.
TEST(Prepared, RefusesTablesThatMakeNoSense) {
  struct Field {
    size_t at, bytes;
  };
  constexpr Field kName = {0, 24}, kType = {24, 4}, kCount = {32, 8}, kLimit = {40, 8}, kOffset = {48, 8};
  const std::string good = prepared_bytes(random_samples(20, 50, 60, 5), 50, 60);
  const auto field = [](std::string& bytes, size_t section, Field which) {
    return std::span(bytes).subspan(kHeaderBytes + section * kEntryBytes + which.at, which.bytes);
  };
  const auto with = [&](size_t section, Field which, uint64_t value) {
    std::string bytes = good;
    std::memcpy(field(bytes, section, which).data(), &value, which.bytes);
    return bytes;
  };
  const auto named = [&](size_t section, std::string name) {
    std::string bytes = good;
    name.resize(kName.bytes);
    std::ranges::copy(name, field(bytes, section, kName).begin());
    return bytes;
  };
  ASSERT_EQ(error_of(good, true), "no error");
  EXPECT_THAT(error_of(named(1, "features.order"), true),
              HasSubstr("has a section 'features.order', which this program does not know"));
  EXPECT_THAT(error_of(named(1, std::string("features.ids\0x", 14)), true), HasSubstr("does not know"));
  EXPECT_THAT(error_of(named(1, std::string(24, '\n')), true), HasSubstr("does not know"));
  EXPECT_THAT(error_of(named(6, "labels.counts"), true), HasSubstr("'labels.counts' is there twice"));
  EXPECT_THAT(error_of(with(2, kType, 2), true),
              HasSubstr("'features.values' is there twice, or has another type"));
  EXPECT_THAT(error_of(with(2, kType, 200), true), HasSubstr("another type"));
  for (const uint64_t count : {uint64_t{0}, uint64_t{1} << 61, uint64_t{1} << 63, ~uint64_t{0}})
    EXPECT_THAT(error_of(with(1, kCount, count), true), HasSubstr("is not where the table must put it"))
        << count;
  for (const uint64_t offset : {uint64_t{0}, uint64_t{64}, uint64_t{1} << 40, ~uint64_t{0} - 63})
    EXPECT_THAT(error_of(with(3, kOffset, offset), true), HasSubstr("is not where the table must put it"))
        << offset;
  EXPECT_THAT(error_of(with(1, kLimit, uint64_t{1} << 31), true), HasSubstr("absurdly many features"));
  EXPECT_THAT(error_of(with(1, kLimit, 49), true), HasSubstr("do not ascend or are not below 49"));
  EXPECT_THAT(error_of(with(6, kLimit, 21), true), HasSubstr("'labels.samples' has other elements"));
  EXPECT_THAT(error_of(named(1, "history.ids"), true), HasSubstr("a section '.ids' is missing"));
  EXPECT_THAT(error_of(named(1, ".ids"), true), HasSubstr("does not know"));
  EXPECT_THAT(error_of(named(5, "history.ids"), true),
              HasSubstr("'history.ids' is there twice, or has another type"));
  std::string fewer = good;
  fewer[24] = 6;
  EXPECT_THAT(error_of(fewer, true), HasSubstr("is not where the table must put it"));
}

// A file may list its sections in another order: readers find them by name.
TEST(Prepared, SectionsAreFoundByName) {
  const auto samples = random_samples(20, 50, 60, 5);
  std::string bytes = prepared_bytes(samples, 50, 60);
  const auto entry = [&](size_t section) { return bytes.data() + kHeaderBytes + section * kEntryBytes; };
  const auto place = [&](size_t section) {
    uint64_t numbers[2];  // count, offset
    std::memcpy(&numbers[0], entry(section) + 32, 8);
    std::memcpy(&numbers[1], entry(section) + 48, 8);
    return std::pair(numbers[0], numbers[1]);
  };
  // Ids and values have the same size, so they can change places.
  const auto [count, ids] = place(1);
  const auto [same, values] = place(2);
  ASSERT_EQ(count, same);
  std::swap_ranges(bytes.begin() + static_cast<ptrdiff_t>(ids),
                   bytes.begin() + static_cast<ptrdiff_t>(ids + 4 * count),
                   bytes.begin() + static_cast<ptrdiff_t>(values));
  std::swap_ranges(entry(1), entry(2), entry(2));
  std::memcpy(entry(1) + 48, &ids, 8);
  std::memcpy(entry(2) + 48, &values, 8);
  testing::seal_header(std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(walk(parse_prepared(aligned_bytes(bytes), "data.mlt", true)), samples);
}

}  // namespace
}  // namespace modelet::shard
