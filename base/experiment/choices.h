// The choices of an experiment: enums, each with the spellings of its values below it, in the same order.
// What the program has for each value (the function that makes a loss, a hash family, ...) is in one ByChoice
// table for each enum, in the library that knows it. Documents, messages and lists of tests follow from the
// spellings. A new value is a word here and a row there; CONTRIBUTING.md says what else. Constant; for any
// thread.
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

enum class OptimizerKind { kAdam, kAdagrad, kSgd };
constexpr auto spellings(OptimizerKind) {
  return std::to_array<std::string_view>({"adam", "adagrad", "sgd"});
}

enum class ScheduleKind { kConstant, kLinear, kCosine, kStep };  // after the warm-up
constexpr auto spellings(ScheduleKind) {
  return std::to_array<std::string_view>({"constant", "linear", "cosine", "step"});
}

enum class Normalize { kNone, kL2 };
constexpr auto spellings(Normalize) { return std::to_array<std::string_view>({"none", "l2"}); }

enum class Precision { kFp32, kBf16 };
constexpr auto spellings(Precision) { return std::to_array<std::string_view>({"fp32", "bf16"}); }

enum class DataFormat { kAuto, kXmc, kText, kCsv, kWords, kTable, kCriteo };
constexpr auto spellings(DataFormat) {
  return std::to_array<std::string_view>({"auto", "xmc", "text", "csv", "words", "table", "criteo"});
}

enum class TextWeight { kTf, kTfIdf };
constexpr auto spellings(TextWeight) { return std::to_array<std::string_view>({"tf", "tfidf"}); }

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

// Every value, in order: lists of tests are made from it.
template <Choice T>
constexpr auto all_values() {
  std::array<T, spellings(T{}).size()> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i);
  return values;
}

// What belongs to each value of a choice: one row for each value, in order. A table with another number of
// rows, or in another order, does not compile.
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
