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

PredictionWriter::PredictionWriter(std::ostream& out, PredictionFormat format, const shard::Model& model,
                                   size_t k)
    : out_(out),
      format_(format),
      model_(model),
      names_(!model.label_names().empty()),
      probabilities_(model.calibration().has_value()),
      k_(k) {
  if (format_ != PredictionFormat::kTsv) return;
  out_ << "sample\trank\tlabel\t" << (names_ ? "name\t" : "") << "score"
       << (probabilities_ ? "\tprobability" : "") << '\n';
}

void PredictionWriter::write(const shard::TopK& best) {
  for (size_t s = 0; s < best.samples(); ++s, ++sample_) {
    const Prediction prediction = model_.interpret(best, s, k_);
    switch (format_) {
      case PredictionFormat::kText:
        write_text(prediction);
        break;
      case PredictionFormat::kTsv:
        write_tsv(prediction);
        break;
      case PredictionFormat::kJson:
        write_json(prediction);
        break;
    }
  }
}

void PredictionWriter::write_text(const Prediction& prediction) {
  const char* separator = "";
  for (const shard::ScoredLabel& found : prediction) {
    out_ << separator;
    if (names_)
      out_ << escaped(found.name, "\n\r");  // a sample is a line
    else
      out_ << found.label;
    out_ << fmt::format(":{:.4f}", probabilities_ ? found.probability : found.score);
    separator = " ";
  }
  out_ << '\n';
}

void PredictionWriter::write_tsv(const Prediction& prediction) {
  for (size_t i = 0; i < prediction.size(); ++i) {
    const shard::ScoredLabel& found = prediction[i];
    out_ << sample_ << '\t' << i + 1 << '\t' << found.label << '\t';
    if (names_) out_ << tsv_field(found.name) << '\t';
    out_ << fmt::format("{:.6g}", found.score);
    if (probabilities_) out_ << fmt::format("\t{:.6g}", found.probability);
    out_ << '\n';
  }
}

void PredictionWriter::write_json(const Prediction& prediction) {
  using Json = nlohmann::json;
  Json labels = Json::array();
  for (const shard::ScoredLabel& found : prediction) {
    Json entry = {{"label", found.label}, {"score", found.score}};
    if (names_) entry["name"] = found.name;
    if (probabilities_) entry["probability"] = found.probability;
    labels.push_back(std::move(entry));
  }
  out_ << Json{{"sample", sample_}, {"labels", std::move(labels)}}.dump(-1, ' ', false,
                                                                        Json::error_handler_t::replace)
       << '\n';
}

}  // namespace modelet::cli
