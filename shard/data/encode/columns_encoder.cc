#include "shard/data/encode/columns_encoder.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/experiment/column_use.h"
#include "base/experiment/table_layout.h"
#include "base/text/value_name.h"
#include "shard/data/encode/features/category_features.h"
#include "shard/data/encode/features/date_features.h"
#include "shard/data/encode/features/table_features.h"
#include "shard/data/encode/features/word_features.h"

namespace modelet::shard {
namespace {

using Parts = std::vector<std::unique_ptr<ColumnFeatures>>;

// A column of numbers is a small table of its own: without categories, which need buckets.
std::unique_ptr<ColumnFeatures> number_part(size_t column, const ColumnUse& use, Experiment::Table options) {
  constexpr uint32_t kFewest = 16;
  options.hash_features = kFewest;
  if (use.bins > 0) options.bins = use.bins;
  TableLayout layout;
  layout.numbers = {{column, NumberKind::kBins}, {column, NumberKind::kStandardised}};
  return std::make_unique<TableFeatures>(std::move(layout), options);
}

std::unique_ptr<ColumnFeatures> part_of(size_t column, const ColumnUse& use, const Encoding& options) {
  switch (use.type) {
    case ColumnType::kText:
      return std::make_unique<WordColumns>(std::vector{column}, options.text, true);
    case ColumnType::kCategory:
      return std::make_unique<CategoryFeatures>(column, value_separator(use), options.table.hash_features,
                                                use.min_count > 0 ? use.min_count : options.table.min_count);
    case ColumnType::kNumber:
      return number_part(column, use, options.table);
    case ColumnType::kDate:
      return std::make_unique<DateFeatures>(column);
    default:
      return nullptr;
  }
}

// Fitting takes twelve bytes for each bucket.
void require_few_buckets(const ColumnUses& uses, const Encoding& options) {
  constexpr uint64_t kMost = uint64_t{1} << 28;
  uint64_t buckets = 0;
  for (const auto& [name, use] : uses) {
    if (use.type == ColumnType::kText) buckets += options.text.buckets;
    if (use.type == ColumnType::kCategory) buckets += options.table.hash_features;
  }
  if (buckets > kMost)
    throw UsageError("[columns]: the columns of text and categories take " + std::to_string(buckets) +
                     " buckets together, more than " + std::to_string(kMost) +
                     ": lower text.buckets and table.hash_features, or ignore some columns");
}

Parts parts_of_columns(const Encoding& options) {
  const ColumnUses uses = column_uses(options.columns);
  require_few_buckets(uses, options);
  Parts parts;
  size_t column = 0;  // among those that are not ignored, as in the plan
  for (const auto& [name, use] : uses) {
    if (use.type == ColumnType::kIgnore) continue;
    if (auto part = part_of(column, use, options)) parts.push_back(std::move(part));
    ++column;
  }
  return parts;
}

std::optional<HistoryFeatures> history_of(const Encoding& options) {
  if (options.format != DataFormat::kColumns) return std::nullopt;
  HistoryColumns columns;
  bool any = false;
  size_t column = 0;  // as in parts_of_columns
  for (const auto& [name, use] : column_uses(options.columns)) {
    if (use.type == ColumnType::kEntity) columns.entity = column;
    if (use.type == ColumnType::kNumber) columns.numbers.push_back(column);
    if (use.type == ColumnType::kTime) {
      any = true;
      columns.time = column;
      columns.windows = use.windows;
    }
    column += use.type != ColumnType::kIgnore ? 1 : 0;
  }
  if (!any) return std::nullopt;
  return HistoryFeatures(std::move(columns), options.sessions, options.table.bins);
}

Parts parts_of(const Encoding& options) {
  if (options.format == DataFormat::kColumns) return parts_of_columns(options);
  Parts parts;
  if (options.format == DataFormat::kCsv) {
    std::vector<size_t> columns(options.csv.text.size());
    for (size_t i = 0; i < columns.size(); ++i) columns[i] = i;
    parts.push_back(std::make_unique<WordColumns>(std::move(columns), options.text, false));
  } else {
    parts.push_back(std::make_unique<TableFeatures>(table_layout(options.table, options.format), options.table));
  }
  return parts;
}

// The labels of records: their names, or the places of columns of 0 and 1.
class LabelCells {
 public:
  explicit LabelCells(const ColumnPlan& plan) : plan_(plan) {
    for (size_t column = 0; column < plan.columns.size(); ++column)
      if (plan.columns[column].is_label) columns_.push_back(column);
  }

