#include "shard/data/read/xmc_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "base/error.h"
#include "base/text/parse_double.h"

namespace modelet::shard {
namespace {

constexpr const char* kHeaderWanted =
    "expected the header 'SAMPLES FEATURES LABELS' (three numbers, for example '45876 32316 36969'), found ";

bool is_separator(char c) { return c == ' ' || c == '\t'; }

const char* skip_spaces(const char* p, const char* end) {
  while (p != end && is_separator(*p)) ++p;
  return p;
}

constexpr const char* kTooLarge =
    ", which is too large: ids count from zero and lie below the counts of the header";

// Whether a token begins with more digits than an id may have.
bool is_long_id(const char* p, const char* end) {
  constexpr ptrdiff_t kMost = 10;
  return end - p > kMost && std::all_of(p, p + kMost + 1, [](char c) { return c >= '0' && c <= '9'; });
}

// From `p` to the next space, for messages.
std::string token(const char* p, const char* end) {
  return quoted({p, static_cast<size_t>(std::find_if(p, end, is_separator) - p)});
}

// Ids are almost always short: a loop over the digits is faster than std::from_chars. Reads at most ten
// digits, so the result cannot overflow; a longer number ends in front of a digit, which no caller accepts.
// Returns `p` if there is no digit.
const char* parse_id(const char* p, const char* end, uint64_t& id) {
  constexpr ptrdiff_t kMaxDigits = 10;
  const char* const stop = end - p > kMaxDigits ? p + kMaxDigits : end;
  uint64_t result = 0;
  while (p != stop && static_cast<unsigned char>(*p - '0') < 10)
    result = result * 10 + static_cast<uint64_t>(*p++ - '0');
  id = result;
  return p;
}

// Reads a 32-bit float. A magnitude too small for one is rounded to a subnormal or zero; too large is an
// error.
std::from_chars_result parse_value(const char* p, const char* end, float& value) {
  std::from_chars_result result = std::from_chars(p, end, value);
  if (result.ec != std::errc::result_out_of_range) return result;
  double wide = 0;
  result = parse_double(p, end, wide);
  if (result.ec != std::errc{}) return result;
  if (std::abs(wide) > 1) result.ec = std::errc::result_out_of_range;
  value = static_cast<float>(wide);
  return result;
}

// Two numbers or more and nothing else, which no sample looks like.
bool is_header(std::string_view line) {
  const auto may_occur = [](char c) { return is_separator(c) || (c >= '0' && c <= '9'); };
  const size_t first = line.find_first_not_of(" \t");
  if (first == std::string_view::npos || !std::ranges::all_of(line, may_occur)) return false;
  const size_t gap = line.find_first_of(" \t", first);
  return line.find_first_not_of(" \t", std::min(gap, line.size())) != std::string_view::npos;
}

bool begins_with_feature(std::string_view line) {
  const size_t end = line.find_first_not_of("0123456789");
  return end != std::string_view::npos && line[end] == ':';
}

std::string out_of_range(const char* what, uint64_t id, uint64_t count, bool of_model) {
  return std::string(what) + " id " + std::to_string(id) + " is not below " + std::to_string(count) +
         ", the number of " + what + (of_model ? "s of the model" : "s in the header") +
         "; ids count from zero: correct the " + (of_model ? "ids" : "header or the ids");
}

}  // namespace

XmcReader::XmcReader(const std::filesystem::path& path) : lines_(path) { read_header(); }

XmcReader::XmcReader(std::unique_ptr<std::streambuf> source, std::string name)
    : lines_(std::move(source), std::move(name)) {
  read_header();
}

XmcReader::XmcReader(LineReader text, uint64_t features, uint64_t labels)
    : lines_(std::move(text)), header_{0, features, labels}, queries_(true) {}

void XmcReader::read_header() {
  std::string_view line;
  if (!lines_.next(line))
    throw FormatError(lines_.name() + ": the file is empty; " + kHeaderWanted + "nothing");
  header_ = parse_header(line);
}

void XmcReader::fail_header(std::string_view line) const {
  lines_.fail(kHeaderWanted + quoted(line) +
              "; write it as the first line, or say with data.format that this is text of another kind");
}

XmcHeader XmcReader::parse_header(std::string_view line) const {
  XmcHeader header;
  const char* p = line.data();
  const char* const end = p + line.size();
  for (uint64_t* count : {&header.rows, &header.features, &header.labels}) {
    p = skip_spaces(p, end);
    const auto [rest, error] = std::from_chars(p, end, *count);
    const bool complete = rest == end || is_separator(*rest);
    if (error == std::errc::invalid_argument || !complete) fail_header(line);
    if (error != std::errc{} || *count >= kMaxCount)
      lines_.fail("the header's count " + token(p, end) + " is too large: counts must be below 2^31");
    p = rest;
  }
  if (skip_spaces(p, end) != end) fail_header(line);
  return header;
}

bool XmcReader::next_query(Sample& sample) {
  std::string_view line;
  if (!lines_.next(line)) return false;
  if (lines_.has_head() && lines_.line_number() == 1 && is_header(line)) {
    const XmcHeader header = parse_header(line);
    if (header.features != header_.features || header.labels != header_.labels)
      throw UsageError(lines_.name() + " has " + std::to_string(header.features) + " features and " +
                       std::to_string(header.labels) + " labels, the model has " +
                       std::to_string(header_.features) + " and " + std::to_string(header_.labels));
    if (!lines_.next(line)) return false;
  }
  if (++rows_read_ >= kMaxCount) lines_.fail("more than 2^31 - 1 samples; divide the file");
  parse(line);
  sample = {features_, values_, labels_};
  return true;
}

bool XmcReader::next(Sample& sample) {
  if (queries_) return next_query(sample);
  if (rows_read_ == header_.rows) {
    expect_end();
    return false;
  }
  std::string_view line;
  if (!lines_.next(line))
    lines_.fail("the file ends after " + std::to_string(rows_read_) + " samples, the header promises " +
                std::to_string(header_.rows) + "; it is cut off, or the header is wrong");
  ++rows_read_;
  parse(line);
  sample = {features_, values_, labels_};
  return true;
}

void XmcReader::parse(std::string_view line) {
  labels_.clear();
  features_.clear();
  values_.clear();
  canonical_ = true;
  const char* p = line.data();
  const char* const end = p + line.size();
  const bool has_labels = p != end && !is_separator(*p) && !(queries_ && begins_with_feature(line));
  if (has_labels) p = parse_labels(p, end);
  for (p = skip_spaces(p, end); p != end; p = skip_spaces(p, end)) p = parse_feature(p, end);
  if (!canonical_) sort_features();
}

// A comma-separated list up to the first space or the end of the line.
const char* XmcReader::parse_labels(const char* p, const char* end) {
  bool ascending = true;
  for (;;) {
    uint64_t id = 0;
    const char* const rest = parse_id(p, end, id);
    const bool complete = rest != p && (rest == end || *rest == ',' || is_separator(*rest));
    if (!complete && rest != p && *rest == ':')
      lines_.fail("the line starts with the feature " + token(p, end) +
                  ", labels come first; a sample without labels starts with a space");
    if (!complete)
      lines_.fail("expected a label id (an integer), found " + token(p, end) +
                  (is_long_id(p, end)
                       ? kTooLarge
                       : "; ids count from zero, and commas join several; labels with names need "
                         "another data.format"));
    if (id >= header_.labels) lines_.fail(out_of_range("label", id, header_.labels, queries_));
    ascending = ascending && (labels_.empty() || labels_.back() < id);
    labels_.push_back(static_cast<uint32_t>(id));
    p = rest;
    if (p == end || *p != ',') break;
    ++p;
  }
  if (!ascending) {
    std::sort(labels_.begin(), labels_.end());
    labels_.erase(std::unique(labels_.begin(), labels_.end()), labels_.end());
  }
  return p;
}

// One `id:value`.
const char* XmcReader::parse_feature(const char* p, const char* end) {
  uint64_t id = 0;
  const char* const colon = parse_id(p, end, id);
  if (colon == p || colon == end || *colon != ':')
    lines_.fail("expected FEATURE:VALUE (for example '17:0.25'), found " + token(p, end) +
                (is_long_id(p, end) ? kTooLarge : ""));
  if (id >= header_.features) lines_.fail(out_of_range("feature", id, header_.features, queries_));
  float value = 0;
  const auto [rest, error] = parse_value(colon + 1, end, value);
  if (error == std::errc::result_out_of_range)
    lines_.fail("the value in " + token(p, end) + " is beyond the range of 32-bit floats");
  if (error != std::errc{} || (rest != end && !is_separator(*rest)))
    lines_.fail("expected FEATURE:VALUE (for example '17:0.25'), found " + token(p, end));
  if (!std::isfinite(value))
    lines_.fail("the value in " + token(p, end) + " is not finite; leave the feature out");
  canonical_ = canonical_ && value != 0 && (features_.empty() || features_.back() < id);
  features_.push_back(static_cast<uint32_t>(id));
  values_.push_back(value);
  return rest;
}

// Sorts by id, adds up the values of an id that occurs more than once, drops zeros.
void XmcReader::sort_features() {
  unsorted_.clear();
  for (size_t i = 0; i < features_.size(); ++i) unsorted_.emplace_back(features_[i], values_[i]);
  // Stable, so that sums are added in the order of the line.
  std::stable_sort(unsorted_.begin(), unsorted_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  features_.clear();
  values_.clear();
  for (size_t i = 0; i < unsorted_.size();) {
    const uint32_t id = unsorted_[i].first;
    float sum = 0;
    for (; i < unsorted_.size() && unsorted_[i].first == id; ++i) sum += unsorted_[i].second;
    if (!std::isfinite(sum))
      lines_.fail("the values of feature " + std::to_string(id) +
                  " add up beyond the range of 32-bit floats");
    if (sum == 0) continue;
    features_.push_back(id);
    values_.push_back(sum);
  }
}

void XmcReader::expect_end() {
  std::string_view line;
  while (lines_.next(line))
    if (!std::all_of(line.begin(), line.end(), is_separator))
      lines_.fail("more lines than the " + std::to_string(header_.rows) + " samples of the header; found " +
                  quoted(line) + ": correct the header");
  if (header_.labels > kMostLabelsUnseen && header_.labels / kLabelsForAByte > lines_.bytes())
    throw FormatError(lines_.name() + ":1: the header says " + std::to_string(header_.labels) +
                      " labels, but there are only " + std::to_string(lines_.bytes()) +
                      " bytes of text, which cannot hold samples of so many: correct the header");
}

}  // namespace modelet::shard
