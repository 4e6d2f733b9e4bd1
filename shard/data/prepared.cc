#include "shard/data/prepared.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/aligned.h"
#include "base/error.h"
#include "base/file.h"
#include "shard/data/encoder.h"

namespace modelet::shard {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the prepared format is the memory of a little-endian machine");

// Not text in any encoding, and changed by a transfer that rewrites line ends.
constexpr std::array<unsigned char, 8> kMagic = {0x89, 'M', 'L', 'T', '\r', '\n', 0x1a, '\n'};
constexpr uint32_t kByteOrder = 0x01020304;
constexpr uint32_t kFlagL2 = 1;

// Sections in the order of the file.
enum Section : size_t {
  kFeatureOffsets,  // u64 [rows + 1] into the next two
  kFeatureIds,      // u32 [nonzeros]
  kValues,          // f32 [nonzeros]
  kLabelOffsets,    // u64 [rows + 1] into the next
  kLabelIds,        // u32 [label entries]
  kEncoder,         // bytes, may be empty
  kSections
};

struct SectionEntry {
  uint64_t offset, bytes, checksum;
};

// The first bytes of the file.
struct Header {
  std::array<unsigned char, 8> magic;
  uint32_t version, byte_order;
  uint64_t rows, features, labels, nonzeros, label_entries;
  uint32_t flags, reserved;
  std::array<SectionEntry, kSections> sections;
  uint64_t unknown_labels;
  std::array<uint64_t, 4> zeros;
  uint64_t checksum;  // XXH3-64 of everything above
};
static_assert(sizeof(Header) == 256 && sizeof(Header) % kCacheLine == 0);

uint64_t header_checksum(const Header& header) { return XXH3_64bits(&header, offsetof(Header, checksum)); }

uint64_t aligned(uint64_t offset) { return (offset + kCacheLine - 1) / kCacheLine * kCacheLine; }

// Counts -> bytes of each section but the last, whose size nothing tells. Counts must be below 2^60, so that
// nothing wraps.
std::array<uint64_t, kSections> section_bytes(const Header& header) {
  std::array<uint64_t, kSections> bytes{};
  bytes[kEncoder] = header.sections[kEncoder].bytes;
  bytes[kFeatureOffsets] = bytes[kLabelOffsets] = (header.rows + 1) * sizeof(uint64_t);
  bytes[kFeatureIds] = header.nonzeros * sizeof(uint32_t);
  bytes[kValues] = header.nonzeros * sizeof(float);
  bytes[kLabelIds] = header.label_entries * sizeof(uint32_t);
  return bytes;
}

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw FormatError(name + ": " + what + "; prepare it again with 'modelet data prepare'");
}

Header read_header(std::span<const std::byte> bytes, const std::string& name) {
  Header header;
  if (bytes.size() < sizeof header)
    fail(name, "a prepared file has at least " + std::to_string(sizeof header) + " bytes, this one has " +
                   std::to_string(bytes.size()));
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) fail(name, "not a prepared data file (its first bytes differ)");
  if (header.byte_order != kByteOrder) fail(name, "written on a machine of another byte order, or damaged");
  if (header.version != kPreparedVersion)
    fail(name, "format version " + std::to_string(header.version) + ", this program reads version " +
                   std::to_string(kPreparedVersion));
  if (header.checksum != header_checksum(header)) fail(name, "the header is damaged (its checksum differs)");
  return header;
}

// The header's checksum says who wrote it, not that it is right: a file may be made by hand.
void check_layout(const Header& header, size_t file_bytes, const std::string& name) {
  constexpr uint64_t kMaxEntries = uint64_t{1} << 60;
  if (header.rows >= kMaxCount || header.features >= kMaxCount || header.labels >= kMaxCount ||
      header.nonzeros >= kMaxEntries || header.label_entries >= kMaxEntries)
    fail(name, "a count in the header is absurdly large");
  if (header.sections[kEncoder].bytes > kMaxEncoderBytes)
    fail(name, "its encoder has more than " + std::to_string(kMaxEncoderBytes >> 30) + " GiB");
  if ((header.flags & ~kFlagL2) != 0 || header.reserved != 0 || header.zeros != decltype(header.zeros){})
    fail(name, "unknown flags in the header");
  const auto bytes = section_bytes(header);
  uint64_t end = sizeof(Header);
  for (size_t i = 0; i < kSections; ++i) {
    const SectionEntry& section = header.sections[i];
    if (section.offset != aligned(end) || section.bytes != bytes[i])
      fail(name, "section " + std::to_string(i) + " is not where the counts of the header put it");
    end = section.offset + section.bytes;
  }
  if (end != file_bytes)
    fail(name, "has " + std::to_string(file_bytes) + " bytes, its header says " + std::to_string(end) +
                   "; it is cut off or was written to");
}

