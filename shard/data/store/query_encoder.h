// QueryEncoder: makes samples of what a model is asked, encoded and normalised as its training data was. The
// text may come from a pipe or lie in memory, and nothing is written to disk. It may have labels (to compare
// with) or not. Immutable, except for events: any thread may use it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/experiment/experiment.h"
#include "shard/data/encode/columns.h"
#include "shard/data/encode/encoder.h"
#include "shard/data/read/line_reader.h"
#include "shard/data/read/sample_reader.h"

namespace modelet::shard {

class QueryEncoder {
 public:
  // `state`: of the encoder of the model's data; empty: XMC text with the ids of `shape`. `origin` names the
  // model in messages. FormatError if the state is damaged.
  QueryEncoder(std::span<const std::byte> state, const DataShape& shape, Normalize normalize,
               const std::string& origin);
  ~QueryEncoder();
  QueryEncoder(QueryEncoder&&) noexcept;

  // How text is read, and which columns a question may give.
  const Encoding& encoding() const { return encoding_; }
  const Columns& columns() const { return columns_; }

  // The samples of a text of the model's format. This must outlive the reader. open_requests() is for text
  // that has no labels: where labels cannot be told from the rest, as in running text, a line is a sample.
  std::unique_ptr<SampleReader> open(LineReader text) const;
  std::unique_ptr<SampleReader> open_requests(LineReader text) const;
  // Questions in memory, a sample each: texts, or rows of columns(), which may have one more field: a history of their own
  // (Columns::takes_histories()). Whatever a text or field holds, it is one; line ends count as white space. `name` stands
  // for them in messages. UsageError for what this model cannot read.
  std::unique_ptr<SampleReader> open_texts(std::vector<std::string> texts, const std::string& name) const;
  std::unique_ptr<SampleReader> open_rows(std::vector<Row> rows, const std::string& name) const;
  // The samples of XMC text, whatever the model's format: ids are those of the model's features and labels.
  std::unique_ptr<SampleReader> open_ids(LineReader text) const;

  // Events of histories, as of the Encoder.
  bool has_histories() const { return encoder_ && encoder_->has_histories(); }
  NewEvents add_events(LineReader text, const KeepEvents& keep = {}) const;
  std::string events() const;

 private:
  std::unique_ptr<Encoder> encoder_;  // null: XMC text
  Encoding encoding_;
  Columns columns_;
  uint64_t features_, labels_;
  Normalize normalize_;
};

}  // namespace modelet::shard
