#include "scheduler/cli/serve/label_routes.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/file.h"
#include "base/text/strict_json.h"
#include "scheduler/cli/serve/request.h"
#include "shard/modelet/checkpoint.h"
#include "shard/modelet/checkpoint/folders.h"

namespace modelet::cli {
namespace {

using agent::AddOptions;
using agent::ChangedLabels;
using comm::http::Request;
using comm::http::Response;
void write_lines(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

// Calls use(file) with the samples of a request in a file. Errors speak of "samples" instead of the file.
template <class Use>
ChangedLabels with_samples(const nlohmann::json& body, const Use& use) {
  const std::string text = text_of_samples(body);
  const TemporaryFolder folder("labels");
  const std::filesystem::path file = folder.path() / "samples";
  write_lines(file, text);
  const auto in_words = [&](std::string what) {
    for (size_t at = 0; (at = what.find(file.string())) != std::string::npos;) what.replace(at, file.string().size(), "samples");
    return what;
  };
  try {
    return use(file);
  } catch (const UsageError& error) {
    throw UsageError(in_words(error.what()));
  } catch (const FormatError& error) {
    throw FormatError(in_words(error.what()));
  }
}

}  // namespace

LabelRoutes::LabelRoutes(std::string run, unsigned threads, ModelHolder& models, comm::http::Router& router)
    : run_(std::move(run)), threads_(threads), models_(models), router_(router) {
  if (shard::run_of(shard::find_checkpoint(run_)).empty())
    throw UsageError("--change-labels: " + run_ + " is a checkpoint outside of a run; serve the folder of a run");
  const std::array<std::pair<const char*, std::pair<const char*, Change>>, 4> routes = {{
      {"/v1/labels/add", {"added", &LabelRoutes::add}},
      {"/v1/labels/learn", {"corrected", &LabelRoutes::learn}},
      {"/v1/labels/remove", {"removed", &LabelRoutes::remove}},
      {"/v1/labels/rename", {"renamed", &LabelRoutes::rename}},
  }};
  for (const auto& route : routes) {
    const auto [what, make] = route.second;
    router.add({.method = "POST",
                .path = route.first,
                .handler = [this, what = what, make = make](const Request& request) { return change(request, what, make); },
                .acts = true});
  }
}

Response LabelRoutes::change(const Request& request, const char* what, Change make) {
  const nlohmann::json body = parse_strict_json(request.body, "the request", kMostNestedInSamples, true);
  if (!body.is_object()) throw FormatError("the request: a JSON object is expected");
  const std::unique_lock<std::mutex> alone(changing_, std::try_to_lock);
  if (!alone) return comm::http::error_response(503, "labels are being changed already; ask again when that is done");
  AddOptions options;
  options.threads = threads_;
  options.progress = [this](std::string_view, double) {
    if (router_.ending()) throw Interrupted("the server shuts down; nothing was changed");
  };
  const ChangedLabels changed = (this->*make)(body, options);
  models_.look();
  nlohmann::json answer = agent::to_json(changed, what);
  answer["step"] = models_.model()->step();
  return {.body = answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"};
}

ChangedLabels LabelRoutes::add(const nlohmann::json& body, const AddOptions& options) const {
  require_known_keys(body, std::vector<std::string>{"samples", "names", "fit"}, "the request");
  AddOptions with = options;
  if (body.contains("fit")) {
    if (!body["fit"].is_boolean()) throw FormatError("fit: true or false is expected");
    with.fit = body["fit"].get<bool>();
  }
  const TemporaryFolder folder("names");
  if (body.contains("names")) {
    if (!body["names"].is_array()) throw FormatError("names: a list of names of the new labels is expected");
    std::string lines;
    for (const nlohmann::json& name : body["names"]) {
      if (!name.is_string()) throw FormatError("names: a list of names of the new labels is expected");
      lines += name.get<std::string>() + "\n";
    }
    with.names = folder.path() / "names";
    write_lines(with.names, lines);
  }
  return with_samples(body, [&](const std::filesystem::path& file) { return agent::add_labels(run_, file, with); });
}

ChangedLabels LabelRoutes::learn(const nlohmann::json& body, const AddOptions& options) const {
  require_known_keys(body, std::vector<std::string>{"samples"}, "the request");
  return with_samples(body, [&](const std::filesystem::path& file) { return agent::learn(run_, file, options); });
}

ChangedLabels LabelRoutes::remove(const nlohmann::json& body, const AddOptions& options) const {
  require_known_keys(body, std::vector<std::string>{"labels"}, "the request");
  const nlohmann::json& labels = member_at(body, "labels", "the request");
  if (!labels.is_array() || labels.empty()) throw FormatError("labels: a list of labels is expected");
  std::vector<std::string> names;
  for (const nlohmann::json& label : labels) {
    if (!label.is_string() && !label.is_number_unsigned()) throw FormatError("labels: names of labels are expected, or their numbers");
    names.push_back(label.is_string() ? label.get<std::string>() : label.dump());
  }
  return agent::remove_labels(run_, names, options);
}

ChangedLabels LabelRoutes::rename(const nlohmann::json& body, const AddOptions& options) const {
  require_known_keys(body, std::vector<std::string>{"label", "to"}, "the request");
  return agent::rename_label(run_, string_at(body, "label", "the request"), string_at(body, "to", "the request"), options);
}

}  // namespace modelet::cli
