// Reads experiment files: the file, the overrides, and the checks that involve more than one value.
#include "base/experiment/reader.h"

#include <algorithm>
#include <concepts>
#include <map>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/experiment/column_use.h"
#include "base/experiment/experiment.h"
#include "base/experiment/field_reader.h"
#include "base/experiment/fields.h"
#include "base/experiment/table_layout.h"
#include "base/experiment/towers.h"
#include "base/system/file.h"
#include "base/text/suggest.h"
#include "base/text/toml.h"

namespace modelet {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;  // an experiment file is a page of text

bool is_section(std::string_view name) {
  return std::ranges::any_of(fields(), [&](const Field& f) { return section_of(f.key) == name; });
}

// "; did you mean 'train.epochs'?": the known key nearest to `key` in any section (a correct name in the
// wrong section counts as one mistake), else where to look.
std::string key_suggestion(std::string_view key) {
  constexpr size_t kLongestKey = 64;
  if (key.size() > kLongestKey) return {};
  const Field* nearest = nullptr;
  size_t distance = std::max<size_t>(2, key.size() / 3) + 1;
  for (const Field& field : fields()) {
    const size_t d =
        std::min(edit_distance(key, field.key), 1 + edit_distance(name_of(key), name_of(field.key)));
    if (d < distance) {
      distance = d;
      nearest = &field;
    }
  }
  return nearest == nullptr ? "; docs/experiment.md lists every key"
                            : "; did you mean '" + std::string(nearest->key) + "'?";
}

constexpr const char* kTomlWanted = "an experiment is TOML in UTF-8: [section], then key = value";

class Parser {
 public:
  // `is_record`: of a model that is there, and can be used whatever was removed since.
  explicit Parser(const std::filesystem::path& origin, bool is_record = false)
      : origin_(origin.string()),
        folder_(std::filesystem::absolute(origin).parent_path()),
        is_record_(is_record) {}

  // Defaults that were measured for this experiment by `modelet tune`.
  void read_tuned(std::string_view text, const std::string& origin) {
    const toml::table root = parse_toml_file(text, origin, kTomlWanted);
    const toml::table* sampling = root["sampling"].as_table();
    if (sampling == nullptr || root.size() != 1)
      throw UsageError(origin +
                       ": must hold one section, [sampling]; make it again with modelet tune, or remove it");
    for (const auto& [key, value] : *sampling)
      set("sampling." + std::string(key.str()), value,
          {origin + ":" + number_text(key.source().begin.line), folder_});
  }

  void read_file(std::string_view text) {
    if (text.size() > kMaxFileBytes)
      throw UsageError(origin_ + ": " + number_text(text.size()) + " bytes, more than the limit of " +
                       number_text(kMaxFileBytes) + "; is this an experiment file?");
    const toml::table root = parse_toml_file(text, origin_, kTomlWanted);
    for (const auto& [name, node] : root) {
      const std::string place = place_of(name);
      if (!is_section(name.str())) {
        if (node.is_table()) throw unknown_section(place, name.str());
        throw unknown_key(place, name.str());
      }
      const toml::table* section = node.as_table();
      if (section == nullptr)
        throw UsageError(place + ": '" + std::string(name.str()) + "' is a section: write [" +
                         std::string(name.str()) + "] and its keys below");
      for (const auto& [key, value] : *section)
        set(std::string(name.str()) + "." + std::string(key.str()), value, {place_of(key), folder_});
    }
  }

  void override_with(const std::string& argument) {
    const std::string place = "--set " + shown(argument);
    const size_t equals = argument.find('=');
    if (equals == std::string::npos || argument.find('\n') != std::string::npos)
      throw UsageError(place + ": write it as section.key=value");
    const auto trim = [](std::string_view s) {
      const size_t first = s.find_first_not_of(" \t"), last = s.find_last_not_of(" \t");
      return std::string(first == std::string_view::npos ? "" : s.substr(first, last - first + 1));
    };
    const std::string key = trim(argument.substr(0, equals));
    std::string text = trim(argument.substr(equals + 1));
    const Field* field = find_field(key);
    if (field == nullptr) throw unknown_key(place, key);
    const bool quoted = text.starts_with('"') || text.starts_with('\'');
    if (takes<std::vector<std::string>>(*field) && !text.starts_with('[')) {
      if (!quoted && text.find(',') != std::string::npos)
        throw UsageError(place + ": write several as " + key + "=[\"...\", \"...\"]");
      text = text.empty() ? "[]" : "[" + (quoted ? text : toml_text(text)) + "]";
    } else if ((takes_text(*field) || (!field->zero.empty() && text == field->zero)) && !quoted)
      text = toml_text(text);
    toml::table parsed;
    try {
      parsed = parse_toml("value = " + text);
    } catch (const toml::parse_error& e) {
      throw UsageError(place + ": the value is not valid TOML, such as 5, 0.5, true or [32, 32]: " +
                       std::string(e.description()));
    }
    set(key, *parsed.get("value"), {place, std::filesystem::current_path()});
  }

