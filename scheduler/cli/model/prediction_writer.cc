#include "scheduler/cli/model/prediction_writer.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>
#include <ostream>

namespace modelet::cli {

namespace {

std::string escaped(std::string_view text, std::string_view characters) {
  std::string result;
  for (const char c : text) {
    if (characters.find(c) == std::string_view::npos)
      result += c;
    else
      result += c == '\t' ? "\\t" : c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\\\";
  }
  return result;
}

}  // namespace

std::string tsv_field(std::string_view text) { return escaped(text, "\t\n\r\\"); }

PredictionWriter::PredictionWriter(std::ostream& out, PredictionFormat format, const Interpreter& interpreter,
                                   size_t k)
    : out_(out), format_(format), interpreter_(interpreter), k_(k) {
  if (format_ != PredictionFormat::kTsv) return;
  out_ << "sample\trank\tlabel\t" << (interpreter.has_names() ? "name\t" : "") << "score"
       << (interpreter.has_probabilities() ? "\tprobability" : "") << '\n';
}

void PredictionWriter::write(const shard::TopK& best) {
  for (size_t s = 0; s < best.samples(); ++s, ++sample_) {
    interpreter_.interpret(best, s, k_, labels_);
    switch (format_) {
      case PredictionFormat::kText:
        write_text();
        break;
      case PredictionFormat::kTsv:
        write_tsv();
        break;
      case PredictionFormat::kJson:
        write_json();
        break;
    }
  }
}

void PredictionWriter::write_text() {
  const char* separator = "";
  for (const ScoredLabel& found : labels_) {
    out_ << separator;
    if (interpreter_.has_names())
      out_ << escaped(found.name, "\n\r");  // a sample is a line
    else
      out_ << found.label;
    out_ << fmt::format(":{:.4f}", interpreter_.has_probabilities() ? found.probability : found.score);
    separator = " ";
  }
  out_ << '\n';
}

void PredictionWriter::write_tsv() {
  for (size_t i = 0; i < labels_.size(); ++i) {
    const ScoredLabel& found = labels_[i];
    out_ << sample_ << '\t' << i + 1 << '\t' << found.label << '\t';
    if (interpreter_.has_names()) out_ << tsv_field(found.name) << '\t';
    out_ << fmt::format("{:.6g}", found.score);
    if (interpreter_.has_probabilities()) out_ << fmt::format("\t{:.6g}", found.probability);
    out_ << '\n';
  }
}

void PredictionWriter::write_json() {
  using Json = nlohmann::json;
  Json labels = Json::array();
  for (const ScoredLabel& found : labels_) {
    Json entry = {{"label", found.label}, {"score", found.score}};
    if (interpreter_.has_names()) entry["name"] = found.name;
    if (interpreter_.has_probabilities()) entry["probability"] = found.probability;
    labels.push_back(std::move(entry));
  }
  out_ << Json{{"sample", sample_}, {"labels", std::move(labels)}}.dump(-1, ' ', false,
                                                                        Json::error_handler_t::replace)
       << '\n';
}

}  // namespace modelet::cli
