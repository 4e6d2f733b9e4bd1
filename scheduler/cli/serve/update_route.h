// UpdateRoute: records of the served model's table that became known after its training (docs/serving.md). They are events
// of their entities for all questions from then on, and are kept beside the model. Any thread.
//
//   POST /v1/update      records with labels
#pragma once

#include "comm/http/router.h"
#include "scheduler/cli/serve/model_holder.h"

namespace modelet::cli {

class UpdateRoute {
 public:
  // Adds its route to the router, whose requests it must outlive. UsageError if the model has no histories.
  UpdateRoute(ModelHolder& models, comm::http::Router& router);
  UpdateRoute(const UpdateRoute&) = delete;
  UpdateRoute& operator=(const UpdateRoute&) = delete;

 private:
  comm::http::Response update(const comm::http::Request& request) const;

  ModelHolder& models_;
};

}  // namespace modelet::cli
