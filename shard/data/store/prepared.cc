#include "shard/data/store/prepared.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include "base/array/aligned.h"
#include "base/error.h"
#include "base/system/file.h"
#include "base/text/printable.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/store/label_spread.h"
#include "shard/kernels/elementwise.h"

namespace modelet::shard {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the prepared format is the memory of a little-endian machine");

// Not text in any encoding, and changed by a transfer that rewrites line ends.
constexpr std::array<unsigned char, 8> kMagic = {0x89, 'M', 'L', 'T', '\r', '\n', 0x1a, '\n'};
constexpr uint32_t kByteOrder = 0x01020304;
constexpr uint32_t kFlagL2 = 1;

enum class ElementType : uint32_t { kByte = 1, kU32, kU64, kF32 };
constexpr std::array<uint64_t, 5> kElementBytes = {0, 1, 4, 8, 4};  // by ElementType

// Sections in the order in which they are written.
enum Section : size_t {
  kFeatureOffsets,  // [rows + 1] into the next two
  kFeatureIds,
  kValues,
  kLabelCounts,  // [rows] labels of a sample
  kFrequencies,  // [labels] samples of the label of a neuron
  kEncoder,
  kLabelSamples,  // the samples of each neuron's label
  kSections
};
using SectionName = std::array<char, 24>;  // filled with zeros
constexpr SectionName section_name(std::string_view text) {
  SectionName name{};
  std::ranges::copy(text, name.begin());
  return name;
}
std::string text_of(const SectionName& name) { return {name.data(), ::strnlen(name.data(), name.size())}; }

struct SectionKind {
  SectionName name;
  ElementType type;
};
constexpr std::array<SectionKind, kSections> kKinds = {
    {{section_name("features.offsets"), ElementType::kU64},
     {section_name("features.ids"), ElementType::kU32},
     {section_name("features.values"), ElementType::kF32},
     {section_name("labels.counts"), ElementType::kU32},
     {section_name("labels.frequencies"), ElementType::kU32},
     {section_name("encoder"), ElementType::kByte},
     {section_name("labels.samples"), ElementType::kU32}}};

// A row of the table of sections, which follows the header.
struct SectionEntry {
  SectionName name;
  ElementType type;
  uint32_t zero;
  uint64_t count;  // of elements
  uint64_t limit;  // ids lie below it; 0: these are no ids
  uint64_t offset;
  uint64_t checksum;  // XXH3-64

  uint64_t bytes() const { return count * kElementBytes[static_cast<size_t>(type)]; }
};
static_assert(sizeof(SectionEntry) == 64);

// The first bytes of the file.
struct Header {
  std::array<unsigned char, 8> magic;
  uint32_t version, byte_order;
  uint64_t checksum;  // XXH3-64 of everything below, and of the table
  uint32_t sections, flags;
  uint64_t rows, labels, unknown_labels, zero;

  uint64_t table_end() const { return sizeof(Header) + sections * sizeof(SectionEntry); }
};
static_assert(sizeof(Header) == 64);

// A header and its table, checked.
struct Contents {
  Header header;
  std::array<SectionEntry, kSections> sections;  // by Section

  template <class T>
  std::span<const T> of(std::span<const std::byte> file, Section which) const {
    return {reinterpret_cast<const T*>(file.data() + sections[which].offset), sections[which].count};
  }
};

uint64_t head_checksum(std::span<const std::byte> head) {
  constexpr size_t kFrom = offsetof(Header, sections);
  return XXH3_64bits(head.data() + kFrom, head.size() - kFrom);
}

uint64_t aligned(uint64_t offset) { return (offset + kCacheLine - 1) / kCacheLine * kCacheLine; }

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw FormatError(name + ": " + what + "; prepare it again with 'modelet data prepare'");
}

