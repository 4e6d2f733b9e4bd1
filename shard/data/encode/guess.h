// guess_columns: what the columns of a table are for, guessed from its first records, so that nobody has to write
// [columns]. The same text gives the same guess. One thread.
//
//   date       all values are dates
//   number     all values are numbers, without zeros in front, as codes have them
//   ignore     every record has another word or whole number, as an id; or there is no value
//   category   values are words, or come again; with a separator, if many have | or ;
//   text       anything else
//
// Lists of JSON Lines are categories with a separator that their values do not have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/experiment/column_use.h"
#include "base/experiment/experiment.h"

namespace modelet::shard {

struct GuessedColumn {
  std::string name;
  ColumnUse use;
  std::string reason;                 // of a guess, in words that need no other context
  uint64_t missing = 0, distinct = 0;  // values of the records that were looked at
  std::vector<std::string> examples;  // a few of them, shortened
};

struct ColumnGuess {
  std::vector<GuessedColumn> columns;  // in the file's order
  uint64_t records = 0;                // that were looked at
  bool whole = false;                  // there are no others
  bool json = false;                   // JSON Lines, which have no delimiter
};

// The keys of JSON Lines are columns in the order in which they appear; a nested value is an error unless its column is
// given as ignore.

// The delimiter that the first line of a text has: a comma, else that of tab, semicolon and pipe which it has most often.
Delimiter guess_delimiter(const std::filesystem::path& text);

// `given`: columns whose use is known; of a target whose name is in `open`, the separator is guessed. Throws an Error if a
// given column is missing, or if the file cannot be read.
ColumnGuess guess_columns(const std::filesystem::path& text, const Experiment::Csv& csv, const ColumnUses& given,
                          const std::set<std::string>& open = {});

}  // namespace modelet::shard
