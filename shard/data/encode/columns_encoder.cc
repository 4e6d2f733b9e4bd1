#include "shard/data/encode/columns_encoder.h"

#include <algorithm>
#include <deque>
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
    case ColumnType::kCategory: {
      const bool several = use.separator != Delimiter::kNone;
      return std::make_unique<CategoryFeatures>(
          column, several ? std::optional(character(use.separator)) : std::nullopt, options.table.hash_features,
          use.min_count > 0 ? use.min_count : options.table.min_count);
    }
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
      for_each_part(cells.cell(*plan_.target), plan_.separator, [&](std::string_view label) {
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
    : options_(options), plan_(column_plan(options)), parts_(parts_of(options)) {}

std::string ColumnsEncoder::prefix_of(size_t part) const {
  return options_.format == DataFormat::kColumns ? std::to_string(part) + "." : "";
}

void ColumnsEncoder::number_parts() {
  uint64_t next = 0;
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
  std::vector<uint32_t> flags;
  uint64_t samples = 0;
  while (cells.next()) {
    if (++samples >= kMaxCount) fail(kTooManySamples);
    if (encoder->plan_.target) {
      for (const std::string_view label : labels.names(cells)) {
        require_label_length(label, fail);
        encoder->labels_.count(label, samples);
      }
    } else {
      labels.set_flags(cells, flags);  // refuses what is neither 0 nor 1
    }
    for (const auto& part : encoder->parts_) part->count(cells, samples);
    if (progress && samples % kRecordsBetweenReports == 0) progress(cells.csv().bytes(), cells.csv().fraction());
  }
  if (encoder->plan_.target)
    encoder->labels_.finish();
  else
    encoder->labels_ = labels.names_of_columns();
  for (const auto& part : encoder->parts_) part->finish(samples);
  encoder->number_parts();
  require_something(encoder->labels_, encoder->features_, samples, options, fail);
  return encoder;
}

ColumnsEncoder::ColumnsEncoder(const SafetensorsFile& state) : ColumnsEncoder(encoder_options(state)) {
  labels_ = plan_.target ? LabelNames(encoder_labels(state)) : LabelCells(plan_).names_of_columns();
  for (size_t part = 0; part < parts_.size(); ++part) parts_[part]->restore(state, prefix_of(part));
  number_parts();
  require_features(features_, state);
}

std::vector<std::byte> ColumnsEncoder::state() const {
  std::vector<Tensor> tensors = label_tensors(labels_.names());
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
    if (!cells_.next()) return false;
    if (++rows_ >= kMaxCount) cells_.csv().fail(kTooManySamples);
    if (encoder_.plan_.target)
      unknown_labels_ += encoder_.labels_.find(label_cells_.names(cells_), labels_);
    else
      label_cells_.set_flags(cells_, labels_);
    features_.clear();
    for (size_t part = 0; part < appenders_.size(); ++part) {
      features_.base = encoder_.bases_[part];
      appenders_[part]->append(cells_, features_);
    }
    sample = {features_.ids, features_.values, labels_};
    return true;
  }

 private:
  const ColumnsEncoder& encoder_;
  CellReader cells_;
  LabelCells label_cells_;
  std::vector<std::unique_ptr<ColumnFeatures::Appender>> appenders_;
  uint64_t rows_ = 0, unknown_labels_ = 0;
  FeatureList features_;
  std::vector<uint32_t> labels_;
};

std::unique_ptr<SampleReader> ColumnsEncoder::open(LineReader text) const {
  return std::make_unique<Reader>(*this, cells_of(std::move(text), LabelsIn::kOptional));
}

// The fields of the rows are those of the columns without labels, in their order.
std::unique_ptr<SampleReader> ColumnsEncoder::open_rows(CsvReader rows) const {
  return std::make_unique<Reader>(
      *this, CellReader(plan_.columns, ColumnsIn::kOrder, std::move(rows), LabelsIn::kOptional));
}

}  // namespace modelet::shard