  // Valid until the next call.
  std::span<const std::string_view> names(const CellReader& cells) {
    names_.clear();
    renamed_.clear();
    if (cells.has_labels())
      for_each_part(cells.cell(*plan_.target), plan_.columns[*plan_.target].separator, [&](std::string_view label) {
        auto name = number_name(label);
        names_.push_back(name ? std::string_view(renamed_.emplace_back(std::move(*name))) : label);
      });
    return names_;
  }
  void set_flags(const CellReader& cells, std::vector<uint32_t>& labels) const {
    labels.clear();
    if (!cells.has_labels()) return;
    for (uint32_t label = 0; label < columns_.size(); ++label)
      if (cells.flag(columns_[label])) labels.push_back(label);
  }
  LabelNames names_of_columns() const {
    StringTable names;
    for (const size_t column : columns_) names.insert(plan_.columns[column].name);
    return LabelNames(std::move(names));
  }

 private:
  const ColumnPlan& plan_;
  std::vector<size_t> columns_;
  std::vector<std::string_view> names_;
  std::deque<std::string> renamed_;
};

}  // namespace

ColumnsEncoder::ColumnsEncoder(const Encoding& options)
    : options_(options),
      plan_(column_plan(options)),
      asked_(plan_.columns),
      history_(history_of(options)),
      live_(history_ ? std::make_unique<LiveEvents>(history_->known()) : nullptr),
      parts_(parts_of(options)) {
  if (plan_.takes_histories) asked_.push_back({.name = Columns::kHistory, .key = "columns", .is_history = true});
}

std::string ColumnsEncoder::prefix_of(size_t part) const {
  return options_.format == DataFormat::kColumns ? std::to_string(part) + "." : "";
}

void ColumnsEncoder::number_parts() {
  uint64_t next = history_ ? history_->features() : 0;
  for (const auto& part : parts_) {
    bases_.push_back(static_cast<uint32_t>(next));
    next += part->features();
    if (next >= kMaxCount) throw UsageError("[columns]: more than 2^31 - 1 features; ignore some columns");
  }
  features_ = static_cast<uint32_t>(next);
}

CellReader ColumnsEncoder::cells_of(LineReader text, LabelsIn labels) const {
  return {plan_.columns, plan_.where, CsvReader(std::move(text), plan_.dialect), labels};
}

CellReader ColumnsEncoder::questions_of(LineReader text) const {
  return {asked_, plan_.where, CsvReader(std::move(text), plan_.dialect), LabelsIn::kOptional};
}

std::unique_ptr<ColumnsEncoder> ColumnsEncoder::fit(const Encoding& options, const std::filesystem::path& text,
                                                    const FitProgress& progress) {
  return fit(options, LineReader(text), progress);
}

std::unique_ptr<ColumnsEncoder> ColumnsEncoder::fit(const Encoding& options, LineReader text,
                                                    const FitProgress& progress) {
  std::unique_ptr<ColumnsEncoder> encoder(new ColumnsEncoder(options));
  CellReader cells = encoder->cells_of(std::move(text), LabelsIn::kRequired);
  const auto fail = [&](const std::string& what) { cells.csv().fail(what); };
  LabelCells labels(encoder->plan_);
  std::vector<uint32_t> of_record;  // numbered in the order of the text
  uint64_t samples = 0;
  while (cells.next()) {
    if (++samples >= kMaxCount) fail(kTooManySamples);
    if (encoder->plan_.target) {
      for (const std::string_view label : labels.names(cells)) {
        require_label_length(label, fail);
        encoder->labels_.count(label, samples);
      }
      if (encoder->history_) encoder->labels_.find(labels.names(cells), of_record);
    } else {
      labels.set_flags(cells, of_record);  // refuses what is neither 0 nor 1
    }
    if (encoder->history_) encoder->history_->count(cells, of_record);
    for (const auto& part : encoder->parts_) part->count(cells, samples);
    if (progress && samples % kRecordsBetweenReports == 0) progress(cells.csv().bytes(), cells.csv().fraction());
  }
  if (samples > 0) cells.require_all_columns();
  StringTable in_text;
  if (encoder->plan_.target) {
    if (encoder->history_) in_text = encoder->labels_.names();
    encoder->labels_.finish();
  } else {
    encoder->labels_ = labels.names_of_columns();
    in_text = encoder->labels_.names();
  }
  if (encoder->history_) {
    std::vector<uint32_t> new_ids;
    for (uint32_t id = 0; id < in_text.size(); ++id) new_ids.push_back(encoder->labels_.names().find(in_text.at(id)));
    encoder->history_->finish(new_ids, static_cast<uint32_t>(encoder->labels_.names().size()));
  }
  for (const auto& part : encoder->parts_) part->finish(samples);
  encoder->number_parts();
  require_something(encoder->labels_, encoder->features_, samples, options, fail);
  return encoder;
}

std::unique_ptr<ColumnsEncoder> ColumnsEncoder::hashed(const Encoding& options, LabelNames labels) {
  std::unique_ptr<ColumnsEncoder> encoder(new ColumnsEncoder(options));
  if (!encoder->plan_.target) throw UsageError("labels that are columns of 0 and 1 need no list of names");
  if (encoder->history_) throw UsageError("histories need data to be fitted on: leave out the column of type time");
  encoder->labels_ = std::move(labels);
  for (const auto& part : encoder->parts_) part->know_all();
  encoder->number_parts();
  return encoder;
}

ColumnsEncoder::ColumnsEncoder(const SafetensorsFile& state) : ColumnsEncoder(encoder_options(state)) {
  labels_ = plan_.target ? LabelNames(encoder_labels(state)) : LabelCells(plan_).names_of_columns();
  if (history_) history_->restore(state);
  for (size_t part = 0; part < parts_.size(); ++part) parts_[part]->restore(state, prefix_of(part));
  number_parts();
  require_features(features_, state);
}

std::vector<std::byte> ColumnsEncoder::state() const {
  std::vector<Tensor> tensors = label_tensors(labels_.names());
  if (history_) history_->add_tensors(tensors);
  for (size_t part = 0; part < parts_.size(); ++part) parts_[part]->add_tensors(prefix_of(part), tensors);
  return safetensors_bytes(tensors, encoder_metadata(options_));
}

class ColumnsEncoder::Reader : public SampleReader {
 public:
  Reader(const ColumnsEncoder& encoder, CellReader cells)
      : encoder_(encoder), cells_(std::move(cells)), label_cells_(encoder.plan_) {
    for (const auto& part : encoder.parts_) appenders_.push_back(part->appender());
  }

