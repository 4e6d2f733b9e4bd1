#include "base/experiment/field_reader.h"

#include <algorithm>
#include <cctype>
#include <concepts>
#include <tuple>
#include <variant>

#include "base/error.h"
#include "base/experiment/column_use.h"
#include "base/experiment/table_layout.h"
#include "base/text/toml.h"

namespace modelet {
namespace {

constexpr size_t kMaxStringBytes = 4096;  // PATH_MAX

std::string kind_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::string:
      return "string";
    case toml::node_type::integer:
      return "whole number";
    case toml::node_type::floating_point:
      return "number with a fraction";
    case toml::node_type::boolean:
      return "boolean";
    case toml::node_type::array:
      return "list";
    case toml::node_type::table:
      return "table";
    default:
      return "date or time";
  }
}

class ValueReader {
 public:
  ValueReader(const Field& field, std::string_view key, const toml::node& node, const Source& source)
      : field_(field), key_(key), node_(node), source_(source) {}

  template <class T>
  void read(T& value) const {
    if constexpr (std::same_as<T, bool>) {
      const auto given = node_.value_exact<bool>();
      if (!given) wrong_type<T>(node_);
      value = *given;
    } else if constexpr (WholeNumber<T>) {
      const bool is_zero = !field_.zero.empty() && node_.value_exact<std::string_view>() == field_.zero;
      value = is_zero ? 0 : whole_number<T, T>(node_);
    } else if constexpr (std::same_as<T, float>) {
      if (!node_.is_number()) wrong_type<T>(node_);
      const double given = node_.is_integer() ? static_cast<double>(node_.as_integer()->get())
                                              : node_.as_floating_point()->get();
      value = static_cast<float>(given);
      // Compared as floats, so that a limit that is written and read again is still inside.
      if (!(value >= static_cast<float>(field_.low) && value <= static_cast<float>(field_.high)))
        bad_value<T>(number_text(given));
    } else if constexpr (std::same_as<T, std::vector<uint32_t>>) {
      read_list(value);
    } else if constexpr (std::same_as<T, std::vector<std::string>>) {
      read_strings(value);
    } else if constexpr (std::same_as<T, NamedTexts>) {
      read_named(value);
    } else if constexpr (Choice<T>) {
      const std::string given = string<T>(node_);
      const auto names = spellings(T{});
      const auto it = std::ranges::find(names, given);
      if (it == names.end()) bad_value<T>(shown(given));
      value = static_cast<T>(it - names.begin());
    } else {
      read_string(value);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UsageError(source_.place + ": " + std::string(key_) + " " + what);
  }

  template <class T>
  [[noreturn]] void bad_value(const std::string& given) const {
    fail("is " + given + "; it must be " + (Choice<T> ? "one of " : "") + range_text<T>(field_) +
         (field_.unit.empty() ? "" : " (" + std::string(field_.unit) + ")"));
  }

  template <class T>
  [[noreturn]] void wrong_type(const toml::node& found) const {
    fail("must be a " + std::string(type_name<T>()) + ", but there is a " + kind_of(found));
  }

  // `Whole` is the type of the whole field, for messages.
  template <class Whole>
  std::string string(const toml::node& node) const {
    const auto given = node.value_exact<std::string>();
    if (!given) wrong_type<Whole>(node);
    check_string(*given);
    return *given;
  }

  void check_string(std::string_view given) const {
    if (given.size() > kMaxStringBytes)
      fail("is " + number_text(given.size()) + " bytes long, more than the limit of " +
           number_text(kMaxStringBytes));
    if (std::ranges::any_of(given, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
      fail("contains a control character");
  }

  template <class T, class Whole>
  T whole_number(const toml::node& node) const {
    const auto given = node.value_exact<int64_t>();
    if (!given) wrong_type<Whole>(node);
    if (*given < 0 || static_cast<double>(*given) < field_.low || static_cast<double>(*given) > field_.high)
      bad_value<Whole>(number_text(*given));
    return static_cast<T>(*given);
  }

  void read_list(std::vector<uint32_t>& value) const {
    using List = std::vector<uint32_t>;
    const toml::array* given = node_.as_array();
    if (given == nullptr) wrong_type<List>(node_);
    if (given->empty() || given->size() > kMaxHiddenLayers)
      bad_value<List>("a list of " + number_text(given->size()));
    value.clear();
    for (const toml::node& element : *given) value.push_back(whole_number<uint32_t, List>(element));
  }

  void read_strings(std::vector<std::string>& value) const {
    using List = std::vector<std::string>;
    const toml::array* given = node_.as_array();
    if (given == nullptr) wrong_type<List>(node_);
    if (given->size() > kMaxTableColumns)
      fail("has " + number_text(given->size()) + " columns, more than the limit of " +
           number_text(kMaxTableColumns));
    value.clear();
    for (const toml::node& element : *given) value.push_back(string<List>(element));
  }

  void read_named(NamedTexts& value) const {
    const std::string name(name_of(key_)), text = string<NamedTexts>(node_);
    check_string(name);
    if (text.empty()) {
      value.erase(name);
      return;
    }
    try {
      parse_column_use(text);
    } catch (const UsageError& error) {
      fail(error.what());
    }
    value[name] = text;
    if (value.size() > kMaxTableColumns)
      fail("is column number " + number_text(value.size()) + "; at most " + number_text(kMaxTableColumns) +
           " are possible");
  }

  void read_string(std::string& value) const {
    value = string<std::string>(node_);
    if (field_.text == Text::kWord) {
      const auto in_word = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; };
      if (value.empty() || !std::ranges::all_of(value, in_word)) bad_value<std::string>(shown(value));
    } else if (field_.text == Text::kRequiredData && value.starts_with(kPrivatePrefix)) {
      if (!is_private_name(std::string_view(value).substr(kPrivatePrefix.size())))
        fail("is " + shown(value) + "; private data is private: and a name of letters, digits, '-' and '_', such as " +
             std::string(kPrivatePrefix) + "clinic");
    } else if (field_.text != Text::kColumn && !value.empty()) {
      value = (source_.folder / value).lexically_normal().string();
      require_writable(value);
    }
  }

  // A run's experiment is recorded and sent as TOML with absolute paths. Names of folders may contain bytes
  // that TOML cannot represent.
  void require_writable(const std::string& path) const {
    try {
      std::ignore = parse_toml("value = " + toml_text(path));
    } catch (const toml::parse_error&) {
      fail("is " + shown(path) +
           ", a path that is not UTF-8, or has control characters: rename the folder, or put the file "
           "elsewhere");
    }
  }

  const Field& field_;
  const std::string_view key_;
  const toml::node& node_;
  const Source& source_;
};

}  // namespace

void read_field(const Field& field, std::string_view key, const toml::node& node, const Source& source,
                Experiment& experiment) {
  std::visit([&](auto* value) { ValueReader(field, key, node, source).read(*value); }, field.target(experiment));
}

std::string shown(std::string_view text) {
  constexpr size_t kShown = 80;
  std::string result = "'";
  for (const char c : text.substr(0, kShown))
    result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return result + (text.size() > kShown ? "...'" : "'");
}

}  // namespace modelet
