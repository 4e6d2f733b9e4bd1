// The keys of an experiment: names, ranges, units and meanings in one table, and the values of an Experiment
// as text. What is common to those that read, write and document experiment files (experiment_reader.cc,
// experiment.cc); internal to base/. Constant; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/experiment.h"
#include "base/padding.h"

namespace modelet {

// Limits of lists, beside those of their elements.
inline constexpr size_t kMaxHiddenLayers = 16;
inline constexpr size_t kMaxColumns = 4096;  // names in a list of columns
// Widths are multiples of it: kernels process whole vectors.
inline constexpr uint32_t kColumnAlignment = kVectorFloats;

// Spellings of the enums, in the order of their values.
constexpr auto spellings(Normalize) { return std::to_array<std::string_view>({"none", "l2"}); }
constexpr auto spellings(Precision) { return std::to_array<std::string_view>({"fp32", "bf16"}); }
constexpr auto spellings(DataFormat) {
  return std::to_array<std::string_view>({"auto", "xmc", "text", "csv", "words", "table", "criteo"});
}
constexpr auto spellings(TextWeight) { return std::to_array<std::string_view>({"tf", "tfidf"}); }
constexpr auto spellings(WordsTask) { return std::to_array<std::string_view>({"skipgram", "next"}); }
constexpr auto spellings(Delimiter) {
  return std::to_array<std::string_view>({"comma", "tab", "semicolon", "pipe", "space", "none"});
}
constexpr auto spellings(Loss) { return std::to_array<std::string_view>({"softmax", "sigmoid"}); }
constexpr auto spellings(SamplingMode) {
  return std::to_array<std::string_view>({"full", "uniform", "lsh", "lsh_per_sample"});
}
constexpr auto spellings(RetrievalKind) { return std::to_array<std::string_view>({"preview", "tables"}); }
constexpr auto spellings(HashFamilyKind) {
  return std::to_array<std::string_view>({"dwta", "simhash", "minhash"});
}
constexpr auto spellings(OptimizerKind) {
  return std::to_array<std::string_view>({"adam", "adagrad", "sgd"});
}
constexpr auto spellings(ScheduleKind) {
  return std::to_array<std::string_view>({"constant", "linear", "cosine", "step"});
}

template <class T>
concept Enum = std::is_enum_v<T>;
template <class T>
concept WholeNumber = std::same_as<T, uint32_t> || std::same_as<T, uint64_t>;

// Where a field's value lives.
using Target = std::variant<std::string*, bool*, uint32_t*, uint64_t*, float*, std::vector<uint32_t>*,
                            std::vector<std::string>*, Normalize*, Precision*, DataFormat*, TextWeight*,
                            WordsTask*, Delimiter*, Loss*, SamplingMode*, RetrievalKind*, HashFamilyKind*,
                            OptimizerKind*, ScheduleKind*>;

enum class Text { kNone, kPath, kRequiredPath, kWord, kColumn };  // what a string field holds

// A key: where its value lives, what it may be.
struct Field {
  std::string_view key;  // "section.name"
  std::function<Target(Experiment&)> target;
  std::string_view unit, meaning;
  double low = 0, high = 0;  // numbers (of a list: its elements), both ends included
  Text text = Text::kNone;
};

// In the order of docs/experiment.md.
const std::vector<Field>& fields();
const Field* find_field(std::string_view key);  // nullptr: there is no such key

inline std::string_view section_of(std::string_view key) { return key.substr(0, key.find('.')); }
inline std::string_view name_of(std::string_view key) { return key.substr(key.find('.') + 1); }

// "a, b, c"
std::string join(std::span<const std::string_view> words);

// ---- Values as TOML

template <class Number>
std::string number_text(Number value) {
  std::array<char, 40> buffer;
  const auto end =
      std::to_chars(buffer.begin(), buffer.end(), value).ptr;  // floats: shortest that reads back equal
  return {buffer.begin(), end};
}

std::string toml_text(const std::string& value);
inline std::string toml_text(bool value) { return value ? "true" : "false"; }
template <WholeNumber T>
std::string toml_text(T value) {
  return number_text(value);
}
inline std::string toml_text(float value) { return number_text(value); }
template <class T>
std::string toml_text(const std::vector<T>& value) {
  std::string text;
  for (const T& element : value) text += (text.empty() ? "" : ", ") + toml_text(element);
  return "[" + text + "]";
}
template <Enum T>
std::string toml_text(T value) {
  return toml_text(std::string(spellings(T{})[static_cast<size_t>(value)]));
}

// What a user is told of a type, and of the values that a field may have.
template <class T>
std::string_view type_name() {
  if constexpr (std::same_as<T, bool>) return "boolean";
  if constexpr (WholeNumber<T>) return "whole number";
  if constexpr (std::same_as<T, float>) return "number";
  if constexpr (std::same_as<T, std::vector<uint32_t>>) return "list of whole numbers";
  if constexpr (std::same_as<T, std::vector<std::string>>) return "list of strings";
  return "string";
}

template <class T>
std::string range_text(const Field& field) {
  const auto interval = [&] {
    if constexpr (std::same_as<T, float>) return number_text(field.low) + " to " + number_text(field.high);
    return number_text(static_cast<uint64_t>(field.low)) + " to " +
           number_text(static_cast<uint64_t>(field.high));
  };
  if constexpr (Enum<T>) return join(spellings(T{}));
  if constexpr (std::same_as<T, bool>) return "true, false";
  if constexpr (WholeNumber<T> || std::same_as<T, float>) return interval();
  if constexpr (std::same_as<T, std::vector<uint32_t>>)
    return "1 to " + number_text(kMaxHiddenLayers) + " of " + interval();
  if constexpr (std::same_as<T, std::vector<std::string>>) return "columns; may be empty";
  switch (field.text) {
    case Text::kRequiredPath:
      return "a path; required";
    case Text::kPath:
      return "a path, or empty";
    case Text::kWord:
      return "a word";
    case Text::kColumn:
      return "a column, or empty";
    case Text::kNone:
      return "";
  }
  return "";
}

}  // namespace modelet
