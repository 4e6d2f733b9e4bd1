// The choices of an experiment. Below each enum are the spellings of its values, in the same order. What a
// library keeps for each value, such as the function that makes a loss or a hash family, is in a ByChoice
// table of that library. The documents, messages and lists of tests are made from the spellings. A new value
// needs a word here and a row in each such table; CONTRIBUTING.md says what else. All of this is constant;
// any thread may use it.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace modelet {

enum class Loss { kSoftmax, kSigmoid };
constexpr auto spellings(Loss) { return std::to_array<std::string_view>({"softmax", "sigmoid"}); }

enum class SamplingMode { kFull, kUniform, kLsh, kLshPerSample };
constexpr auto spellings(SamplingMode) {
  return std::to_array<std::string_view>({"full", "uniform", "lsh", "lsh_per_sample"});
}

enum class RetrievalKind { kLowRank, kTables };
constexpr auto spellings(RetrievalKind) { return std::to_array<std::string_view>({"preview", "tables"}); }

enum class HashFamilyKind { kDwta, kSimHash, kMinHash };
constexpr auto spellings(HashFamilyKind) {
  return std::to_array<std::string_view>({"dwta", "simhash", "minhash"});
}

enum class OptimizerKind { kAdam, kAdagrad, kSgd, kRmsprop };
constexpr auto spellings(OptimizerKind) {
  return std::to_array<std::string_view>({"adam", "adagrad", "sgd", "rmsprop"});
}

enum class ScheduleKind { kConstant, kLinear, kCosine, kStep };  // after the warm-up
constexpr auto spellings(ScheduleKind) {
  return std::to_array<std::string_view>({"constant", "linear", "cosine", "step"});
}

enum class Normalize { kNone, kL2 };
constexpr auto spellings(Normalize) { return std::to_array<std::string_view>({"none", "l2"}); }

enum class Precision { kFp32, kBf16 };
constexpr auto spellings(Precision) { return std::to_array<std::string_view>({"fp32", "bf16"}); }

// kSame (gradients only) names no codec: it is that of activations.
enum class CodecKind { kNone, kBf16, kInt8, kInt4, kSame };
constexpr auto spellings(CodecKind) {
  return std::to_array<std::string_view>({"none", "bf16", "int8", "int4", "same"});
}

enum class DataFormat { kAuto, kXmc, kText, kCsv, kWords, kTable, kCriteo, kColumns, kSessions };
constexpr auto spellings(DataFormat) {
  return std::to_array<std::string_view>(
      {"auto", "xmc", "text", "csv", "words", "table", "criteo", "columns", "sessions"});
}

// What a column of the format columns is (base/experiment/column_use.h).
enum class ColumnType { kText, kCategory, kNumber, kDate, kTarget, kLabel, kIgnore, kEntity, kTime };
constexpr auto spellings(ColumnType) {
  return std::to_array<std::string_view>(
      {"text", "category", "number", "date", "target", "label", "ignore", "entity", "time"});
}

enum class TextWeight { kTf, kTfIdf };
constexpr auto spellings(TextWeight) { return std::to_array<std::string_view>({"tf", "tfidf"}); }

enum class TowerLabels { kClustered, kSpread, kMixed };
constexpr auto spellings(TowerLabels) {
  return std::to_array<std::string_view>({"clustered", "spread", "mixed"});
}

// What a site of private data sends of a round.
enum class Privacy { kSums, kRows };
constexpr auto spellings(Privacy) { return std::to_array<std::string_view>({"sums", "rows"}); }

// What replicas make of the mean of their changes (node_agent/replicas/mean_rule.h).
enum class MeanRule { kAverage, kProx, kAdam, kMomentum };
constexpr auto spellings(MeanRule) {
  return std::to_array<std::string_view>({"average", "prox", "adam", "momentum"});
}

enum class WordsTask { kSkipgram, kNext };
constexpr auto spellings(WordsTask) { return std::to_array<std::string_view>({"skipgram", "next"}); }

enum class Delimiter { kComma, kTab, kSemicolon, kPipe, kSpace, kNone };
constexpr auto spellings(Delimiter) {
  return std::to_array<std::string_view>({"comma", "tab", "semicolon", "pipe", "space", "none"});
}

template <class T>
concept Choice = std::is_enum_v<T> && requires {
  spellings(T{});
};

// The spelling in an experiment file.
template <Choice T>
constexpr std::string_view spelling(T value) {
  return spellings(T{})[static_cast<size_t>(value)];
}

// All values, in order. Tests loop over them.
template <Choice T>
constexpr auto all_values() {
  std::array<T, spellings(T{}).size()> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i);
  return values;
}

// A table with one row for each value of a choice, in the order of the values. A table that misses a row, or
// has rows in another order, does not compile.
template <Choice T, class Entry>
class ByChoice {
 public:
  struct Row {
    T value;
    Entry entry;
  };

  template <size_t kRows>
  consteval ByChoice(const Row (&rows)[kRows]) : entries_{} {  // NOLINT: a list of rows is the table
    static_assert(kRows == spellings(T{}).size(), "one row for each value");
    for (size_t i = 0; i < kRows; ++i) {
      if (rows[i].value != static_cast<T>(i)) throw "rows stand in the order of the values";
      entries_[i] = rows[i].entry;
    }
  }

  constexpr const Entry& operator[](T value) const {
    MODELET_CHECK(static_cast<size_t>(value) < entries_.size(), "unknown value of a choice");
    return entries_[static_cast<size_t>(value)];
  }

 private:
  std::array<Entry, spellings(T{}).size()> entries_;
};

}  // namespace modelet
