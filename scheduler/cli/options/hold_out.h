// hold_out: divides a table into training and test data, for a user who has only one file. One thread.
#pragma once

#include <cstdint>
#include <filesystem>

namespace modelet::cli {

struct DividedTable {
  std::filesystem::path train, test;
  uint64_t records = 0, held_out = 0;
};

// Writes the records of a table (CSV, TSV or JSON Lines; also .xz or .gz) to two files in `folder`, which is made: of each
// ten records, one that the seed draws is for the test. A first record that names the columns (`header`) goes to both.
// `quotes`: fields may be quoted, and have line ends in them. Throws UsageError if there are fewer than ten records.
DividedTable hold_out(const std::filesystem::path& table, const std::filesystem::path& folder, bool header, bool quotes,
                      uint64_t seed);

}  // namespace modelet::cli
