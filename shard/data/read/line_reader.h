// LineReader: the lines of a text file that is plain, .xz or .gz. The content decides which (its first
// bytes), not the name; other compressions, UTF-16 and some binary formats are recognised and refused. A
// stream (standard input, a pipe) must be plain. Memory is bounded by the longest line, and that by
// kMaxLineBytes. One thread uses a LineReader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <streambuf>
#include <string>
#include <string_view>

namespace modelet::shard {

inline constexpr size_t kMaxLineBytes = size_t{64} << 20;

// So many bytes behind any text that a LineReader returns may be read too (their contents are unspecified).
// Short words can then be loaded whole, whatever their length.
inline constexpr size_t kReadableBehind = 16;

// Data is read more than once: to see its format, to fit an encoder, to prepare it. So it has to be a file on
// a disk. Throws Error if there is no file, or if it is a folder, a pipe or a device (opening a pipe could
// wait for ever).
void require_regular_file(const std::filesystem::path& path);

// Whether a path stands for text that can be read only once: "-" and /dev/stdin (standard input, whatever
// that is), a pipe, a terminal or another device. A path that does not exist is not a stream.
bool is_stream(const std::filesystem::path& path);

// The ending of a file's name, without that of its compression: ".csv" of "orders.csv.xz".
std::string plain_ending(std::filesystem::path path);

class LineReader {
 public:
  // Throws Error as require_regular_file(), or if the file cannot be opened; FormatError if it is compressed
  // in another way.
  explicit LineReader(const std::filesystem::path& path);
  // Reads plain text from `source`; `name` stands for the file in messages.
  LineReader(std::unique_ptr<std::streambuf> source, std::string name);
  LineReader(LineReader&&) noexcept = default;
  // Reads texts in memory, one a line. They have no head, as files do: whatever the first one holds is text.
  static LineReader of_texts(std::string lines, std::string name);

  // Reads a stream (is_stream()) as it comes: next() returns a line as soon as its end is there. Opening a
  // pipe waits for its writer. Throws Error if it cannot be opened.
  static LineReader of_stream(const std::filesystem::path& path);

  // Whether the first line is that of a file, which may have a byte-order mark or a header.
  bool has_head() const { return has_head_; }

  // The next line without its end (LF or CRLF; the last line may have none), the first of a file without a
  // UTF-8 byte-order mark; valid until the next call. False at the end. Throws FormatError for a line longer
  // than kMaxLineBytes and for a corrupt or cut off compressed stream.
  bool next(std::string_view& line);

  // The next buffer of text instead of a line, for text whose lines may have any length. It may end within a
  // word, and is valid until the next call. It begins with the last `kept` bytes (at most kMaxKept) of the
  // previous buffer, which the caller has not finished with; new text follows them. False if there is no more
  // text: then the buffer has only those bytes. Throws as next().
  static constexpr size_t kMaxKept = 4096;
  bool next_buffer(std::string_view& text, size_t kept);

  // The first byte that is not white space, before any line is read; 0 if there is none. May wait for text of a stream.
  char first_byte();

  // Whether next() has its line, or knows the end, without reading more.
  bool ready() const;

  // Of the last line returned, from 1; 0 before the first.
  uint64_t line_number() const { return line_number_; }
  uint64_t bytes() const { return bytes_; }  // of text returned so far, decompressed
  double fraction() const;                   // part of the file read, in [0, 1]; 0 if unknown
  const std::string& name() const { return name_; }

  // Throws FormatError "name:line: what" about the last line returned.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  bool refill();

  std::string name_;
  std::unique_ptr<std::streambuf> file_;    // what lies on the disk
  std::unique_ptr<std::streambuf> filter_;  // decompressor over file_; null for plain text
  uint64_t file_bytes_ = 0;
  std::unique_ptr<char[]> buffer_;
  size_t capacity_, begin_ = 0, end_ = 0;  // unread text is buffer_[begin_, end_)
  bool at_end_ = false, has_head_ = true;
  uint64_t line_number_ = 0, bytes_ = 0;
};

// Text for an error message: quoted, unprintable bytes escaped, cut after 40 characters.
std::string quoted(std::string_view text);

}  // namespace modelet::shard
