#include "scheduler/plan/planning.h"

#include <new>

#include "base/error.h"

namespace modelet::scheduler {

Planned carry_out(const PlanRequest& request) {
  Planned planned{.run = request.run, .number = request.number};
  try {
    planned.plan = make_plan(request.experiment, request.shape, request.nodes);
  } catch (const Error& error) {
    planned.failure = error.what();
    planned.user_error = error.exit_code() == ExitCode::kUsage;
  } catch (const std::bad_alloc&) {
    planned.failure = "the scheduler has no memory for its plan";
  } catch (const std::exception& error) {
    planned.failure = error.what();
  }
  return planned;
}

}  // namespace modelet::scheduler
