#include "scheduler/cli/options/hold_out.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/rng.h"
#include "base/system/file.h"
#include "shard/data/read/line_reader.h"

namespace modelet::cli {
namespace {

constexpr uint32_t kOneOf = 10;
constexpr uint64_t kHoldOutStream = 101;  // of random numbers; those of synthetic data and of owners are others

// The records of a text as they stand there, line ends included.
class WholeRecords {
 public:
  WholeRecords(const std::filesystem::path& text, bool quotes) : lines_(text), quotes_(quotes) {}

  // False at the end. Empty lines between records are left out.
  bool next(std::string& record) {
    record.clear();
    bool open = false;  // a quote is
    for (std::string_view line; lines_.next(line);) {
      if (line.empty() && !open) continue;
      record.append(line).push_back('\n');
      open ^= quotes_ && std::ranges::count(line, '"') % 2 == 1;
      if (record.size() > shard::kMaxLineBytes) lines_.fail("the record is longer than 64 MiB; is a quote not closed?");
      if (!open) return true;
    }
    return !record.empty();
  }

 private:
  shard::LineReader lines_;
  bool quotes_;
};

// One of the two files.
class Part {
 public:
  explicit Part(const std::filesystem::path& path) : file_(path) {}

  void add(std::string_view record) {
    constexpr size_t kTogether = 1 << 20;  // bytes
    waiting_ += record;
    if (waiting_.size() >= kTogether) write();
  }
  void commit() {
    write();
    file_.commit();
  }

 private:
  void write() {
    file_.write(std::string_view(waiting_));
    waiting_.clear();
  }

  AtomicFile file_;
  std::string waiting_;
};

}  // namespace

DividedTable hold_out(const std::filesystem::path& table, const std::filesystem::path& folder, bool header, bool quotes,
                      uint64_t seed) {
  const std::string ending = shard::plain_ending(table);
  std::filesystem::create_directories(folder);
  DividedTable result{.train = folder / ("train" + ending), .test = folder / ("test" + ending)};
  Part train(result.train), test(result.test);
  WholeRecords records(table, quotes);
  std::string record;
  if (header && records.next(record)) {
    train.add(record);
    test.add(record);
  }
  const Rng draws(seed, {kStreamSynth, kHoldOutStream});
  uint32_t place = 0;  // among each ten
  for (; records.next(record); ++result.records) {
    const uint64_t ten = result.records / kOneOf;
    if (result.records % kOneOf == 0) place = draws.stream(ten).below(kOneOf);
    const bool is_test = result.records % kOneOf == place;
    (is_test ? test : train).add(record);
    result.held_out += is_test ? 1 : 0;
  }
  if (result.records < kOneOf)
    throw UsageError(table.string() + ": has " + std::to_string(result.records) +
                     " records, too few to hold out a tenth: name test data as well");
  train.commit();
  test.commit();
  return result;
}

}  // namespace modelet::cli
