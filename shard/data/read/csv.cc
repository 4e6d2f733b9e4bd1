#include "shard/data/read/csv.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace modelet::shard {
namespace {

static_assert(std::endian::native == std::endian::little, "the first byte of a word is its lowest");

constexpr size_t kBlock = 64;

// Bit i of the result: byte i of the block is `c`.
uint64_t positions_in_block(const char* block, char c) {
  constexpr uint64_t kEachByte = 0x0101010101010101, kLow = 0x7f * kEachByte;
  constexpr uint64_t kGather = 0x0002040810204081;  // moves the top bits of eight bytes into the top byte
  uint64_t positions = 0;
  for (size_t i = 0; i < kBlock; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, block + i, sizeof word);
    word ^= kEachByte * static_cast<unsigned char>(c);
    const uint64_t zero = ~(((word & kLow) + kLow) | word | kLow);  // top bit of each byte that is zero
    positions |= ((zero * kGather) >> 56) << i;
  }
  return positions;
}

bool has_quote(std::string_view line) { return line.find('"') != std::string_view::npos; }

}  // namespace

char character(Delimiter delimiter) {
  switch (delimiter) {
    case Delimiter::kComma:
      return ',';
    case Delimiter::kTab:
      return '\t';
    case Delimiter::kSemicolon:
      return ';';
    case Delimiter::kPipe:
      return '|';
    case Delimiter::kSpace:
      return ' ';
    case Delimiter::kNone:
      break;
  }
  MODELET_CHECK(false, "no delimiter");
}

CsvDialect csv_dialect(const Experiment::Csv& options) {
  return {.delimiter = character(options.delimiter), .quotes = options.delimiter != Delimiter::kTab};
}

bool CsvReader::next(std::span<const std::string_view>& fields) {
  if (!lines_) {
    if (line_ == rows_.size()) return false;
    join(rows_[line_++]);
    fields = fields_;
    return true;
  }
  if (!keys_.empty()) {
    if (!next_json()) return false;
    fields = fields_;
    return true;
  }
  std::string_view line;
  if (!next_line(line)) return false;
  if (dialect_.quotes && has_quote(line)) {
    split_quoted(line);
  } else {
    split(line);
  }
  if (width_ == 0) width_ = fields_.size();
  if (fields_.size() != width_)
    fail("expected " + std::to_string(width_) + " fields, as in the first record, found " +
         std::to_string(fields_.size()) +
         (dialect_.quotes ? "; is csv.delimiter right? A field with a delimiter in it needs quotes around it"
                          : "; the text is tab-separated, where a field has no tab in it"));
  fields = fields_;
  return true;
}

bool CsvReader::next_json() {
  for (std::string_view line; lines_->next(line);) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    line_ = lines_->line_number();
    read_json_line(line, name() + ":" + std::to_string(line_), keys_, cells_, there_);
    join(cells_);
    return true;
  }
  return false;
}

// The first line of the next record. An empty line is a record only if records have one field.
bool CsvReader::next_line(std::string_view& line) {
  uint64_t empty_line = 0;
  while (lines_->next(line)) {
    line_ = lines_->line_number();
    if (line.empty() && width_ > 1) {
      empty_line = empty_line == 0 ? line_ : empty_line;
      continue;
    }
    if (empty_line != 0) {
      line_ = empty_line;
      fail("the line is empty, a record of " + std::to_string(width_) + " fields is expected");
    }
    return true;
  }
  return false;
}

// Fields of click logs are so short that a call of memchr for each, or a branch for each word, would cost
// more than the words themselves.
void CsvReader::split(std::string_view line) {
  fields_.clear();
  const char* begin = line.data();
  const char* const end = begin + line.size();
  const auto add_fields = [&](const char* block, uint64_t delimiters) {
    for (; delimiters != 0; delimiters &= delimiters - 1) {
      const char* const delimiter = block + std::countr_zero(delimiters);
      fields_.emplace_back(begin, static_cast<size_t>(delimiter - begin));
      begin = delimiter + 1;
    }
    check_field_limit(fields_.size());
  };
  const char* block = begin;
  for (; static_cast<size_t>(end - block) >= kBlock; block += kBlock)
    add_fields(block, positions_in_block(block, dialect_.delimiter));
  std::array<char, kBlock> rest;
  rest.fill(static_cast<char>(~dialect_.delimiter));
  std::memcpy(rest.data(), block, static_cast<size_t>(end - block));
  add_fields(block, positions_in_block(rest.data(), dialect_.delimiter));
  fields_.emplace_back(begin, static_cast<size_t>(end - begin));
  check_field_limit(fields_.size());
}

void CsvReader::split_quoted(std::string_view line) {
  text_.clear();
  ends_.clear();
  for (bool more = true; more; check_field_limit(ends_.size())) {
    if (line.starts_with('"')) {
      line = read_quoted_field(line.substr(1));
      if (!line.empty() && line.front() != dialect_.delimiter)
        fail("text after a closing quote: " + quoted(line) +
             "; a quote inside a quoted field is written twice");
    } else {
      const std::string_view field = line.substr(0, line.find(dialect_.delimiter));
      if (has_quote(field))
        fail("a quote inside an unquoted field: " + quoted(field) +
             "; quote the whole field and write its quotes twice");
      text_ += field;
      line.remove_prefix(field.size());
    }
    ends_.push_back(text_.size());
    more = !line.empty();
    if (more) line.remove_prefix(1);
  }
  take_fields();
}

// As split_quoted() would find them in the row's CSV.
void CsvReader::join(const Row& row) {
  text_.clear();
  ends_.clear();
  for (const std::string& field : row) {
    for (size_t i = 0; i < field.size(); ++i)
      if (field[i] != '\r' || i + 1 == field.size() || field[i + 1] != '\n') text_ += field[i];
    ends_.push_back(text_.size());
  }
  take_fields();
}

void CsvReader::take_fields() {
  fields_.clear();
  size_t begin = 0;
  for (const size_t end : ends_) {
    fields_.push_back(std::string_view(text_).substr(begin, end - begin));
    begin = end;
  }
}

// Appends a field to text_, up to its closing quote, which may be lines away; returns what follows on that
// line.
std::string_view CsvReader::read_quoted_field(std::string_view rest) {
  const uint64_t opened = lines_->line_number();
  for (;;) {
    const size_t quote = rest.find('"');
    text_ += rest.substr(0, quote);
    if (quote != std::string_view::npos) {
      rest.remove_prefix(quote + 1);
      if (!rest.starts_with('"')) return rest;
      text_ += '"';
      rest.remove_prefix(1);
      continue;
    }
    text_ += '\n';
    if (text_.size() > kMaxLineBytes || !lines_->next(rest)) {
      line_ = opened;
      fail(text_.size() > kMaxLineBytes
               ? "the quoted field that begins here makes the record longer than " +
                     std::to_string(kMaxLineBytes >> 20) + " MiB; close the quote"
               : "the quoted field that begins here is not closed; add its last quote, or "
                 "write a quote that is part of a field twice, and quotes around the field");
    }
  }
}

void CsvReader::check_field_limit(size_t fields) const {
  if (fields > kMaxCsvFields)
    fail("the record has more than " + std::to_string(kMaxCsvFields) +
         " fields; is the delimiter the right one?");
}

void CsvReader::fail(const std::string& what) const {
  const std::string place = lines_             ? ":" + std::to_string(line_)
                            : rows_.size() > 1 ? "[" + std::to_string(line_ - 1) + "]"
                                               : "";
  throw FormatError(name() + place + ": " + what);
}

}  // namespace modelet::shard