  std::map<std::string, std::string> given() {
    std::map<std::string, std::string> values;
    for (const auto& [key, place] : place_) values[key] = toml_value(key, experiment_);
    return values;
  }

  // Checks what depends on several values.
  Experiment finish() {
    for (const Field& field : fields()) {
      if (is_required(field.text) && std::get<std::string*>(field.target(experiment_))->empty())
        throw UsageError(origin_ + ": " + std::string(field.key) +
                         " is missing: " + std::string(field.meaning));
    }
    check_encoding();
    // A table may have a single label, over which a softmax is always certain.
    if (has_label_columns() && !place_.contains("model.loss"))
      experiment_.model.loss = Loss::kSigmoid;
    const auto& modelets = experiment_.modelets;
    const auto& sampling = experiment_.sampling;
    if (modelets.hidden_columns % kColumnAlignment != 0)
      fail("modelets.hidden_columns", "is " + number_text(modelets.hidden_columns) +
                                          "; it must be a multiple of " + number_text(kColumnAlignment));
    for (const uint32_t width : experiment_.model.hidden) require_whole_vectors(width);
    if (sampling.rank % kColumnAlignment != 0)
      fail("sampling.rank", "is " + number_text(sampling.rank) + "; it must be a multiple of " +
                                number_text(kColumnAlignment));
    if (sampling.group % kColumnAlignment != 0)
      fail("sampling.group", "is " + number_text(sampling.group) + "; it must be a multiple of " +
                                 number_text(kColumnAlignment));
    const uint64_t candidates = uint64_t{sampling.candidates} * modelets.output_modelets;
    check_direct_path();
    check_towers();
    if (is_private(experiment_)) check_private();
    check_noise();
    if (retrieves_neurons(sampling.mode) && sampling.top > candidates)
      fail("sampling.top", "is " + number_text(sampling.top) + ", more than the " + number_text(candidates) +
                               " candidates of a sample (sampling.candidates x modelets.output_modelets)");
    if (experiment_.exchange.codec == CodecKind::kSame)
      fail("exchange.codec",
           "is same, but activations have nothing to be the same as: name a codec; same is for "
           "exchange.gradient_codec");
    if (experiment_.train.patience > 0 && experiment_.data.validation == 0)
      fail("train.patience",
           "needs samples to judge by that are not the test's: set data.validation, the share of data.train "
           "to hold out (such as 0.05)");
    return std::move(experiment_);
  }

  // The same for an experiment of which only the encoding keys are given.
  Experiment finish_encoding() {
    check_encoding();
    return std::move(experiment_);
  }

 private:
  void check_direct_path() const {
    const auto& model = experiment_.model;
    if (model.rare_trust != 1 && model.loss == Loss::kSoftmax)
      fail(
          "model.rare_trust",
          "needs logits with a level of their own, which softmax does not have; set model.loss = sigmoid, or "
          "rare_trust = 1");
    if (model.exclude_own && !model.centroids)
      fail("model.exclude_own", "is a part of the direct path; set model.centroids = true");
    if (model.own_weight > 0 && !model.centroids)
      fail("model.own_weight", "is a part of the direct path; set model.centroids = true");
    if (model.own_weight > 0 && model.exclude_own)
      fail("model.own_weight", "favours what model.exclude_own excludes; set one of them");
    if (model.centroids && experiment_.sampling.mode == SamplingMode::kLshPerSample)
      fail("model.centroids",
           "needs an active set that the batch shares; sampling.mode is lsh_per_sample: set lsh, uniform or full");
  }

  void check_towers() const {
    const auto& model = experiment_.model;
    if (model.towers == kAutoTowers)
      fail("model.towers", "is auto, which is chosen for the data: modelet train FILE --choose; or give a number");
    if (model.towers == 1) {
      if (model.divisions > 1) fail("model.divisions", "divides labels into towers, and model.towers is 1: choose more");
      return;
    }
    if (model.loss == Loss::kSoftmax)
      fail("model.towers",
           "needs logits that can be compared between networks, which those of a softmax cannot; set model.loss = "
           "sigmoid, or towers = 1");
    if (experiment_.cluster.replicas > 1)
      fail("model.towers", "are trained by nodes of their own, without replicas; set cluster.replicas = 1");
  }

