// Service: the routes of `modelet serve` (docs/serving.md), without sockets. Any thread.
//
//   POST /v1/predict     the best labels of samples
//   GET  /v1/model       which model is served
//   GET  /openapi.json   the full description of all routes (scheduler/cli/serve/openapi.h)
#pragma once

#include <atomic>
#include <cstdint>

#include "comm/http/router.h"
#include "scheduler/cli/serve/model_holder.h"
#include "scheduler/cli/serve/request.h"

namespace modelet::cli {

class Service {
 public:
  // Adds its routes and metrics to the router. `change_labels`, `update`: whether it has LabelRoutes and an UpdateRoute, too,
  // for the description. It must live as long as requests come.
  Service(const ModelHolder& models, RequestLimits limits, bool change_labels, bool update, comm::http::Router& router);
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

 private:
  comm::http::Response predict(const comm::http::Request& request);
  comm::http::Response model() const;
  void write_metrics(comm::http::MetricsText& text) const;

  const ModelHolder& models_;
  const RequestLimits limits_;
  std::atomic<uint64_t> samples_ = 0;
  comm::http::Histogram predict_seconds_;
};

}  // namespace modelet::cli