Header read_header(std::span<const std::byte> head, const std::string& name) {
  Header header;
  if (head.size() < sizeof header)
    fail(name, "a prepared file has at least " + std::to_string(sizeof header) + " bytes, this one has " +
                   std::to_string(head.size()));
  std::memcpy(&header, head.data(), sizeof header);
  if (header.magic != kMagic) fail(name, "not a prepared data file (its first bytes differ)");
  if (header.byte_order != kByteOrder) fail(name, "written on a machine of another byte order, or damaged");
  if (header.version != kPreparedVersion)
    fail(name, "was prepared in version " + std::to_string(header.version) +
                   " of the format, and this program reads version " + std::to_string(kPreparedVersion));
  if (header.sections > kMostSections || header.table_end() > head.size() ||
      header.checksum != head_checksum(head.first(header.table_end())))
    fail(name, "the header is damaged (its checksum differs)");
  if (header.rows >= kMaxCount || header.labels >= kMaxCount)
    fail(name, "a count in the header is absurdly large");
  if ((header.flags & ~kFlagL2) != 0 || header.zero != 0) fail(name, "unknown flags in the header");
  return header;
}

// The numbers of elements must be those that follow from the header and from each other.
void check_counts_of_sections(const Contents& contents, const std::string& name) {
  const auto& [header, sections] = contents;
  const uint64_t nonzeros = sections[kFeatureIds].count, features = sections[kFeatureIds].limit;
  const std::array<uint64_t, kSections> counts = {header.rows + 1,
                                                  nonzeros,
                                                  nonzeros,
                                                  header.rows,
                                                  header.labels,
                                                  sections[kEncoder].count,
                                                  sections[kLabelSamples].count};
  const std::array<uint64_t, kSections> limits = {0, features, 0, 0, 0, 0, header.rows};
  for (size_t i = 0; i < kSections; ++i)
    if (sections[i].count != counts[i] || sections[i].limit != limits[i])
      fail(name,
           "its section '" + text_of(kKinds[i].name) + "' does not have the elements that the header says");
  if (features >= kMaxCount) fail(name, "has absurdly many features");
  if (sections[kEncoder].count > kMaxEncoderBytes)
    fail(name, "its encoder has more than " + std::to_string(kMaxEncoderBytes >> 30) + " GiB");
}

// `head`: the first kPreparedHeadBytes of the file, or more, or all. A right checksum does not prove that the
// table is right: a file may be made by hand.
Contents read_contents(std::span<const std::byte> head, uint64_t file_bytes, const std::string& name) {
  Contents contents{.header = read_header(head, name), .sections = {}};
  uint64_t end = contents.header.table_end();
  size_t last = kSections;
  for (uint32_t i = 0; i < contents.header.sections; ++i) {
    SectionEntry entry;
    std::memcpy(&entry, head.data() + sizeof(Header) + i * sizeof entry, sizeof entry);
    last = static_cast<size_t>(std::ranges::find(kKinds, entry.name, &SectionKind::name) - kKinds.begin());
    const std::string section = "section '" + printable(text_of(entry.name)) + "'";
    // Samples without a part that the program does not know would be other samples.
    if (last == kSections) fail(name, "has a " + section + ", which this program does not know");
    SectionEntry& place = contents.sections[last];
    if (place.offset != 0 || entry.type != kKinds[last].type || entry.zero != 0)
      fail(name, "its " + section + " is there twice, or has another type");
    if (entry.offset != aligned(end) || entry.offset > file_bytes ||
        entry.count > (file_bytes - entry.offset) / kElementBytes[static_cast<size_t>(entry.type)])
      fail(
          name,
          "its " + section +
              " is not where the table must put it, or ends behind the file; it is cut off or was written to");
    end = entry.offset + entry.bytes();
    place = entry;
  }
  if (end != file_bytes)
    fail(name, "has " + std::to_string(file_bytes) + " bytes, its table says " + std::to_string(end) +
                   "; it is cut off or was written to");
  for (size_t i = 0; i < kSections; ++i)
    if (contents.sections[i].offset == 0) fail(name, "has no section '" + text_of(kKinds[i].name) + "'");
  if (last != kLabelSamples)
    fail(name, "its last section is not '" + text_of(kKinds[kLabelSamples].name) + "'");
  check_counts_of_sections(contents, name);
  return contents;
}

