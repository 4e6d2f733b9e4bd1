#include "base/text/strict_json.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text/printable.h"

namespace modelet {
namespace {

[[noreturn]] void bad_member(const char* key, const char* problem, std::string_view origin) {
  throw FormatError(std::string(origin) + ": '" + key + "' " + problem);
}

// Builds the document while it is read, so that its work follows the size of the text. The library's parser
// with a callback does not: it goes through the enclosing list at the end of each object.
class StrictBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  StrictBuilder(std::string_view origin, int max_depth, bool keep_digits)
      : origin_(origin), max_depth_(max_depth), keep_digits_(keep_digits) {}

  nlohmann::json take() { return std::move(document_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& token) override {
    const bool is_whole = token.find_first_of(".eE") == string_t::npos;
    return keep_digits_ && is_whole ? add(token) : add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }

  bool start_object(size_t) override { return open(nlohmann::json::object()); }
  bool start_array(size_t) override { return open(nlohmann::json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    const auto [member, is_new] = open_.back()->get_ref<nlohmann::json::object_t&>().try_emplace(key);
    if (!is_new) throw FormatError(origin_ + ": the key '" + printable(key, kShown) + "' appears twice");
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) override {
    // The parser quotes the token it stopped at, however long.
    throw FormatError(origin_ + ": not valid JSON: " + std::string(e.what()).substr(0, kShown));
  }

 private:
  static constexpr size_t kShown = 200;
  static constexpr size_t kMostValues = size_t{1} << 20;  // each takes memory, but a byte or two of text

  template <class Value>
  nlohmann::json& place(Value&& value) {
    if (++values_ > kMostValues)
      throw FormatError(origin_ + ": more than " + std::to_string(kMostValues) + " values in one JSON text");
    if (open_.empty()) return document_ = std::forward<Value>(value);
    if (open_.back()->is_object()) return *member_ = std::forward<Value>(value);
    return open_.back()->emplace_back(std::forward<Value>(value));
  }

  template <class Value>
  bool add(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }

  bool open(nlohmann::json&& container) {
    if (open_.size() >= static_cast<size_t>(max_depth_))
      throw FormatError(origin_ + ": JSON nested deeper than " + std::to_string(max_depth_));
    open_.push_back(&place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string origin_;
  const int max_depth_;
  const bool keep_digits_;
  nlohmann::json document_;
  std::vector<nlohmann::json*> open_;  // what has begun and not ended, from the outside in
  nlohmann::json* member_ = nullptr;   // of the innermost object: where the next value belongs
  size_t values_ = 0;
};

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, std::string_view origin, int max_depth,
                                 bool keep_digits) {
  StrictBuilder builder(origin, max_depth, keep_digits);
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

std::optional<nlohmann::json> parse_json_object(std::string_view text) {
  constexpr int kDeepest = 8;  // events, which nest deepest, have 3
  try {
    nlohmann::json json = parse_strict_json(text, "", kDeepest);
    if (json.is_object()) return json;
  } catch (const FormatError&) {
  }
  return std::nullopt;
}

const nlohmann::json& member_at(const nlohmann::json& object, const char* key, std::string_view origin) {
  if (!object.is_object()) bad_member(key, "is expected in an object, but there is none", origin);
  const auto it = object.find(key);
  if (it == object.end()) bad_member(key, "is missing", origin);
  return *it;
}

uint64_t unsigned_at(const nlohmann::json& object, const char* key, std::string_view origin) {
  const nlohmann::json& value = member_at(object, key, origin);
  if (!value.is_number_unsigned()) bad_member(key, "is not an unsigned whole number", origin);
  return value.get<uint64_t>();
}

double number_at(const nlohmann::json& object, const char* key, std::string_view origin) {
  const nlohmann::json& value = member_at(object, key, origin);
  if (!value.is_number()) bad_member(key, "is not a number", origin);
  return value.get<double>();
}

std::string string_at(const nlohmann::json& object, const char* key, std::string_view origin) {
  const nlohmann::json& value = member_at(object, key, origin);
  if (!value.is_string()) bad_member(key, "is not a string", origin);
  return value.get<std::string>();
}

}  // namespace modelet
