// What tests of whole pools share.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "base/system/clock.h"
#include "scheduler/client/pool_client.h"
#include "tests/scheduler/core/core_harness.h"

namespace modelet::test {

// Waits until `condition` is true. The limit only ends a test that would fail anyway.
inline void wait_until(const std::function<bool()>& condition) {
  const Stopwatch watch;
  while (!condition()) {
    ASSERT_LT(watch.seconds(), 60) << "this never happened";
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// A submission whose data is never read.
inline cli::Submission submission(uint32_t nodes) {
  const auto message = scheduler::test::submission(nodes);
  return {.experiment = parse_experiment(message.experiment, "/test"),
          .shape = {.features = 1000,
                    .labels = 500,
                    .train_rows = 10000,
                    .test_rows = 10,
                    .features_per_row = 20,
                    .labels_per_row = 3},
          .name = "run",
          .nodes = nodes};
}

}  // namespace modelet::test