  uint64_t features() const override { return encoder_.features_; }
  uint64_t labels() const override { return encoder_.labels_.names().size(); }
  bool ready() const override { return cells_.csv().ready(); }
  uint64_t bytes() const override { return cells_.csv().bytes(); }
  double fraction() const override { return cells_.csv().fraction(); }
  uint64_t unknown_labels() const override { return unknown_labels_; }

  bool next(Sample& sample) override {
    if (!read_record()) return false;
    features_.clear();
    if (encoder_.history_) {
      features_.base = 0;
      const HistoryFeatures& history = *encoder_.history_;
      const auto live = encoder_.live_->of(cells_.cell(history.columns().entity));
      const EventLog& log = live ? *live : history.known();
      const auto moment = live ? history.find(cells_, EventLog::kOnly) : history.find(cells_, log);
      append_history(log, moment, encoder_.brought_by(cells_), features_);
    }
    append_parts(features_);
    sample = {features_.ids, features_.values, labels_};
    return true;
  }

 protected:
  // The next record and its labels; false at the end.
  bool read_record() {
    if (!cells_.next()) return false;
    if (++rows_ >= kMaxCount) cells_.csv().fail(kTooManySamples);
    if (encoder_.plan_.target)
      unknown_labels_ += encoder_.labels_.find(label_cells_.names(cells_), labels_);
    else
      label_cells_.set_flags(cells_, labels_);
    return true;
  }
  // Its features that are of histories: of a log and what the record brings.
  void append_history(const EventLog& log, HistoryFeatures::Moment moment, const std::vector<LiveEvent>& brought,
                      FeatureList& features) const {
    if (brought.empty()) return encoder_.history_->append(log, moment, features);
    EventLog own = log.only(moment.entity);
    for (const LiveEvent& each : brought) own.add(EventLog::kOnly, each.event.time, each.event.items, each.event.numbers);
    own.sort();
    own.keep_last(HistoryFeatures::kMostEvents);
    moment.entity = EventLog::kOnly;
    encoder_.history_->append(own, moment, features);
  }
  // Its features that are not of histories.
  void append_parts(FeatureList& features) {
    for (size_t part = 0; part < appenders_.size(); ++part) {
      features.base = encoder_.bases_[part];
      appenders_[part]->append(cells_, features);
    }
  }

