// The state of a pool as metrics for Prometheus (docs/monitoring.md lists them). Runs that have ended have no series of
// their own, so that a scheduler of many runs does not fill the memory of whoever collects its metrics. Pure function.
#pragma once

#include "comm/http/metrics.h"
#include "scheduler/dashboard/pool_view.h"

namespace modelet::scheduler {

void write_metrics(const PoolState& state, comm::http::MetricsText& text);

}  // namespace modelet::scheduler
