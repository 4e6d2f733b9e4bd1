// Service: answers questions, without sockets (docs/serving.md). Any thread.
//
//   POST /v1/predict     the best labels of samples
//   GET  /v1/model       which model is served
//   GET  /healthz        whether the process lives
//   GET  /readyz         whether it takes questions; not while it is ending
//   GET  /metrics        figures for Prometheus
//   GET  /openapi.json   the full description of all these (scheduler/cli/serve/openapi.h)
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "scheduler/cli/serve/model_holder.h"
#include "scheduler/cli/serve/request.h"
#include "scheduler/cli/serve/statistics.h"

namespace modelet::cli {

inline constexpr const char* kPredictPath = "/v1/predict";

struct Question {
  std::string_view method, target, content_type, authorization, body;
};

struct Reply {
  unsigned status = 200;
  std::string body;
  std::string_view content_type = "application/json";
  std::string_view allow;  // for status 405: the methods that are allowed
};

// A reply that says what is wrong.
Reply error_reply(unsigned status, const std::string& what);

class Service {
 public:
  // `token` is what questions must bring, except those for /healthz and /readyz. Empty: they need none.
  Service(const ModelHolder& models, Statistics& statistics, RequestLimits limits, std::string token);

  // Answers a question and counts it. Never throws: whatever goes wrong is a reply.
  Reply handle(const Question& question) const;
  // The reply that refuses a question because of its header alone: its path, method, token or type. Status
  // 200: it is not refused.
  Reply check(const Question& question) const;

  void end() { ending_ = true; }  // from here on /readyz says no
  bool ending() const { return ending_; }

 private:
  Reply answer(const Question& question) const;
  Reply predict(std::string_view body) const;
  Reply model() const;
  Reply metrics() const;

  const ModelHolder& models_;
  Statistics& statistics_;
  const RequestLimits limits_;
  const std::string token_, openapi_;
  std::atomic<bool> ending_ = false;
};

}  // namespace modelet::cli