  const ColumnsEncoder& encoder_;
  CellReader cells_;
  std::vector<uint32_t> labels_;

 private:
  LabelCells label_cells_;
  std::vector<std::unique_ptr<ColumnFeatures::Appender>> appenders_;
  uint64_t rows_ = 0, unknown_labels_ = 0;
  FeatureList features_;
};

// Records that are events for each other.
class ColumnsEncoder::HistoryReader : public Reader {
 public:
  HistoryReader(const ColumnsEncoder& encoder, CellReader cells, EventLog log)
      : Reader(encoder, std::move(cells)), log_(std::move(log)) {}

  bool next(Sample& sample) override {
    if (!read_) read();
    if (next_ == records_.size()) return false;
    const Record& record = records_[next_++];
    features_.clear();
    append_history(log_, record.moment, record.brought, features_);
    features_.ids.insert(features_.ids.end(), record.features.ids.begin(), record.features.ids.end());
    features_.values.insert(features_.values.end(), record.features.values.begin(), record.features.values.end());
    sample = {features_.ids, features_.values, record.labels};
    return true;
  }

 private:
  void read() {
    read_ = true;
    while (read_record()) {
      Record& record = records_.emplace_back();
      append_parts(record.features);
      record.labels = labels_;
      const HistoryFeatures& history = *encoder_.history_;
      record.moment = cells_.has_labels()
                          ? history.add(cells_, labels_, log_)
                          : history.find(cells_, log_.entities().insert(cells_.cell(history.columns().entity)));
      record.brought = encoder_.brought_by(cells_);
      if (!record.brought.empty() && record.moment.entity == StringTable::kNone)
        record.moment = history.find(cells_, StringTable::kNone);
    }
    log_.sort();
  }

  struct Record {
    FeatureList features;  // those that are not of histories
    std::vector<uint32_t> labels;
    HistoryFeatures::Moment moment;
    std::vector<LiveEvent> brought;
  };

