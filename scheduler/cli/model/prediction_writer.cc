#include "scheduler/cli/model/prediction_writer.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include "shard/data/batch/batch.h"
#include "shard/inference/explanation.h"

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

PredictionWriter::PredictionWriter(std::ostream& out, const shard::Model& model,
                                   const WrittenAnswers& answers)
    : out_(out),
      model_(model),
      answers_(answers),
      names_(!model.label_names().empty()),
      probabilities_(model.calibration().has_value()) {
  if (answers_.format != PredictionFormat::kTsv) return;
  out_ << "sample\trank\tlabel\t" << (names_ ? "name\t" : "") << "score"
       << (probabilities_ ? "\tprobability" : "") << '\n';
}

void PredictionWriter::write(const shard::Batch& batch, const shard::TopK& best) {
  for (size_t s = 0; s < best.samples(); ++s, ++sample_) {
    Prediction prediction = model_.interpret(best, s, answers_.k);
    keep_above(answers_.threshold, model_, prediction);
    const shard::Sample sample = shard::sample_of(batch, s);
    switch (answers_.format) {
      case PredictionFormat::kText:
        write_text(sample, prediction);
        break;
      case PredictionFormat::kTsv:
        write_tsv(prediction);
        break;
      case PredictionFormat::kJson:
        write_json(sample, prediction);
        break;
    }
  }
}

std::string PredictionWriter::name_of(const shard::ScoredLabel& found) const {
  return names_ ? escaped(found.name, "\n\r") : std::to_string(found.label);  // a sample is a line
}

void PredictionWriter::write_text(const shard::Sample& sample, const Prediction& prediction) {
  const char* separator = "";
  for (const shard::ScoredLabel& found : prediction) {
    out_ << separator << name_of(found)
         << fmt::format(":{:.4f}", probabilities_ ? found.probability : found.score);
    separator = " ";
  }
  out_ << '\n';
  if (answers_.reasons.features == 0) return;
  for (const shard::ScoredLabel& found : prediction) write_reasons(sample, found);
}

void PredictionWriter::write_reasons(const shard::Sample& sample, const shard::ScoredLabel& found) {
  const shard::Explanation why = shard::explain(model_, sample, found.label);
  out_ << fmt::format("  {}: score {:.4f} =\n", name_of(found), why.score);
  for (size_t f = 0; f < std::min(answers_.reasons.features, why.features.size()); ++f)
    out_ << fmt::format("    {:+9.4f}  feature {} ({:.4g})\n", why.features[f].share, why.features[f].feature,
                        why.features[f].value);
  if (why.features.size() > answers_.reasons.features)
    out_ << fmt::format("    {:+9.4f}  the other {} features\n", share_of_others(why, answers_.reasons.features),
                        why.features.size() - answers_.reasons.features);
  out_ << fmt::format("    {:+9.4f}  without any feature\n", why.rest);
  if (answers_.reasons.examples == 0) return;
  for (const auto& example : answers_.reasons.samples->find(sample, found.label, answers_.reasons.examples))
    out_ << fmt::format("    like the training sample {} (cosine {:.4f})\n", example.row, example.cosine);
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

void PredictionWriter::write_json(const shard::Sample& sample, const Prediction& prediction) {
  using Json = nlohmann::json;
  Json labels = Json::array();
  for (const shard::ScoredLabel& found : prediction) {
    Json entry = {{"label", found.label}, {"score", found.score}};
    if (names_) entry["name"] = found.name;
    if (probabilities_) entry["probability"] = found.probability;
    if (answers_.reasons.features > 0) entry["because"] = reasons_json(model_, sample, found.label, answers_.reasons);
    labels.push_back(std::move(entry));
  }
  out_ << Json{{"sample", sample_}, {"labels", std::move(labels)}}.dump(-1, ' ', false,
                                                                        Json::error_handler_t::replace)
       << '\n';
}

}  // namespace modelet::cli
