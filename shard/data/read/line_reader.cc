#include "shard/data/read/line_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filter/lzma.hpp>
#include <boost/iostreams/filtering_streambuf.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace modelet::shard {
namespace {

namespace io = boost::iostreams;

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // of UTF-8; some editors begin files with it
constexpr size_t kFirstCapacity = size_t{64} << 10;
constexpr std::streamsize kFilterBuffer = 256 << 10;
constexpr std::string_view kXzMagic("\3757zXZ\0", 6);
constexpr std::string_view kGzipMagic("\x1F\x8B", 2);
constexpr size_t kMagicBytes = 16;  // the longest that is looked for

// Files that are recognised, by certain bytes, but not read; and the commands that unpack those that are compressed.
struct OtherFile {
  const char* name;
  const char* command;
  size_t place;
  std::string_view bytes;
};
constexpr OtherFile kOthers[] = {{"zstd", "zstd -d", 0, "\x28\xB5\x2F\xFD"},
                                 {"bzip2", "bzip2 -d", 4, "1AY&SY"},
                                 {"lz4", "lz4 -d", 0, "\x04\x22\x4D\x18"},
                                 {"zip", "unzip", 0, "PK\x03\x04"},
                                 {"Parquet", nullptr, 0, "PAR1\x15"},
                                 {"Arrow", nullptr, 0, {"ARROW1\0", 7}},
                                 {"HDF5", nullptr, 0, "\x89HDF\r\n\x1A\n"},
                                 {"NumPy", nullptr, 0, "\x93NUMPY"},
                                 {"SQLite", nullptr, 0, {"SQLite format 3\0", 16}}};

void refuse_other_file(const std::string& name, std::string_view first_bytes) {
  for (const OtherFile& other : kOthers) {
    if (!first_bytes.substr(std::min(other.place, first_bytes.size())).starts_with(other.bytes)) continue;
    if (std::string_view(other.name) == "Parquet")
      throw FormatError(name + ": is a file of Parquet; Modelet reads text: 'python3 -m modelet.table " + name +
                        " TABLE.jsonl' writes it as JSON Lines, and modelet.fit() of Python reads it (docs/columns.md)");
    if (other.command == nullptr)
      throw FormatError(
          name + ": is a file of " + other.name +
          "; Modelet reads text: write it as CSV or in another data.format (docs/data_format.md)");
    throw FormatError(name + ": is compressed with " + other.name +
                      "; Modelet reads plain text, .xz and .gz: unpack it with '" + other.command + " " +
                      name + "'");
  }
}

// With a byte-order mark, or by the zeros that every other byte of Latin letters and digits is.
void refuse_utf16(const std::string& name, std::string_view first_bytes) {
  const auto is_zero = [&](size_t byte) { return first_bytes[byte] == '\0'; };
  const bool zeros = first_bytes.size() >= 4 && is_zero(0) != is_zero(1) && is_zero(0) == is_zero(2) &&
                     is_zero(1) == is_zero(3);
  if (zeros || first_bytes.starts_with("\xFF\xFE") || first_bytes.starts_with("\xFE\xFF"))
    throw FormatError(
        name + ":1: the text is UTF-16; Modelet reads UTF-8: convert it with 'iconv -f UTF-16 -t UTF-8'");
}

std::unique_ptr<std::filebuf> open_file(const std::filesystem::path& path) {
  require_regular_file(path);
  auto file = std::make_unique<std::filebuf>();
  errno = 0;
  if (file->open(path, std::ios::in | std::ios::binary) == nullptr) throw Error(errno_text(path.string()));
  return file;
}

std::string first_bytes(std::filebuf& file, size_t count) {
  std::string bytes(count, '\0');
  bytes.resize(static_cast<size_t>(file.sgetn(bytes.data(), static_cast<std::streamsize>(count))));
  file.pubseekpos(0, std::ios::in);
  return bytes;
}

// Text that can be read only once. A read returns what is there, and waits only if there is nothing.
class StreamSource : public std::streambuf {
 public:
  // Owns `descriptor`, unless it is standard input.
  StreamSource(int descriptor, std::string name) : descriptor_(descriptor), name_(std::move(name)) {}
  StreamSource(const StreamSource&) = delete;
  StreamSource& operator=(const StreamSource&) = delete;
  ~StreamSource() override {
    if (descriptor_ != STDIN_FILENO) ::close(descriptor_);
  }