  EventLog log_;
  bool read_ = false;
  std::vector<Record> records_;
  size_t next_ = 0;
  FeatureList features_;
};

std::unique_ptr<SampleReader> ColumnsEncoder::open(LineReader text) const {
  CellReader cells = questions_of(std::move(text));
  if (!history_ || !cells.has_labels()) return std::make_unique<Reader>(*this, std::move(cells));
  EventLog log = history_->known();
  live_->add_to(log);
  return std::make_unique<HistoryReader>(*this, std::move(cells), std::move(log));
}

std::unique_ptr<SampleReader> ColumnsEncoder::open_training(const std::filesystem::path& text) const {
  return open_training(LineReader(text));
}

std::unique_ptr<SampleReader> ColumnsEncoder::open_training(LineReader text) const {
  CellReader cells = cells_of(std::move(text), LabelsIn::kOptional);
  if (history_) return std::make_unique<HistoryReader>(*this, std::move(cells), history_->empty_log());
  return std::make_unique<Reader>(*this, std::move(cells));
}

std::unique_ptr<SampleReader> ColumnsEncoder::open_requests(LineReader text) const {
  return std::make_unique<Reader>(*this, questions_of(std::move(text)));
}

NewEvents ColumnsEncoder::add_events(LineReader text, const KeepEvents& keep) const {
  if (!live_) return Encoder::add_events(std::move(text), keep);
  NewEvents result;
  std::vector<LiveEvent> events = events_of(cells_of(std::move(text), LabelsIn::kRequired), result.unknown_labels);
  if (keep) {
    std::string lines;
    for (const LiveEvent& each : events)
      if (!live_->knows(each.event)) lines.append(each.line).push_back('\n');
    if (!lines.empty()) keep(lines);
  }
  result.added = live_->add(std::move(events));
  return result;
}

std::vector<LiveEvent> ColumnsEncoder::events_of(CellReader cells, uint64_t& unknown_labels) const {
  constexpr size_t kMostBytes = size_t{1} << 16;  // of an event: they stay in memory
  LabelCells labels(plan_);
  std::vector<LiveEvent> events;
  std::vector<uint32_t> ids;
  while (cells.next()) {
    if (plan_.target)
      unknown_labels += labels_.find(labels.names(cells), ids);
    else
      labels.set_flags(cells, ids);
    HistoryEvent event = history_->event_of(cells, ids);
    if (ids.empty()) continue;
    events.push_back({std::move(event), line_of(cells)});
    if (const size_t bytes = events.back().line.size(); bytes > kMostBytes)
      cells.csv().fail("an event of " + std::to_string(bytes) + " bytes, more than " + std::to_string(kMostBytes) +
                       "; has it too many labels?");
  }
  return events;
}

// Those without an entity are of the question's.
std::vector<LiveEvent> ColumnsEncoder::brought_by(const CellReader& question) const {
  constexpr int kMostNested = 4;  // values of a list in an object of the list
  const std::string_view text = question.history();
  if (text.empty() || text == "null") return {};
  try {
    const nlohmann::json list = parse_json_values(text, "the list", kMostNested);
    if (!list.is_array()) throw FormatError("a list of earlier records is expected, objects of columns and their values");
    if (list.size() > HistoryFeatures::kMostEvents)
      throw FormatError(std::to_string(list.size()) + " events; the last " + std::to_string(HistoryFeatures::kMostEvents) +
                        " are what a history has");
    const size_t column = history_->columns().entity;
    const std::string& name = plan_.columns[column].name;
    const std::string_view entity = question.cell(column);
    std::string lines;
    for (nlohmann::json event : list) {
      if (!event.is_object()) throw FormatError("each event is an object of columns and their values");
      nlohmann::json& whose = event[name];
      if (whose.is_null()) whose = entity.empty() ? "?" : entity;
      const std::string given = json_cell(whose, {}, [](const std::string& what) { throw FormatError(what); });
      if (!entity.empty() && given != entity)
        throw FormatError("an event of " + shard::quoted(given) + ", the question is about " + shard::quoted(entity));
      lines += event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    }
    uint64_t unknown_labels = 0;
    if (lines.empty()) return {};
    LineReader records(std::make_unique<std::stringbuf>(std::move(lines), std::ios::in), "event");
    return events_of(cells_of(std::move(records), LabelsIn::kRequired), unknown_labels);
  } catch (const Error& error) {
    question.csv().fail(std::string(Columns::kHistory) + ": " + error.what());
  }
}

// What a history takes of a record.
std::string ColumnsEncoder::line_of(const CellReader& cells) const {
  const HistoryColumns& of_history = history_->columns();
  nlohmann::json line = nlohmann::json::object();
  for (size_t column = 0; column < plan_.columns.size(); ++column)
    if (column == of_history.entity || column == of_history.time || plan_.columns[column].is_label ||
        std::ranges::count(of_history.numbers, column) > 0)
      line[plan_.columns[column].name] = cells.cell(column);
  try {
    return line.dump();
  } catch (const nlohmann::json::type_error&) {
    cells.csv().fail("is not UTF-8; an event has to be");
  }
}

// The fields of the rows are those of the columns without labels, in their order, and then the history.
std::unique_ptr<SampleReader> ColumnsEncoder::open_rows(CsvReader rows) const {
  return std::make_unique<Reader>(
      *this, CellReader(asked_, ColumnsIn::kOrder, std::move(rows), LabelsIn::kOptional));
}

}  // namespace modelet::shard