  // Nobody has the samples of all owners, so nothing can be computed of them.
  void check_private() const {
    const auto& data = experiment_.data;
    const auto& model = experiment_.model;
    const char* const kNobody = "is computed of all training samples, and with private data nobody has them: set ";
    if (model.centroids) fail("model.centroids", std::string(kNobody) + "it to false");
    if (model.classifiers > 0) fail("model.classifiers", std::string(kNobody) + "it to 0");
    if (model.towers > 1)
      fail("model.towers", "are not trained on private data yet: every owner holds the whole model; set it to 1");
    if (data.format != DataFormat::kAuto && data.format != DataFormat::kXmc)
      fail("data.format", "is " + std::string(spelling(data.format)) +
                              ", whose features and labels are numbered by the training samples, and with private data "
                              "nobody has them all: owners use the encoder of data.test, prepared with 'modelet data "
                              "prepare --like PUBLIC'; leave data.format out");
    if (experiment_.cluster.owners_per_round == 1)
      fail("cluster.owners_per_round", "is 1, and the sum of one owner is what this owner has learned; take at least 2");
  }

  // Nothing may leave an owner that tells of its samples and has no noise.
  void check_noise() const {
    const auto& cluster = experiment_.cluster;
    if (cluster.noise == 0 && cluster.clip == 0) return;
    constexpr float kLeastNoise = 0.01f;  // with less, the steps of fixed-point numbers would show
    const std::string_view key = cluster.noise > 0 ? "cluster.noise" : "cluster.clip";
    if (!sends_sums(experiment_))
      fail(key, "is for the masked sums of private data: set data.train = \"private:NAME\" and cluster.privacy = \"sums\", "
                "or leave it out");
    if (cluster.noise == 0) return;
    if (cluster.noise < kLeastNoise)
      fail("cluster.noise", "is " + number_text(cluster.noise) + ", which hides nothing; take at least " +
                                number_text(kLeastNoise) + ", or 0");
    if (cluster.clip == 0)
      fail("cluster.noise", "is in units of cluster.clip, which is 0: set the largest norm of what an owner may change in a "
                            "round");
    if (experiment_.data.validation > 0)
      fail("cluster.noise", "and data.validation: figures of owners' samples would leave them without noise; set "
                            "data.validation = 0");
    if (retrieves_neurons(experiment_.sampling.mode))
      fail("cluster.noise", "and sampling.mode = " + std::string(spelling(experiment_.sampling.mode)) +
                                ": means of owners' queries would leave them without noise; set sampling.mode = "
                                "\"uniform\" or \"full\"");
  }

  void check_encoding() const {
    const auto& text = experiment_.text;
    if ((text.min_char == 0) != (text.max_char == 0) || text.min_char > text.max_char)
      fail("text.min_char", "is " + number_text(text.min_char) + " and text.max_char " +
                                number_text(text.max_char) +
                                "; both must be 0, or 1 <= min_char <= max_char");
    if (experiment_.csv.delimiter == Delimiter::kNone || experiment_.csv.delimiter == Delimiter::kSpace)
      fail("csv.delimiter", "must be comma, tab, semicolon or pipe");
    if (experiment_.data.format == DataFormat::kColumns) {
      try {
        require_trainable(column_uses(experiment_.columns));
      } catch (const UsageError& e) {
        throw UsageError(origin_ + ": " + e.what());
      }
    }
    if (!is_table(experiment_.data.format)) return;
    try {
      table_layout(experiment_.table, experiment_.data.format);
    } catch (const UsageError& e) {
      fail("table.columns", e.what());
    }
  }

  static bool is_table(DataFormat format) {
    return format == DataFormat::kTable || format == DataFormat::kCriteo;
  }

  bool has_label_columns() const {
    if (experiment_.data.format != DataFormat::kColumns) return is_table(experiment_.data.format);
    return std::ranges::any_of(column_uses(experiment_.columns),
                               [](const auto& each) { return each.second.type == ColumnType::kLabel; });
  }

  template <class Value>
  static bool takes(const Field& field) {
    Experiment scratch;
    return std::visit([](auto* value) { return std::same_as<std::remove_pointer_t<decltype(value)>, Value>; },
                      field.target(scratch));
  }

  static bool takes_text(const Field& field) {
    Experiment scratch;
    return std::visit(
        [](auto* value) {
          using T = std::remove_pointer_t<decltype(value)>;
          return std::same_as<T, std::string> || std::same_as<T, NamedTexts> || Choice<T>;
        },
        field.target(scratch));
  }