// The same for the same samples, whatever the version of the format.
uint64_t fingerprint_of(const Contents& contents) {
  std::array<uint64_t, 4 + kEncoder> facts = {contents.header.rows, contents.sections[kFeatureIds].limit,
                                              contents.header.labels,
                                              contents.sections[kLabelSamples].checksum};
  for (size_t i = 0; i < kEncoder; ++i) facts[4 + i] = contents.sections[i].checksum;
  return XXH3_64bits(facts.data(), sizeof facts);
}

void check_offsets(std::span<const uint64_t> offsets, uint64_t entries, const std::string& name) {
  bool monotone = offsets.front() == 0 && offsets.back() == entries;
  for (size_t i = 1; i < offsets.size(); ++i) monotone &= offsets[i - 1] <= offsets[i];
  if (!monotone) fail(name, "damaged: the samples' offsets do not ascend");
}

// Counts are below 2^32 and fewer than 2^31: their sum does not wrap.
void check_counts(std::span<const uint32_t> counts, uint64_t entries, const char* what,
                  const std::string& name) {
  uint64_t sum = 0;
  for (const uint32_t count : counts) sum += count;
  if (sum != entries) fail(name, std::string("damaged: the counts of ") + what + " are wrong");
}

void check_ids(std::span<const uint64_t> offsets, std::span<const uint32_t> ids, uint64_t count,
               const std::string& name) {
  for (size_t row = 0; row + 1 < offsets.size(); ++row) {
    const auto of_row = ids.subspan(offsets[row], offsets[row + 1] - offsets[row]);
    if (of_row.empty()) continue;
    bool good = of_row.back() < count;
    for (size_t i = 1; i < of_row.size(); ++i) good &= of_row[i - 1] < of_row[i];
    if (!good)
      fail(name, "damaged: the feature ids of sample " + std::to_string(row) +
                     " do not ascend or are not below " + std::to_string(count));
  }
}

// `neurons` ascend. They come from a run's plan, and the file may not be the one that the plan was made for.
void require_neurons(std::span<const NeuronRange> neurons, uint64_t labels, const std::string& name) {
  uint64_t before = 0;
  for (const NeuronRange& range : neurons) {
    MODELET_CHECK(before <= range.begin && range.begin <= range.end);
    before = range.end;
  }
  if (before > labels)
    throw Error(name + ": has " + std::to_string(labels) + " labels, the run was planned for " +
                std::to_string(before) + " or more: it is not the data of that run");
}

void check_values(std::span<const uint64_t> offsets, std::span<const float> values, const std::string& name) {
  const size_t at = kernels::first_not_finite(values.data(), values.size());
  if (at == values.size()) return;
  const auto row = std::ranges::upper_bound(offsets, at) - offsets.begin() - 1;
  fail(name, "damaged: sample " + std::to_string(row) + " has the value " + std::to_string(values[at]) +
                 ", which is no finite number");
}

}  // namespace

