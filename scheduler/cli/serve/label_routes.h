// LabelRoutes: labels of the served run that come, go, get other names or are corrected over HTTP, as `modelet labels` and
// `modelet learn` do it (docs/serving.md). A change is a new checkpoint, which is served when the response is sent; requests
// are answered meanwhile. One change at a time. Any thread.
//
//   POST /v1/labels/add      samples with labels that the model does not have
//   POST /v1/labels/learn    samples of labels that it has
//   POST /v1/labels/remove   labels that are never again answers
//   POST /v1/labels/rename   a label that gets another name
#pragma once

#include <functional>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "comm/http/router.h"
#include "node_agent/train/labels/change_labels.h"
#include "scheduler/cli/serve/model_holder.h"

namespace modelet::cli {

class LabelRoutes {
 public:
  // Adds its routes to the router, whose requests it must outlive. `run`: what is served, by `models`. UsageError if this is a
  // checkpoint outside of a run.
  LabelRoutes(std::string run, unsigned threads, ModelHolder& models, comm::http::Router& router);
  LabelRoutes(const LabelRoutes&) = delete;
  LabelRoutes& operator=(const LabelRoutes&) = delete;

 private:
  using Change = agent::ChangedLabels (LabelRoutes::*)(const nlohmann::json& body, const agent::AddOptions& options) const;
  comm::http::Response change(const comm::http::Request& request, const char* what, Change make);
  agent::ChangedLabels add(const nlohmann::json& body, const agent::AddOptions& options) const;
  agent::ChangedLabels learn(const nlohmann::json& body, const agent::AddOptions& options) const;
  agent::ChangedLabels remove(const nlohmann::json& body, const agent::AddOptions& options) const;
  agent::ChangedLabels rename(const nlohmann::json& body, const agent::AddOptions& options) const;

  const std::string run_;
  const unsigned threads_;
  ModelHolder& models_;
  const comm::http::Router& router_;
  std::mutex changing_;
};

}  // namespace modelet::cli