 protected:
  std::streamsize xsgetn(char* to, std::streamsize most) override {
    ssize_t count = 0;
    do count = ::read(descriptor_, to, static_cast<size_t>(most));
    while (count < 0 && errno == EINTR);
    if (count < 0) throw Error(errno_text(name_) + " (while reading)");
    if (first_) refuse_compressed({to, static_cast<size_t>(count)});
    first_ = false;
    return count;
  }

 private:
  void refuse_compressed(std::string_view first_bytes) const {
    refuse_other_file(name_, first_bytes);
    const bool xz = first_bytes.starts_with(kXzMagic);
    if (xz || first_bytes.starts_with(kGzipMagic))
      throw FormatError(name_ + ": is compressed; what is read from a pipe must be plain text: put '" +
                        (xz ? "xz" : "gzip") + " -dc |' before this program");
  }

  const int descriptor_;
  const std::string name_;
  bool first_ = true;
};

std::unique_ptr<char[]> make_buffer(size_t capacity) {
  return std::make_unique_for_overwrite<char[]>(capacity + kReadableBehind);
}

template <class Filter>
std::unique_ptr<std::streambuf> decompressed(std::streambuf& file, const Filter& filter) {
  auto chain = std::make_unique<io::filtering_streambuf<io::input>>();
  chain->push(filter, kFilterBuffer);
  chain->push(file, kFilterBuffer);
  return chain;
}

}  // namespace

void require_regular_file(const std::filesystem::path& path) {
  std::error_code failure;
  const std::filesystem::file_status status = std::filesystem::status(path, failure);
  if (failure) throw Error(path.string() + ": " + failure.message());
  if (std::filesystem::is_directory(status))
    throw Error(path.string() + ": is a folder, a data file is expected");
  if (!std::filesystem::is_regular_file(status))
    throw Error(path.string() +
                ": is a pipe or a device; data is read more than once, so write it to a file and give that");
}

bool is_stream(const std::filesystem::path& path) {
  if (path == "-" || path == "/dev/stdin") return true;
  std::error_code failure;
  const std::filesystem::file_status status = std::filesystem::status(path, failure);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

std::string plain_ending(std::filesystem::path path) {
  if (path.extension() == ".xz" || path.extension() == ".gz") path = path.stem();
  return path.extension().string();
}

LineReader LineReader::of_stream(const std::filesystem::path& path) {
  if (path == "-" || path == "/dev/stdin")
    return {std::make_unique<StreamSource>(STDIN_FILENO, "standard input"), "standard input"};
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw Error(errno_text(path.string()));
  return {std::make_unique<StreamSource>(descriptor, path.string()), path.string()};
}

LineReader::LineReader(const std::filesystem::path& path) : LineReader(nullptr, path.string()) {
  auto file = open_file(path);
  std::error_code gone;
  const uintmax_t size = std::filesystem::file_size(path, gone);
  file_bytes_ = gone ? 0 : size;
  const std::string magic = first_bytes(*file, kMagicBytes);
  refuse_other_file(name_, magic);
  if (magic.starts_with(kXzMagic)) filter_ = decompressed(*file, io::lzma_decompressor());
  if (magic.starts_with(kGzipMagic)) filter_ = decompressed(*file, io::gzip_decompressor());
  file_ = std::move(file);
}

LineReader::LineReader(std::unique_ptr<std::streambuf> source, std::string name)
    : name_(std::move(name)),
      file_(std::move(source)),
      buffer_(make_buffer(kFirstCapacity)),
      capacity_(kFirstCapacity) {}

LineReader LineReader::of_texts(std::string lines, std::string name) {
  LineReader reader(std::make_unique<std::stringbuf>(std::move(lines), std::ios::in), std::move(name));
  reader.has_head_ = false;
  return reader;
}

bool LineReader::next(std::string_view& line) {
  size_t searched = 0;  // bytes of the unread text known to hold no line end
  const char* newline = nullptr;
  while ((newline = static_cast<const char*>(
              std::memchr(buffer_.get() + begin_ + searched, '\n', end_ - begin_ - searched))) == nullptr) {
    searched = end_ - begin_;
    if (!refill()) break;
  }
  if (newline == nullptr && begin_ == end_) return false;
  const char* start = buffer_.get() + begin_;
  const size_t length = newline != nullptr ? static_cast<size_t>(newline - start) : end_ - begin_;
  const size_t used = length + (newline != nullptr ? 1 : 0);
  begin_ += used;
  bytes_ += used;
  ++line_number_;
  line = {start, length};
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (has_head_ && line_number_ == 1 && line.starts_with(kByteOrderMark))
    line.remove_prefix(kByteOrderMark.size());
  return true;
}

bool LineReader::next_buffer(std::string_view& text, size_t kept) {
  constexpr size_t kBufferBytes = 16 << 10;  // what is made of it shall stay in the first caches
  static_assert(kMaxKept < kBufferBytes && kBufferBytes < kFirstCapacity);
  MODELET_CHECK(kept <= kMaxKept && kept <= begin_);
  begin_ -= kept;
  const bool more = end_ - begin_ > kept || refill();
  text = std::string_view(buffer_.get() + begin_, end_ - begin_).substr(0, kBufferBytes);
  begin_ += text.size();
  bytes_ += text.size() - kept;
  for (size_t at = kept; (at = text.find('\n', at)) != std::string_view::npos; ++at) ++line_number_;
  return more;
}

char LineReader::first_byte() {
  MODELET_CHECK(line_number_ == 0);
  do {
    std::string_view text(buffer_.get() + begin_, end_ - begin_);
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first != std::string_view::npos && text.size() >= kByteOrderMark.size()) return text[first];
  } while (refill());
  return end_ > begin_ ? buffer_[begin_] : '\0';
}