bool is_prepared(const std::filesystem::path& path) {
  require_regular_file(path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(errno_text(path.string()));
  std::array<char, kMagic.size()> first{};
  file.read(first.data(), first.size());
  return std::memcmp(first.data(), kMagic.data(), kMagic.size()) == 0;
}

PreparedView parse_prepared(std::span<const std::byte> bytes, const std::string& name, bool verify,
                            bool whole) {
  const Contents contents = read_contents(bytes, bytes.size(), name);
  const auto& [header, sections] = contents;
  if (verify) {
    for (size_t i = 0; i < (whole ? kSections : kLabelSamples); ++i)
      if (XXH3_64bits(bytes.data() + sections[i].offset, sections[i].bytes()) != sections[i].checksum)
        fail(name, "damaged: the checksum of the section '" + text_of(kKinds[i].name) + "' differs");
  }
  PreparedView view;
  view.rows = header.rows;
  view.features = sections[kFeatureIds].limit;
  view.labels = header.labels;
  view.label_entries = sections[kLabelSamples].count;
  view.normalize = (header.flags & kFlagL2) != 0 ? Normalize::kL2 : Normalize::kNone;
  view.feature_offsets = contents.of<uint64_t>(bytes, kFeatureOffsets);
  view.feature_ids = contents.of<uint32_t>(bytes, kFeatureIds);
  view.values = contents.of<float>(bytes, kValues);
  view.label_counts = contents.of<uint32_t>(bytes, kLabelCounts);
  view.frequencies = contents.of<uint32_t>(bytes, kFrequencies);
  view.label_samples = contents.of<uint32_t>(bytes, kLabelSamples);
  view.encoder = contents.of<std::byte>(bytes, kEncoder);
  view.encoder_checksum = view.encoder.empty() ? 0 : sections[kEncoder].checksum;
  view.unknown_labels = header.unknown_labels;
  view.fingerprint = fingerprint_of(contents);
  check_offsets(view.feature_offsets, view.feature_ids.size(), name);
  check_ids(view.feature_offsets, view.feature_ids, view.features, name);
  check_values(view.feature_offsets, view.values, name);
  check_counts(view.label_counts, view.label_entries, "labels of samples", name);
  check_counts(view.frequencies, view.label_entries, "samples of labels", name);
  return view;
}

ByteRange label_section(std::span<const std::byte> head, uint64_t file_bytes, const std::string& name) {
  return {read_contents(head, file_bytes, name).sections[kLabelSamples].offset, file_bytes};
}

std::vector<ByteRange> bytes_of_labels(std::span<const std::byte> file, std::span<const NeuronRange> neurons,
                                       const std::string& name) {
  const Contents contents = read_contents(file, file.size(), name);
  const SectionEntry& samples = contents.sections[kLabelSamples];
  const auto frequencies = contents.of<uint32_t>(file, kFrequencies);
  check_counts(frequencies, samples.count, "samples of labels", name);
  std::vector<ByteRange> ranges;
  uint64_t neuron = 0, at = samples.offset;
  require_neurons(neurons, contents.header.labels, name);
  const auto skip_to = [&](uint64_t end) {
    for (; neuron < end; ++neuron) at += frequencies[neuron] * sizeof(uint32_t);
    return at;
  };
  for (const NeuronRange& range : neurons) {
    const uint64_t begin = skip_to(range.begin), end = skip_to(range.end);
    if (begin < end) ranges.push_back({begin, end});
  }
  return ranges;
}

SampleLabels::SampleLabels(const PreparedView& view, std::span<const NeuronRange> neurons,
                           const std::string& name)
    : offsets_(view.rows + 1) {
  if (neurons.empty()) return;
  const auto wrong = [&](const LabelSpread& spread, uint64_t neuron) {
    fail(name, "damaged: the samples of label " +
                   std::to_string(spread.label(static_cast<uint32_t>(neuron))) +
                   " do not ascend or are not below " + std::to_string(view.rows));
  };
  require_neurons(neurons, view.labels, name);
  const LabelSpread spread(view.labels);
  constexpr uint64_t kNotHeld = ~uint64_t{0};
  std::vector<uint64_t> places(view.labels, kNotHeld);  // where a neuron's samples begin
  uint64_t neuron = 0, at = 0, held = 0;
  for (const NeuronRange& range : neurons) {
    for (; neuron < range.begin; ++neuron) at += view.frequencies[neuron];
    held += range.end - range.begin;
    for (; neuron < range.end; ++neuron) {
      const auto samples = view.label_samples.subspan(at, view.frequencies[neuron]);
      if (samples.empty()) continue;
      bool good = samples.back() < view.rows;
      for (size_t i = 1; i < samples.size(); ++i) good &= samples[i - 1] < samples[i];
      if (!good) wrong(spread, neuron);
      for (const uint32_t sample : samples) ++offsets_[sample + 1];
      places[neuron] = at;
      at += samples.size();
    }
  }
  for (size_t row = 0; row < view.rows; ++row) {
    const uint64_t here = offsets_[row + 1], all = view.label_counts[row];
    if (held == view.labels ? here != all : here > all)
      fail(name, "damaged: sample " + std::to_string(row) + " has another number of labels than it says");
    offsets_[row + 1] += offsets_[row];
  }
  // Filled in the order of labels, so that the labels of a sample ascend. The end of each sample moves until
  // it reaches the beginning of the next one.
  labels_.resize(offsets_.back());
  for (uint32_t label = 0; label < view.labels; ++label) {
    const uint32_t of_label = spread.neuron(label);
    if (places[of_label] == kNotHeld) continue;
    for (const uint32_t sample : view.label_samples.subspan(places[of_label], view.frequencies[of_label]))
      labels_[offsets_[sample]++] = label;
  }
  std::shift_right(offsets_.begin(), offsets_.end(), 1);
  offsets_.front() = 0;
}

void SampleLabels::add(std::vector<LabelEntry>& entries) {
  std::ranges::sort(entries);
  std::vector<uint32_t> merged;
  merged.reserve(labels_.size() + entries.size());
  auto next = entries.begin();
  uint64_t before = 0;  // where the sample's labels began
  for (size_t sample = 0; sample + 1 < offsets_.size(); ++sample) {
    const auto old_end = labels_.begin() + static_cast<std::ptrdiff_t>(offsets_[sample + 1]);
    const auto middle = static_cast<std::ptrdiff_t>(merged.size() + offsets_[sample + 1] - before);
    merged.insert(merged.end(), labels_.begin() + static_cast<std::ptrdiff_t>(before), old_end);
    before = offsets_[sample + 1];
    const auto begin = merged.begin() + static_cast<std::ptrdiff_t>(offsets_[sample]);
    for (; next != entries.end() && next->sample == sample; ++next) merged.push_back(next->label);
    std::inplace_merge(begin, merged.begin() + middle, merged.end());
    offsets_[sample + 1] = merged.size();
  }
  MODELET_CHECK(next == entries.end());
  labels_ = std::move(merged);
}

size_t SampleLabels::memory_bytes() const {
  return offsets_.capacity() * sizeof(uint64_t) + labels_.capacity() * sizeof(uint32_t);
}

float scale_of(const Sample& sample, Normalize normalize) {
  if (normalize == Normalize::kNone) return 1;
  double squares = 0;
  for (const float value : sample.values) squares += double{value} * double{value};
  const float inverse = inverse_length(squares);
  return inverse > 0 ? inverse : 1;
}

// One section while it grows: a file without a name, which is gone when the process ends, however it ends.
class PreparedWriter::Spool {
 public:
  explicit Spool(const std::filesystem::path& beside) : name_(beside.string()) {
    std::string spool = name_ + ".spool.XXXXXX";
    fd_ = ::mkostemp(spool.data(), O_CLOEXEC);
    if (fd_ < 0) throw WriteError(errno_text(name_));
    ::unlink(spool.c_str());
    buffer_.reserve(kBufferBytes);
    XXH3_64bits_reset(checksum_.get());
  }
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;
  ~Spool() { ::close(fd_); }

  template <class T>
  void append(std::span<const T> items) {
    const auto bytes = std::as_bytes(items);
    if (buffer_.size() + bytes.size() > kBufferBytes) flush();
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }

  // Copies the section to `file` and returns its size.
  uint64_t copy_to(AtomicFile& file) {
    uint64_t copied = 0;
    read([&](std::span<const std::byte> bytes) {
      file.write(bytes);
      copied += bytes.size();
    });
    return copied;
  }
  uint64_t checksum() const { return XXH3_64bits_digest(checksum_.get()); }  // after it was copied

  // Reads back all items in their order. Each append() must have added whole items.
  template <class T, class Each>
  void for_each(std::type_identity<T>, const Each& each) {
    static_assert(kBufferBytes % sizeof(T) == 0);
    read([&](std::span<const std::byte> bytes) {
      for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
        T item;
        std::memcpy(&item, bytes.data() + at, sizeof item);
        each(item);
      }
    });
  }

 private:
  static constexpr size_t kBufferBytes = size_t{1} << 20;

  struct FreeState {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };

  // kBufferBytes at a time; the last may be shorter. Nothing is appended afterwards.
  template <class Take>
  void read(const Take& take) {
    flush();
    buffer_.resize(kBufferBytes);
    for (off_t at = 0;;) {
      size_t filled = 0;
      while (filled < kBufferBytes) {
        const ssize_t n = ::pread(fd_, buffer_.data() + filled, kBufferBytes - filled, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) throw Error(errno_text(name_) + " (while reading)");
        if (n == 0) break;
        filled += static_cast<size_t>(n);
        at += n;
      }
      take(std::span<const std::byte>(buffer_).first(filled));
      if (filled < kBufferBytes) break;
    }
    buffer_.clear();
  }

  void flush() {
    XXH3_64bits_update(checksum_.get(), buffer_.data(), buffer_.size());
    for (std::span<const std::byte> rest = buffer_; !rest.empty();) {
      const ssize_t n = ::write(fd_, rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw WriteError(errno_text(name_) + " (while preparing it)");
      rest = rest.subspan(static_cast<size_t>(n));
    }
    buffer_.clear();
  }

  std::string name_;  // of the file that is prepared, for messages
  int fd_ = -1;
  std::vector<std::byte> buffer_;
  std::unique_ptr<XXH3_state_t, FreeState> checksum_{XXH3_createState()};
};

PreparedWriter::PreparedWriter(const std::filesystem::path& path, uint64_t features, uint64_t labels,
                               Normalize normalize, Existing existing, uint64_t sorted_at_once)
    : path_(path),
      features_(features),
      labels_(labels),
      sorted_at_once_(sorted_at_once),
      normalize_(normalize),
      existing_(existing) {
  MODELET_CHECK(features < kMaxCount && labels < kMaxCount);
  for (auto& spool : spools_) spool = std::make_unique<Spool>(path);
  entries_ = std::make_unique<Spool>(path);
  const uint64_t zero = 0;
  spools_[kFeatureOffsets]->append(std::span(&zero, 1));
}

PreparedWriter::~PreparedWriter() = default;

void PreparedWriter::add(const Sample& sample) {
  MODELET_CHECK(rows_ + 1 < kMaxCount && sample.features.size() == sample.values.size());
  MODELET_CHECK(sample.features.empty() || sample.features.back() < features_);
  MODELET_CHECK(sample.labels.empty() || sample.labels.back() < labels_);
  spools_[kFeatureIds]->append(sample.features);
  of_sample_.clear();
  for (const uint32_t label : sample.labels) of_sample_.push_back({static_cast<uint32_t>(rows_), label});
  entries_->append(std::span<const LabelEntry>(of_sample_));
  if (const float scale = scale_of(sample, normalize_); scale == 1) {
    spools_[kValues]->append(sample.values);
  } else {
    for (const float value : sample.values) {
      const float scaled = value * scale;
      spools_[kValues]->append(std::span(&scaled, 1));
    }
  }
  nonzeros_ += sample.features.size();
  label_entries_ += sample.labels.size();
  ++rows_;
  spools_[kFeatureOffsets]->append(std::span<const uint64_t>(&nonzeros_, 1));
  const auto count = static_cast<uint32_t>(sample.labels.size());
  spools_[kLabelCounts]->append(std::span(&count, 1));
}

void PreparedWriter::set_encoder(std::span<const std::byte> state, uint64_t unknown_labels) {
  spools_[kEncoder]->append(state);
  unknown_labels_ = unknown_labels;
}

// A counting sort by neuron, of as many neurons at a time as there is room for. The entries are read again for
// each such range, so if there are very many, a sixteenth of them is sorted at a time.
void PreparedWriter::sort_by_label() {
  const LabelSpread spread(labels_);
  const auto for_each_entry = [this](const auto& each) {
    entries_->for_each(std::type_identity<LabelEntry>(), each);
  };
  std::vector<uint32_t> frequencies(labels_);
  for_each_entry([&](const LabelEntry& entry) { ++frequencies[spread.neuron(entry.label)]; });
  spools_[kFrequencies]->append(std::span<const uint32_t>(frequencies));
  constexpr uint64_t kMostRanges = 16;
  const uint64_t at_once =
      sorted_at_once_ > 0 ? sorted_at_once_ : std::max(kSortedAtOnce, label_entries_ / kMostRanges);
  std::vector<uint32_t> samples;
  std::vector<uint64_t> places;  // of the next sample of each neuron
  for (uint64_t begin = 0, end = 0, left = label_entries_; left > 0; begin = end) {
    uint64_t count = 0;
    places.clear();
    while (end < labels_ && (end == begin || count + frequencies[end] <= at_once)) {
      places.push_back(count);
      count += frequencies[end++];
    }
    samples.resize(count);
    for_each_entry([&](const LabelEntry& entry) {
      const uint32_t neuron = spread.neuron(entry.label);
      if (neuron >= begin && neuron < end) samples[places[neuron - begin]++] = entry.sample;
    });
    spools_[kLabelSamples]->append(std::span<const uint32_t>(samples));
    left -= count;
  }
  entries_.reset();  // gives its disk space back
}

void PreparedWriter::finish() {
  static_assert(kSections == kLabelSamples + 1);
  struct {
    Header header;
    std::array<SectionEntry, kSections> table;
  } head{.header = {.magic = kMagic,
                    .version = kPreparedVersion,
                    .byte_order = kByteOrder,
                    .sections = kSections,
                    .flags = normalize_ == Normalize::kL2 ? kFlagL2 : 0,
                    .rows = rows_,
                    .labels = labels_,
                    .unknown_labels = unknown_labels_},
         .table = {}};
  head.table[kFeatureIds].limit = features_;
  head.table[kLabelSamples].limit = rows_;
  const auto head_bytes = std::as_bytes(std::span(&head, 1));
  sort_by_label();
  constexpr std::array<std::byte, kCacheLine> kZeros{};
  AtomicFile file(path_, existing_);
  file.write(head_bytes);
  uint64_t end = sizeof head;
  for (size_t i = 0; i < kSections; ++i) {
    SectionEntry& section = head.table[i];
    section.name = kKinds[i].name;
    section.type = kKinds[i].type;
    section.offset = aligned(end);
    file.write(std::span(kZeros).first(section.offset - end));
    end = section.offset + spools_[i]->copy_to(file);
    section.count = (end - section.offset) / kElementBytes[static_cast<size_t>(section.type)];
    section.checksum = spools_[i]->checksum();
    spools_[i].reset();  // gives its disk space back
  }
  head.header.checksum = head_checksum(head_bytes);
  file.write_at(0, head_bytes);
  file.commit();
}

void prepare_text(SampleReader& reader, std::span<const std::byte> encoder,
                  const std::filesystem::path& prepared, Normalize normalize, const PrepareProgress& progress,
                  Existing existing) {
  constexpr uint64_t kRowsBetweenReports = 4096;
  PreparedWriter writer(prepared, reader.features(), reader.labels(), normalize, existing);
  for (Sample sample; reader.next(sample);) {
    writer.add(sample);
    if (progress && writer.rows() % kRowsBetweenReports == 0)
      progress(writer.rows(), reader.bytes(), reader.fraction());
  }
  if (progress) progress(writer.rows(), reader.bytes(), 1);
  writer.set_encoder(encoder, reader.unknown_labels());
  writer.finish();
}

}  // namespace modelet::shard
