#include "scheduler/cli/serve/service.h"

#include <nlohmann/json.hpp>
#include <utility>

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

Json labels_of(const ServedModel::Answer& answer, const Interpreter& interpreter) {
  Json labels = Json::array();
  for (const ScoredLabel& found : answer) {
    Json entry = {{"label", found.label}};
    if (interpreter.has_names()) entry["name"] = found.name;
    entry["score"] = found.score;
    if (interpreter.has_probabilities()) entry["probability"] = found.probability;
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
  const std::shared_ptr<const ServedModel> served = models_.model();
  const PredictRequest parsed = parse_request(request.body, served->columns(), limits_);
  const std::vector<ServedModel::Answer> answers = served->answer(parsed);
  samples_ += answers.size();
  Json json = {{"step", served->step()}};
  if (parsed.single) {
    json["labels"] = labels_of(answers.front(), served->interpreter());
  } else {
    json["predictions"] = Json::array();
    for (const ServedModel::Answer& answer : answers)
      json["predictions"].push_back({{"labels", labels_of(answer, served->interpreter())}});
  }
  return {.body = dumped(json)};
}

Response Service::model() const {
  const std::shared_ptr<const ServedModel> served = models_.model();
  Json json = {{"checkpoint", served->folder().string()},
               {"step", served->step()},
               {"features", served->shape().features},
               {"labels", served->shape().labels},
               {"hidden", served->experiment().model.hidden},
               {"loss", spelling(served->experiment().model.loss)},
               {"format", spelling(served->columns().format())},
               {"columns", served->columns().names()},
               {"sparse", served->sparse()},
               {"names", served->interpreter().has_names()},
               {"probabilities", served->interpreter().has_probabilities()},
               {"modelet_version", kVersion}};
  return {.body = dumped(json)};
}

void Service::write_metrics(comm::http::MetricsText& text) const {
  const std::shared_ptr<const ServedModel> served = models_.model();
  const ModelHolder::Reloads reloads = models_.reloads();
  text.histogram("modelet_predict_seconds", "From a whole request to its response, without the network.",
                 predict_seconds_);
  text.counter("modelet_samples_total", "Samples for which labels were found.",
               static_cast<double>(samples_));
  text.gauge("modelet_model_step", "Training step of the model that is served.",
             static_cast<double>(served->step()));
  text.begin("modelet_model_info", "gauge", "The checkpoint that is served.");
  text.sample({{"checkpoint", served->folder().string()}}, 1);
  text.counter("modelet_reloads_total", "Newer checkpoints that took over.",
               static_cast<double>(reloads.done));
  text.counter("modelet_reloads_failed_total", "Newer checkpoints that could not be loaded.",
               static_cast<double>(reloads.failed));
}

}  // namespace modelet::cli