void check_offsets(std::span<const uint64_t> offsets, uint64_t entries, const std::string& name) {
  bool monotone = offsets.front() == 0 && offsets.back() == entries;
  for (size_t i = 1; i < offsets.size(); ++i) monotone &= offsets[i - 1] <= offsets[i];
  if (!monotone) fail(name, "damaged: the samples' offsets do not ascend");
}

void check_ids(std::span<const uint64_t> offsets, std::span<const uint32_t> ids, uint64_t count,
               const char* what, const std::string& name) {
  for (size_t row = 0; row + 1 < offsets.size(); ++row) {
    const auto of_row = ids.subspan(offsets[row], offsets[row + 1] - offsets[row]);
    if (of_row.empty()) continue;
    bool good = of_row.back() < count;
    for (size_t i = 1; i < of_row.size(); ++i) good &= of_row[i - 1] < of_row[i];
    if (!good)
      fail(name, std::string("damaged: the ") + what + " ids of sample " + std::to_string(row) +
                     " do not ascend or are not below " + std::to_string(count));
  }
}

float scale_of(const Sample& sample, Normalize normalize) {
  if (normalize == Normalize::kNone) return 1;
  double squares = 0;
  for (const float value : sample.values) squares += double{value} * double{value};
  return squares > 0 ? static_cast<float>(1 / std::sqrt(squares)) : 1;
}

}  // namespace

bool is_prepared(const std::filesystem::path& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(errno_text(path.string()));
  std::array<char, kMagic.size()> first{};
  file.read(first.data(), first.size());
  return std::memcmp(first.data(), kMagic.data(), kMagic.size()) == 0;
}

PreparedView parse_prepared(std::span<const std::byte> bytes, const std::string& name, bool verify) {
  const Header header = read_header(bytes, name);
  check_layout(header, bytes.size(), name);
  if (verify) {
    for (const SectionEntry& section : header.sections)
      if (XXH3_64bits(bytes.data() + section.offset, section.bytes) != section.checksum)
        fail(name,
             "damaged: the checksum of the section at byte " + std::to_string(section.offset) + " differs");
  }
  const auto section = [&]<class T>(Section which, std::type_identity<T>) {
    const SectionEntry& entry = header.sections[which];
    return std::span(reinterpret_cast<const T*>(bytes.data() + entry.offset), entry.bytes / sizeof(T));
  };
  PreparedView view;
  view.rows = header.rows;
  view.features = header.features;
  view.labels = header.labels;
  view.normalize = (header.flags & kFlagL2) != 0 ? Normalize::kL2 : Normalize::kNone;
  view.feature_offsets = section(kFeatureOffsets, std::type_identity<uint64_t>());
  view.feature_ids = section(kFeatureIds, std::type_identity<uint32_t>());
  view.values = section(kValues, std::type_identity<float>());
  view.label_offsets = section(kLabelOffsets, std::type_identity<uint64_t>());
  view.label_ids = section(kLabelIds, std::type_identity<uint32_t>());
  view.encoder = section(kEncoder, std::type_identity<std::byte>());
  view.encoder_checksum = view.encoder.empty() ? 0 : header.sections[kEncoder].checksum;
  view.unknown_labels = header.unknown_labels;
  check_offsets(view.feature_offsets, header.nonzeros, name);
  check_offsets(view.label_offsets, header.label_entries, name);
  check_ids(view.feature_offsets, view.feature_ids, header.features, "feature", name);
  check_ids(view.label_offsets, view.label_ids, header.labels, "label", name);
  return view;
}