  void require_whole_vectors(uint32_t width) const {
    if (width % kColumnAlignment == 0) return;
    const uint32_t below = width - width % kColumnAlignment,
                   above = below + kColumnAlignment;  // width: in range
    fail("model.hidden", "has a layer of " + number_text(width) + " neurons; widths must be multiples of " +
                             number_text(kColumnAlignment) + ", because kernels process whole vectors of " +
                             number_text(kColumnAlignment) + " floats; the nearest are " +
                             number_text(below) + " and " + number_text(above));
  }

  static bool had_no_effect(std::string_view key, const toml::node& node) {
    const RemovedKey* removed = find_removed(key);
    if (removed == nullptr) return false;
    if (!removed->no_effect) return true;
    const auto boolean = node.value_exact<bool>();
    return boolean ? *boolean == (*removed->no_effect != 0) : node.value<double>() == removed->no_effect;
  }

  static UsageError unknown_key(const std::string& place, std::string_view key) {
    if (const RemovedKey* removed = find_removed(key))
      return UsageError(place + ": " + std::string(key) + " was removed: " + std::string(removed->instead));
    return UsageError(place + ": unknown key " + shown(key) + key_suggestion(key));
  }

  static UsageError unknown_section(const std::string& place, std::string_view name) {
    std::vector<std::string> known;
    for (const Field& field : fields())
      if (known.empty() || known.back() != section_of(field.key)) known.emplace_back(section_of(field.key));
    return UsageError(place + ": unknown section " + shown(name) + suggestion(name, known));
  }

  std::string place_of(const toml::key& key) const {
    return origin_ + ":" + number_text(key.source().begin.line);
  }

  void set(const std::string& key, const toml::node& node, const Source& source) {
    const Field* field = find_field(key);
    if (field == nullptr && had_no_effect(key, node)) return;
    if (field == nullptr) throw unknown_key(source.place, key);
    const auto text = node.value_exact<std::string>();
    if (const RemovedValue* removed = text ? find_removed_value(key, *text) : nullptr) {
      if (!is_record_)
        throw UsageError(source.place + ": " + key + " is " + shown(*text) + ", which was removed: use " +
                         std::string(removed->instead));
      read_field(*field, key, toml::value<std::string>(std::string(removed->instead)), source, experiment_);
    } else {
      read_field(*field, key, node, source, experiment_);
    }
    place_[key] = source.place;
  }

  [[noreturn]] void fail(std::string_view key, const std::string& what) const {
    const auto it = place_.find(key);
    throw UsageError((it == place_.end() ? origin_ : it->second) + ": " + std::string(key) + " " + what);
  }

  std::string origin_;
  std::filesystem::path folder_;
  bool is_record_;
  std::map<std::string, std::string, std::less<>> place_;  // where each given value stands
  Experiment experiment_;
};

}  // namespace

std::filesystem::path tuned_file(const std::filesystem::path& experiment) {
  std::filesystem::path path = experiment;
  return path.replace_extension(".tuned.toml");
}

Experiment load_experiment(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  const auto read = [](const std::filesystem::path& file) {
    try {
      return read_text_file(file, kMaxFileBytes);
    } catch (const Error& e) {
      throw UsageError(std::string("experiment file ") + e.what());
    }
  };
  Parser parser(path);
  const std::filesystem::path tuned = tuned_file(path);
  if (std::filesystem::exists(tuned)) parser.read_tuned(read(tuned), tuned.string());
  parser.read_file(read(path));
  for (const std::string& argument : overrides) parser.override_with(argument);
  return parser.finish();
}

Experiment parse_experiment(std::string_view toml, const std::filesystem::path& origin,
                            const std::vector<std::string>& overrides) {
  Parser parser(origin);
  parser.read_file(toml);
  for (const std::string& argument : overrides) parser.override_with(argument);
  return parser.finish();
}

Experiment parse_recorded_experiment(std::string_view toml, const std::filesystem::path& origin) {
  Parser parser(origin, true);
  parser.read_file(toml);
  return parser.finish();
}

std::set<std::string> given_keys(std::string_view toml, const std::filesystem::path& origin,
                                 const std::vector<std::string>& overrides) {
  std::set<std::string> keys;
  for (const auto& [key, value] : given_values(toml, origin, overrides)) keys.insert(key);
  return keys;
}

std::map<std::string, std::string> given_values(std::string_view toml, const std::filesystem::path& origin,
                                                const std::vector<std::string>& overrides) {
  Parser parser(origin);
  parser.read_file(toml);
  for (const std::string& argument : overrides) parser.override_with(argument);
  return parser.given();
}

Encoding parse_encoding(std::string_view toml, const std::filesystem::path& origin,
                        const std::vector<std::string>& overrides) {
  Parser parser(origin);
  parser.read_file(toml);
  for (const std::string& argument : overrides) parser.override_with(argument);
  return encoding_of(parser.finish_encoding());
}

}  // namespace modelet
