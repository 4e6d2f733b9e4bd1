// ColumnsEncoder: the records of a table -> samples (formats columns, csv, table and criteo). Each part of the features
// is a ColumnFeatures with a range of ids of its own, one behind the other:
//
//   csv             one part: the words of csv.text
//   table, criteo   one part: TableFeatures of table.columns
//   columns         the histories of an entity (features/history_features.h) if there is one, and then a part for each
//                   column, in the order of their names: text, category, number or date
//
// Labels are those of the column of targets, by name (csv, columns), or columns of 0 and 1, each a label with the
// column's name. The state, besides that of every encoder (shard/data/encode/encoder.h), is that of the parts; with
// several columns, names of tensors begin with the part's number from 0 and a dot.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "shard/data/encode/columns.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/encode/features/column_features.h"
#include "shard/data/encode/features/history_features.h"
#include "shard/data/encode/features/label_names.h"
#include "shard/data/encode/features/live_events.h"
#include "shard/data/read/cells.h"

namespace modelet::shard {

class ColumnsEncoder : public Encoder {
 public:
  static std::unique_ptr<ColumnsEncoder> fit(const Encoding& options, const std::filesystem::path& text,
                                             const FitProgress& progress);
  static std::unique_ptr<ColumnsEncoder> fit(const Encoding& options, LineReader text, const FitProgress& progress);
  static std::unique_ptr<ColumnsEncoder> hashed(const Encoding& options, LabelNames labels);
  explicit ColumnsEncoder(const SafetensorsFile& state);

  std::vector<std::byte> state() const override;
  using Encoder::open;
  // With histories, records of the text are events for each other, beside those of the training text and of add_events();
  // its samples are kept in memory until all are read. Questions are answered at once, from those events.
  std::unique_ptr<SampleReader> open(LineReader text) const override;
  std::unique_ptr<SampleReader> open_training(const std::filesystem::path& text) const override;
  std::unique_ptr<SampleReader> open_training(LineReader text) const;
  std::unique_ptr<SampleReader> open_requests(LineReader text) const override;
  std::unique_ptr<SampleReader> open_rows(CsvReader rows) const override;
  bool has_histories() const override { return live_ != nullptr; }
  NewEvents add_events(LineReader text, const KeepEvents& keep = {}) const override;
  std::string events() const override { return live_ ? live_->lines() : std::string(); }

 private:
  class Reader;
  class HistoryReader;

  explicit ColumnsEncoder(const Encoding& options);
  CellReader cells_of(LineReader text, LabelsIn labels) const;
  CellReader questions_of(LineReader text) const;
  std::vector<LiveEvent> events_of(CellReader cells, uint64_t& unknown_labels) const;
  std::vector<LiveEvent> brought_by(const CellReader& question) const;
  std::string prefix_of(size_t part) const;
  std::string line_of(const CellReader& cells) const;
  void number_parts();

  Encoding options_;
  ColumnPlan plan_;
  std::vector<WantedColumn> asked_;  // those of the plan and, if questions may bring it, the history
  std::optional<HistoryFeatures> history_;
  std::unique_ptr<LiveEvents> live_;  // null: there are no histories
  std::vector<std::unique_ptr<ColumnFeatures>> parts_;
  std::vector<uint32_t> bases_;  // [parts] where the ids of each begin
  uint32_t features_ = 0;
  LabelNames labels_;
};

}  // namespace modelet::shard