bool LineReader::ready() const {
  return at_end_ || std::memchr(buffer_.get() + begin_, '\n', end_ - begin_) != nullptr;
}

// Reads more text after the unread part, which moves to the front of the buffer. False at the end of the
// file.
bool LineReader::refill() {
  if (at_end_) return false;
  std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (end_ == capacity_) {
    if (capacity_ >= kMaxLineBytes)
      throw FormatError(name_ + ":" + std::to_string(line_number_ + 1) + ": the line is longer than " +
                        std::to_string(kMaxLineBytes >> 20) +
                        " MiB; this is not a text file of one sample per line");
    auto larger = make_buffer(2 * capacity_);
    std::memcpy(larger.get(), buffer_.get(), end_);
    buffer_ = std::move(larger);
    capacity_ *= 2;
  }
  try {
    std::streambuf& source = filter_ ? *filter_ : *file_;
    const std::streamsize n =
        source.sgetn(buffer_.get() + end_, static_cast<std::streamsize>(capacity_ - end_));
    at_end_ = n <= 0;
    end_ += static_cast<size_t>(at_end_ ? 0 : n);
    if (has_head_ && bytes_ == 0) refuse_utf16(name_, {buffer_.get(), end_});
  } catch (const std::ios_base::failure&) {
    if (!filter_) throw Error(errno_text(name_) + " (while reading)");
    throw FormatError(name_ + ": the compressed file is damaged or cut off after line " +
                      std::to_string(line_number_) + "; fetch or make it again");
  }
  return !at_end_;
}

double LineReader::fraction() const {
  if (file_bytes_ == 0) return 0;
  const auto position = static_cast<std::streamoff>(file_->pubseekoff(0, std::ios::cur, std::ios::in));
  return position < 0 ? 0 : static_cast<double>(position) / static_cast<double>(file_bytes_);
}

void LineReader::fail(const std::string& what) const {
  throw FormatError(name_ + ":" + std::to_string(line_number_) + ": " + what);
}

std::string quoted(std::string_view text) {
  constexpr size_t kShown = 40;
  constexpr char kHex[] = "0123456789abcdef";
  std::string result = "'";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      result += c;
    } else {
      result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return result + (text.size() > kShown ? "...'" : "'");
}

}  // namespace modelet::shard
