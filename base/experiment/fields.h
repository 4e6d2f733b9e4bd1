// The keys of an experiment: names, ranges, units and meanings in one table, and the values of an Experiment
// as text. Shared by the code that reads, writes and documents experiment files (reader.cc, experiment.cc), and by
// code that must know the key of a value. Constant; for any thread.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/array/padding.h"
#include "base/error.h"
#include "base/experiment/choices.h"
#include "base/experiment/experiment.h"

namespace modelet {

// Widths are multiples of this: kernels process whole vectors.
inline constexpr uint32_t kColumnAlignment = kVectorFloats;

template <class T>
concept WholeNumber = std::same_as<T, uint32_t> || std::same_as<T, uint64_t>;

// The values of a section whose names the user chooses.
using NamedTexts = std::map<std::string, std::string>;

// Where a field's value lives.
using Target = std::variant<std::string*, bool*, uint32_t*, uint64_t*, float*, std::vector<uint32_t>*,
                            std::vector<std::string>*, NamedTexts*, Normalize*, Precision*, DataFormat*, TextWeight*,
                            WordsTask*, Delimiter*, Loss*, SamplingMode*, RetrievalKind*, HashFamilyKind*, TowerLabels*,
                            OptimizerKind*, ScheduleKind*, CodecKind*, Privacy*, MeanRule*>;

// What a string field holds. kRequiredData: a path, or private:NAME (is_private() in base/experiment/experiment.h).
enum class Text { kNone, kPath, kRequiredPath, kRequiredData, kWord, kColumn };
constexpr bool is_required(Text text) { return text == Text::kRequiredPath || text == Text::kRequiredData; }

// A key: where its value lives, and which values are allowed. The key "section.NAME" stands for all keys of a section
// with free names (NamedTexts).
struct Field {
  std::string_view key;  // "section.name"
  Target (*target)(Experiment&) = nullptr;
  std::string_view unit, meaning;
  double low = 0, high = 0;  // range of a number or of a list's elements, both ends included
  Text text = Text::kNone;
  std::string_view zero = {};  // the word that stands for 0, a number outside of the range
};

// A key of earlier releases. Files that they wrote have every key, so with the value that had no effect it is
// ignored. `instead`: what to do with any other value.
struct RemovedKey {
  std::string_view key;
  std::optional<double> no_effect;  // false: 0; nothing: none has, without another removed key
  std::string_view instead;
};
const RemovedKey* find_removed(std::string_view key);  // nullptr: there was no such key

// A value of earlier releases, and that which is nearest to it.
struct RemovedValue {
  std::string_view key, value, instead;
};
const RemovedValue* find_removed_value(std::string_view key, std::string_view value);  // nullptr: none

// In the order of docs/experiment.md.
const std::vector<Field>& fields();
const Field* find_field(std::string_view key);  // nullptr: there is no such key

// The key whose value is `value`, a member of `experiment`.
template <class T>
const Field& field_of(Experiment& experiment, const T& value) {
  const auto found = std::ranges::find_if(fields(), [&](const Field& field) {
    const Target target = field.target(experiment);
    T* const* const place = std::get_if<T*>(&target);
    return place != nullptr && *place == &value;
  });
  MODELET_CHECK(found != fields().end(), "every value of an experiment has a key");
  return *found;
}

inline std::string_view section_of(std::string_view key) { return key.substr(0, key.find('.')); }
inline std::string_view name_of(std::string_view key) { return key.substr(key.find('.') + 1); }

// "a, b, c"
std::string join(std::span<const std::string_view> words);

// ---- Values as TOML

template <class Number>
std::string number_text(Number value) {
  std::array<char, 40> buffer;
  // For floats the shortest text that reads back equal.
  const auto end = std::to_chars(buffer.begin(), buffer.end(), value).ptr;
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
template <Choice T>
std::string toml_text(T value) {
  return toml_text(std::string(spelling(value)));
}
inline std::string toml_text(const NamedTexts& value) {
  std::string text;
  for (const auto& [name, inner] : value) text += (text.empty() ? "" : ", ") + toml_text(name) + " = " + toml_text(inner);
  return "{" + text + "}";
}
inline std::string toml_value(const Field& field, Experiment& experiment) {
  const std::string text = std::visit([](auto* value) { return toml_text(*value); }, field.target(experiment));
  return field.zero.empty() || text != "0" ? text : toml_text(std::string(field.zero));
}

// The lines "name = value" of a field in its section: one, or one for each free name.
struct TomlEntry {
  std::string key, name, value;  // "section.name", and the name as TOML
};
std::vector<TomlEntry> toml_entries(const Field& field, Experiment& experiment);
// The value of a key, which may be one with a free name.
std::string toml_value(std::string_view key, Experiment& experiment);

// What users are told about a type, and about the values that a field may have.
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
  if constexpr (Choice<T>) return join(spellings(T{}));
  if constexpr (std::same_as<T, bool>) return "true, false";
  if constexpr (WholeNumber<T> || std::same_as<T, float>)
    return interval() + (field.zero.empty() ? "" : ", or " + std::string(field.zero));
  if constexpr (std::same_as<T, std::vector<uint32_t>>)
    return "1 to " + number_text(kMaxHiddenLayers) + " of " + interval();
  if constexpr (std::same_as<T, std::vector<std::string>>) return "columns; may be empty";
  if constexpr (std::same_as<T, NamedTexts>) return "a type and its options; empty: not used";
  switch (field.text) {
    case Text::kRequiredPath:
      return "a path; required";
    case Text::kRequiredData:
      return "a path, or private:NAME; required";
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
