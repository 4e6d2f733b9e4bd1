#include "scheduler/cli/serve/service.h"

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/text/printable.h"
#include "base/version.h"
#include "scheduler/cli/model/answers.h"
#include "scheduler/cli/serve/openapi.h"

namespace modelet::cli {
namespace {

using comm::http::Request;
using comm::http::Response;
using Json = nlohmann::ordered_json;

std::string dumped(const Json& answer) {
  return answer.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::unique_ptr<shard::SampleReader> reader_of(const Query& query, const shard::QueryEncoder& encoder) {
  if (!query.row.empty()) return encoder.open_rows({query.row}, query.where);
  if (!query.ids) return encoder.open_texts({query.text}, query.where);
  return encoder.open_ids(shard::LineReader::of_texts(query.text, query.where));
}

// The labels among which a request wants to choose; null: all. `own` is where they are if no set of the server has them.
const shard::LabelSet* among_of(const PredictRequest& request, const ServedModel& served,
                                std::optional<shard::LabelSet>& own) {
  if (!request.subset.empty()) {
    const auto found = served.subsets.find(request.subset);
    if (found != served.subsets.end()) return &found->second;
    throw UsageError(
        "among: this server has no set '" + printable(request.subset, 100) +
        "'; a list of labels is expected, or the name of a set that it was started with (--subset)");
  }
  if (request.among.empty()) return nullptr;
  const shard::LabelNumbers& numbers = served.model.label_numbers();
  std::vector<uint32_t> chosen;
  for (const auto& label : request.among) {
    const auto* const name = std::get_if<std::string>(&label);
    chosen.push_back(name != nullptr ? numbers.of(*name) : numbers.checked(std::get<uint64_t>(label)));
  }
  own.emplace(served.model.shape().labels, chosen);
  return &*own;
}

Json labels_of(const Query& query, const PredictRequest& request, shard::SearchMode mode,
               const shard::LabelSet* among, const shard::Model& model, const WantedReasons& reasons) {
  const auto reader = reader_of(query, model.query_encoder());
  shard::Sample sample;
  if (!reader->next(sample)) throw FormatError(query.where + ": there is no sample in it");
  std::vector<shard::ScoredLabel> found = model.predict(sample, request.k, mode, among);
  // NaN is never among the best. An index may find nothing, which is no error of the request.
  if (found.empty() ? mode == shard::SearchMode::kDense : !std::isfinite(found.front().score))
    throw FormatError(query.where + ": its values are so large that scores are no numbers");
  keep_above(request.threshold, model, found);
  Json labels = Json::array();
  for (const shard::ScoredLabel& each : found) {
    Json entry = {{"label", each.label}};
    if (!model.label_names().empty()) entry["name"] = each.name;
    entry["score"] = each.score;
    if (model.calibration()) entry["probability"] = each.probability;
    if (reasons.features > 0) entry["because"] = reasons_json(model, sample, each.label, reasons);
    labels.push_back(std::move(entry));
  }
  return labels;
}

}  // namespace

Service::Service(const ModelHolder& models, RequestLimits limits, bool change_labels, bool update,
                 comm::http::Router& router)
    : models_(models), limits_(limits) {
  router.add({.method = "POST",
              .path = "/v1/predict",
              .handler = [this](const Request& request) { return predict(request); },
              .slow = true,
              .seconds = &predict_seconds_});
  router.add({.method = "GET", .path = "/v1/model", .handler = [this](const Request&) { return model(); }});
  router.add({.method = "GET",
              .path = "/openapi.json",
              .handler = [text = openapi_text(limits, router.has_token(), change_labels, update)](const Request&) {
                return Response{.body = text};
              }});
  router.add_metrics([this](comm::http::MetricsText& text) { write_metrics(text); });
}

Response Service::predict(const Request& request) {
  const std::shared_ptr<const ServedModel> served = models_.served();
  const shard::Model* const model = &served->model;
  const PredictRequest parsed = parse_request(request.body, model->query_encoder().columns(), limits_);
  const bool sparse = parsed.sparse.value_or(model->has_sparse());
  if (sparse && !model->has_sparse())
    throw FormatError(
        "sparse: this server scores all labels; leave 'sparse' out, or have it started with --sparse");
  const auto mode = sparse ? shard::SearchMode::kSparse : shard::SearchMode::kDense;
  std::optional<shard::LabelSet> own;
  const shard::LabelSet* const among = among_of(parsed, *served, own);
  const WantedReasons reasons{parsed.reasons, models_.examples(), served->samples.get()};
  Json predictions = Json::array();
  for (const Query& query : parsed.queries)
    predictions.push_back({{"labels", labels_of(query, parsed, mode, among, *model, reasons)}});
  samples_ += predictions.size();
  Json answer = {{"step", model->step()}};
  if (parsed.single)
    answer["labels"] = std::move(predictions.front()["labels"]);
  else
    answer["predictions"] = std::move(predictions);
  return {.body = dumped(answer)};
}

Response Service::model() const {
  const std::shared_ptr<const shard::Model> model = models_.model();
  Json answer = {{"checkpoint", model->folder().string()},
                 {"step", model->step()},
                 {"features", model->shape().features},
                 {"labels", model->shape().labels},
                 {"hidden", model->experiment().model.hidden},
                 {"loss", spelling(model->experiment().model.loss)},
                 {"format", spelling(model->query_encoder().columns().format())},
                 {"columns", model->query_encoder().columns().names()},
                 {"sparse", model->has_sparse()},
                 {"names", !model->label_names().empty()},
                 {"probabilities", model->calibration().has_value()},
                 {"modelet_version", kVersion}};
  return {.body = dumped(answer)};
}

void Service::write_metrics(comm::http::MetricsText& text) const {
  const std::shared_ptr<const shard::Model> model = models_.model();
  const ModelHolder::Reloads reloads = models_.reloads();
  text.histogram("modelet_predict_seconds", "From a whole request to its response, without the network.",
                 predict_seconds_);
  text.counter("modelet_samples_total", "Samples for which labels were found.",
               static_cast<double>(samples_));
  text.gauge("modelet_model_step", "Training step of the model that is served.",
             static_cast<double>(model->step()));
  text.begin("modelet_model_info", "gauge", "The checkpoint that is served.");
  text.sample({{"checkpoint", model->folder().string()}}, 1);
  text.counter("modelet_reloads_total", "Newer checkpoints that took over.",
               static_cast<double>(reloads.done));
  text.counter("modelet_reloads_failed_total", "Newer checkpoints that could not be loaded.",
               static_cast<double>(reloads.failed));
}

}  // namespace modelet::cli