// One section while it grows: a file without a name, gone when the process ends however it ends.
class PreparedWriter::Spool {
 public:
  explicit Spool(const std::filesystem::path& beside) : name_(beside.string()) {
    std::string spool = name_ + ".spool.XXXXXX";
    fd_ = ::mkostemp(spool.data(), O_CLOEXEC);
    if (fd_ < 0) throw Error(errno_text(name_));
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

  // Copies the section to `file`; fills size and checksum of its entry.
  void copy_to(AtomicFile& file, SectionEntry& entry) {
    flush();
    if (::lseek(fd_, 0, SEEK_SET) != 0) throw Error(errno_text(name_));
    entry.bytes = 0;
    entry.checksum = XXH3_64bits_digest(checksum_.get());
    buffer_.resize(kBufferBytes);
    for (;;) {
      const ssize_t n = ::read(fd_, buffer_.data(), buffer_.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw Error(errno_text(name_) + " (while reading)");
      if (n == 0) break;
      file.write(std::span(buffer_).first(static_cast<size_t>(n)));
      entry.bytes += static_cast<uint64_t>(n);
    }
  }

 private:
  static constexpr size_t kBufferBytes = size_t{1} << 20;

  struct FreeState {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };

  void flush() {
    XXH3_64bits_update(checksum_.get(), buffer_.data(), buffer_.size());
    for (std::span<const std::byte> rest = buffer_; !rest.empty();) {
      const ssize_t n = ::write(fd_, rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw Error(errno_text(name_) + " (while preparing it)");
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
                               Normalize normalize)
    : path_(path), features_(features), labels_(labels), normalize_(normalize) {
  MODELET_CHECK(features < kMaxCount && labels < kMaxCount);
  for (auto& spool : spools_) spool = std::make_unique<Spool>(path);
  const uint64_t zero = 0;
  spools_[kFeatureOffsets]->append(std::span(&zero, 1));
  spools_[kLabelOffsets]->append(std::span(&zero, 1));
}

PreparedWriter::~PreparedWriter() = default;

void PreparedWriter::add(const Sample& sample) {
  MODELET_CHECK(rows_ + 1 < kMaxCount && sample.features.size() == sample.values.size());
  MODELET_CHECK(sample.features.empty() || sample.features.back() < features_);
  MODELET_CHECK(sample.labels.empty() || sample.labels.back() < labels_);
  spools_[kFeatureIds]->append(sample.features);
  spools_[kLabelIds]->append(sample.labels);
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
  spools_[kLabelOffsets]->append(std::span<const uint64_t>(&label_entries_, 1));
}

void PreparedWriter::set_encoder(std::span<const std::byte> state, uint64_t unknown_labels) {
  spools_[kEncoder]->append(state);
  unknown_labels_ = unknown_labels;
}

void PreparedWriter::finish() {
  Header header{};
  header.magic = kMagic;
  header.version = kPreparedVersion;
  header.byte_order = kByteOrder;
  header.rows = rows_;
  header.features = features_;
  header.labels = labels_;
  header.nonzeros = nonzeros_;
  header.label_entries = label_entries_;
  header.flags = normalize_ == Normalize::kL2 ? kFlagL2 : 0;

  header.unknown_labels = unknown_labels_;

  static_assert(kSections == kEncoder + 1);
  constexpr std::array<std::byte, kCacheLine> kZeros{};
  AtomicFile file(path_);
  const auto header_bytes = std::as_bytes(std::span(&header, 1));
  file.write(header_bytes);
  uint64_t end = sizeof header;
  for (size_t i = 0; i < kSections; ++i) {
    SectionEntry& section = header.sections[i];
    section.offset = aligned(end);
    file.write(std::span(kZeros).first(section.offset - end));
    spools_[i]->copy_to(file, section);
    spools_[i].reset();  // gives its disk space back
    end = section.offset + section.bytes;
  }
  header.checksum = header_checksum(header);
  file.write_at(0, header_bytes);
  file.commit();
}

void prepare_text(SampleReader& reader, std::span<const std::byte> encoder,
                  const std::filesystem::path& prepared, Normalize normalize,
                  const PrepareProgress& progress) {
  constexpr uint64_t kRowsBetweenReports = 4096;
  PreparedWriter writer(prepared, reader.features(), reader.labels(), normalize);
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
