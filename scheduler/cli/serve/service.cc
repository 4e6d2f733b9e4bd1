#include "scheduler/cli/serve/service.h"

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/version.h"
#include "scheduler/cli/serve/openapi.h"

namespace modelet::cli {
namespace {

using comm::http::Request;
using comm::http::Response;
using Json = nlohmann::ordered_json;

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::unique_ptr<shard::SampleReader> reader_of(const Query& query, const shard::QueryEncoder& encoder) {
  if (!query.row.empty()) return encoder.open_rows({query.row}, query.where);
  if (!query.ids) return encoder.open_texts({query.text}, query.where);
  return encoder.open_ids(shard::LineReader::of_texts(query.text, query.where));
}

Json labels_of(const Query& query, size_t k, shard::SearchMode mode, const shard::Model& model) {
  const auto reader = reader_of(query, model.query_encoder());
  shard::Sample sample;
  if (!reader->next(sample)) throw FormatError(query.where + ": there is no sample in it");
  const std::vector<shard::ScoredLabel> found = model.predict(sample, k, mode);
  // NaN is never among the best. An index may find nothing, which is no error of the request.
  if (found.empty() ? mode == shard::SearchMode::kDense : !std::isfinite(found.front().score))
    throw FormatError(query.where + ": its values are so large that scores are no numbers");
  Json labels = Json::array();
  for (const shard::ScoredLabel& each : found) {
    Json entry = {{"label", each.label}};
    if (!model.label_names().empty()) entry["name"] = each.name;
    entry["score"] = each.score;
    if (model.calibration()) entry["probability"] = each.probability;
    labels.push_back(std::move(entry));
  }
  return labels;
}

}  // namespace

Service::Service(const ModelHolder& models, RequestLimits limits, comm::http::Router& router)
    : models_(models), limits_(limits) {
  router.add({.method = "POST",
              .path = "/v1/predict",
              .handler = [this](const Request& request) { return predict(request); },
              .slow = true,
              .seconds = &predict_seconds_});
  router.add({.method = "GET", .path = "/v1/model", .handler = [this](const Request&) { return model(); }});
  router.add({.method = "GET",
              .path = "/openapi.json",
              .handler = [text = openapi_text(limits, router.has_token())](const Request&) {
                return Response{.body = text};
              }});
  router.add_metrics([this](comm::http::MetricsText& text) { write_metrics(text); });
}

Response Service::predict(const Request& request) {
  const std::shared_ptr<const shard::Model> model = models_.model();
  const PredictRequest parsed = parse_request(request.body, model->query_encoder().columns(), limits_);
  const bool sparse = parsed.sparse.value_or(model->has_sparse());
  if (sparse && !model->has_sparse())
    throw FormatError(
        "sparse: this server scores all labels; leave 'sparse' out, or have it started with --sparse");
  const auto mode = sparse ? shard::SearchMode::kSparse : shard::SearchMode::kDense;
  Json predictions = Json::array();
  for (const Query& query : parsed.queries)
    predictions.push_back({{"labels", labels_of(query, parsed.k, mode, *model)}});
  samples_ += predictions.size();
  Json json = {{"step", model->step()}};
  if (parsed.single)
    json["labels"] = std::move(predictions.front()["labels"]);
  else
    json["predictions"] = std::move(predictions);
  return {.body = dumped(json)};
}

Response Service::model() const {
  const std::shared_ptr<const shard::Model> model = models_.model();
  Json json = {{"checkpoint", model->folder().string()},
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
  return {.body = dumped(json)};
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
