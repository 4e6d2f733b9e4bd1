// LineReader: the lines of a text file that is plain, .xz or .gz. The content decides which (its first
// bytes), not the name. Memory is bounded by the longest line, and that by kMaxLineBytes. One thread uses a
// LineReader.
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

// So many bytes behind what a LineReader returns may be read too (what they are, nobody knows): short words
// are then loaded whole, whatever their length.
inline constexpr size_t kReadableBehind = 16;

class LineReader {
 public:
  // Throws Error if the file cannot be opened.
  explicit LineReader(const std::filesystem::path& path);
  // Reads plain text from `source`; `name` stands for the file in messages.
  LineReader(std::unique_ptr<std::streambuf> source, std::string name);
  LineReader(LineReader&&) noexcept = default;

  // The next line without its end (LF or CRLF; the last line may have none), the first without a UTF-8
  // byte-order mark; valid until the next call. False at the end. Throws FormatError for a line longer than
  // kMaxLineBytes and for a corrupt or cut off compressed stream.
  bool next(std::string_view& line);

  // Instead of lines: the next piece of the text, cut anywhere; valid until the next call. For text whose
  // lines may have any length. It begins with the last `kept` bytes of the piece before, which its user has
  // not done with (at most kMaxKept), and is longer than that; false if there is no more than these. Throws
  // as next().
  static constexpr size_t kMaxKept = 4096;
  bool next_piece(std::string_view& piece, size_t kept);

  uint64_t line_number() const {
    return line_number_;
  }                                          // of the last line returned, from 1; 0 before the first
  uint64_t bytes() const { return bytes_; }  // of text returned by next() so far, decompressed
  double fraction() const;                   // part of the file read, in [0, 1]; 0 if unknown
  const std::string& name() const { return name_; }

  // Throws FormatError "name:line: what" for the last line returned.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  bool refill();

  std::string name_;
  std::unique_ptr<std::streambuf> file_;    // what lies on the disk
  std::unique_ptr<std::streambuf> filter_;  // decompressor over file_; null for plain text
  uint64_t file_bytes_ = 0;
  std::unique_ptr<char[]> buffer_;
  size_t capacity_, begin_ = 0, end_ = 0;  // unread text is buffer_[begin_, end_)
  bool at_end_ = false;
  uint64_t line_number_ = 0, bytes_ = 0;
};

// Text for an error message: quoted, unprintable bytes escaped, cut after 40 characters.
std::string quoted(std::string_view text);

}  // namespace modelet::shard
