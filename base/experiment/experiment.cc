#include "base/experiment/experiment.h"

#include <algorithm>
#include <cctype>

#include "base/experiment/fields.h"

namespace modelet {

bool is_private_name(std::string_view name) {
  constexpr size_t kLongest = 64;
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
  return !name.empty() && name.size() <= kLongest && std::ranges::all_of(name, fits);
}

std::string join(std::span<const std::string_view> words) {
  std::string text;
  for (const std::string_view word : words) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

std::string toml_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

std::vector<TomlEntry> toml_entries(const Field& field, Experiment& experiment) {
  const Target target = field.target(experiment);
  const auto* const named = std::get_if<NamedTexts*>(&target);
  if (named == nullptr)
    return {{std::string(field.key), std::string(name_of(field.key)), toml_value(field, experiment)}};
  std::vector<TomlEntry> entries;
  for (const auto& [name, text] : **named)
    entries.push_back({std::string(section_of(field.key)) + "." + name, toml_text(name), toml_text(text)});
  return entries;
}

std::string toml_value(std::string_view key, Experiment& experiment) {
  for (const TomlEntry& entry : toml_entries(*find_field(key), experiment))
    if (entry.key == key) return entry.value;
  return toml_text(std::string());  // a name that the section does not have
}

namespace {

// TOML of the fields for which `wanted` is true.
template <class Wanted>
std::string fields_toml(const Experiment& experiment, const Wanted& wanted) {
  Experiment copy = experiment;  // targets are writable pointers
  std::string text;
  std::string_view section;
  for (const Field& field : fields()) {
    if (!wanted(field)) continue;
    if (section_of(field.key) != section) {
      section = section_of(field.key);
      text += (text.empty() ? "[" : "\n[") + std::string(section) + "]\n";
    }
    for (const TomlEntry& entry : toml_entries(field, copy)) text += entry.name + " = " + entry.value + "\n";
  }
  return text;
}

// The sections that say how a format is read; the others change no sample.
constexpr std::string_view kTextSections[] = {"text"}, kCsvSections[] = {"csv", "text"},
                           kWordsSections[] = {"words"}, kTableSections[] = {"csv", "table"},
                           kColumnsSections[] = {"csv", "text", "table", "columns", "sessions"},
                           kSessionsSections[] = {"sessions"};
constexpr ByChoice<DataFormat, std::span<const std::string_view>> kEncodingSections({
    {DataFormat::kAuto, {}},
    {DataFormat::kXmc, {}},
    {DataFormat::kText, kTextSections},
    {DataFormat::kCsv, kCsvSections},
    {DataFormat::kWords, kWordsSections},
    {DataFormat::kTable, kTableSections},
    {DataFormat::kCriteo, kTableSections},
    {DataFormat::kColumns, kColumnsSections},
    {DataFormat::kSessions, kSessionsSections},
});

}  // namespace

std::string to_toml(const Experiment& experiment) {
  return fields_toml(experiment, [](const Field&) { return true; });
}

std::string metric_of(const Experiment::Train& train, uint64_t labels) {
  const bool usual = train.metric == "auto" || train.metric == "p_at_1";
  return !usual ? train.metric : labels == 1 ? "auc" : "p_at_1";
}

Encoding encoding_of(const Experiment& experiment) {
  return {.format = experiment.data.format,
          .text = experiment.text,
          .csv = experiment.csv,
          .words = experiment.words,
          .table = experiment.table,
          .columns = experiment.columns,
          .sessions = experiment.sessions};
}

std::string to_toml(const Encoding& encoding) {
  Experiment experiment;  // the tables of fields describe an Experiment
  experiment.data.format = encoding.format;
  experiment.text = encoding.text;
  experiment.csv = encoding.csv;
  experiment.words = encoding.words;
  experiment.table = encoding.table;
  experiment.columns = encoding.columns;
  experiment.sessions = encoding.sessions;
  const auto sections = kEncodingSections[encoding.format];
  return fields_toml(experiment, [&](const Field& field) {
    return field.key == "data.format" || std::ranges::find(sections, section_of(field.key)) != sections.end();
  });
}

std::vector<ExperimentField> experiment_fields() {
  Experiment defaults;
  std::vector<ExperimentField> result;
  for (const Field& field : fields()) {
    std::visit(
        [&](auto* value) {
          using T = std::remove_pointer_t<decltype(value)>;
          result.push_back({std::string(field.key), std::string(type_name<T>()), toml_value(field.key, defaults),
                            range_text<T>(field), std::string(field.unit), std::string(field.meaning)});
        },
        field.target(defaults));
  }
  return result;
}

}  // namespace modelet
