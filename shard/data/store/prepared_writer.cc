#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/system/file.h"
#include "shard/data/store/label_spread.h"
#include "shard/data/store/prepared.h"
#include "shard/data/store/prepared_table.h"

namespace modelet::shard {

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
                               Normalize normalize, Existing existing, uint64_t sorted_at_once,
                               std::vector<BlockShape> others)
    : path_(path),
      blocks_{{std::string(kFirstBlock), features}},
      labels_(labels),
      sorted_at_once_(sorted_at_once),
      normalize_(normalize),
      existing_(existing) {
  blocks_.insert(blocks_.end(), std::make_move_iterator(others.begin()),
                 std::make_move_iterator(others.end()));
  nonzeros_.resize(blocks_.size());
  MODELET_CHECK(labels < kMaxCount && section_of(blocks_.size(), kBlockOffsets) <= kMostSections);
  spools_.resize(section_of(blocks_.size(), kBlockOffsets));
  for (auto& spool : spools_) spool = std::make_unique<Spool>(path);
  entries_ = std::make_unique<Spool>(path);
  const uint64_t zero = 0;
  for (size_t block = 0; block < blocks_.size(); ++block) {
    const std::string& name = blocks_[block].name;
    MODELET_CHECK(blocks_[block].features < kMaxCount && !name.empty() && name.size() <= kLongestBlockName &&
                  name.find('.') == std::string::npos &&
                  std::ranges::count(blocks_, name, &BlockShape::name) == 1);
    spools_[section_of(block, kBlockOffsets)]->append(std::span(&zero, 1));
  }
}

PreparedWriter::~PreparedWriter() = default;

void PreparedWriter::add(const Sample& sample, std::span<const BlockSample> others) {
  MODELET_CHECK(rows_ + 1 < kMaxCount && others.size() + 1 == blocks_.size());
  MODELET_CHECK(sample.labels.empty() || sample.labels.back() < labels_);
  add_to_block(0, {sample.features, sample.values}, scale_of(sample, normalize_));
  for (size_t i = 0; i < others.size(); ++i) add_to_block(i + 1, others[i], 1);
  of_sample_.clear();
  for (const uint32_t label : sample.labels) of_sample_.push_back({static_cast<uint32_t>(rows_), label});
  entries_->append(std::span<const LabelEntry>(of_sample_));
  label_entries_ += sample.labels.size();
  ++rows_;
  const auto count = static_cast<uint32_t>(sample.labels.size());
  spools_[kLabelCounts]->append(std::span(&count, 1));
}

void PreparedWriter::add_to_block(size_t block, const BlockSample& sample, float scale) {
  MODELET_CHECK(sample.features.size() == sample.values.size());
  MODELET_CHECK(sample.features.empty() ||
                (block == 0 ? sample.features.back() : std::ranges::max(sample.features)) <
                    blocks_[block].features);
  spools_[section_of(block, kBlockIds)]->append(sample.features);
  Spool& values = *spools_[section_of(block, kBlockValues)];
  if (scale == 1) {
    values.append(sample.values);
  } else {
    for (const float value : sample.values) {
      const float scaled = value * scale;
      values.append(std::span(&scaled, 1));
    }
  }
  nonzeros_[block] += sample.features.size();
  spools_[section_of(block, kBlockOffsets)]->append(std::span<const uint64_t>(&nonzeros_[block], 1));
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
  sort_by_label();
  // Blocks first, as most readers begin with them; the samples of the labels last.
  std::vector<size_t> order(spools_.size() - kFirstBlockSection);
  std::iota(order.begin(), order.end(), size_t{kFirstBlockSection});
  order.insert(order.end(), {kLabelCounts, kFrequencies, kEncoder, kLabelSamples});
  PreparedHeader header{.magic = kPreparedMagic,
                        .version = kPreparedVersion,
                        .byte_order = kPreparedByteOrder,
                        .sections = static_cast<uint32_t>(order.size()),
                        .flags = normalize_ == Normalize::kL2 ? kPreparedL2 : 0,
                        .rows = rows_,
                        .labels = labels_,
                        .unknown_labels = unknown_labels_};
  std::vector<std::byte> head(header.table_end());
  constexpr std::array<std::byte, kCacheLine> kZeros{};
  AtomicFile file(path_, existing_);
  file.write(head);
  uint64_t end = head.size();
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t block = (order[i] - kFirstBlockSection) / kBlockSections;
    const bool of_block = order[i] >= kFirstBlockSection;
    SectionEntry section{};
    const std::string name =
        (of_block ? blocks_[block].name : "") + std::string(kind_of_section(order[i]).name);
    std::ranges::copy(name, section.name.begin());
    section.type = kind_of_section(order[i]).type;
    if (order[i] == kLabelSamples) section.limit = rows_;
    if (of_block && order[i] == section_of(block, kBlockIds)) section.limit = blocks_[block].features;
    section.offset = next_section(end);
    file.write(std::span(kZeros).first(section.offset - end));
    auto& spool = spools_[order[i]];
    end = section.offset + spool->copy_to(file);
    section.count = (end - section.offset) / kElementBytes[static_cast<size_t>(section.type)];
    section.checksum = spool->checksum();
    spool.reset();  // gives its disk space back
    std::memcpy(head.data() + sizeof header + i * sizeof section, &section, sizeof section);
  }
  std::memcpy(head.data(), &header, sizeof header);
  header.checksum = head_checksum(head);
  std::memcpy(head.data(), &header, sizeof header);
  file.write_at(0, head);
  file.commit();
}

void prepare_text(SampleReader& reader, std::span<const std::byte> encoder,
                  const std::filesystem::path& prepared, Normalize normalize, const PrepareProgress& progress,
                  Existing existing) {
  constexpr uint64_t kRowsBetweenReports = 4096;
  PreparedWriter writer(prepared, reader.features(), reader.labels(), normalize, existing, 0,
                        reader.other_blocks());
  for (Sample sample; reader.next(sample);) {
    writer.add(sample, reader.others());
    if (progress && writer.rows() % kRowsBetweenReports == 0)
      progress(writer.rows(), reader.bytes(), reader.fraction());
  }
  if (progress) progress(writer.rows(), reader.bytes(), 1);
  writer.set_encoder(encoder, reader.unknown_labels());
  writer.finish();
}

}  // namespace modelet::shard
