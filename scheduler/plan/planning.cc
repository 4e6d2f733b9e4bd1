#include "scheduler/plan/planning.h"

#include <new>

#include "base/error.h"

namespace modelet::scheduler {

Planned carry_out(const PlanRequest& request) {
  Planned answer{.run = request.run, .number = request.number};
  try {
    answer.plan = make_plan(request.experiment, request.shape, request.nodes);
  } catch (const Error& error) {
    answer.failure = error.what();
    answer.user_error = error.exit_code() == ExitCode::kUsage;
  } catch (const std::bad_alloc&) {
    answer.failure = "the scheduler has no memory for its plan";
  } catch (const std::exception& error) {
    answer.failure = error.what();
  }
  return answer;
}

}  // namespace modelet::scheduler
