#include "python/native/training.h"

#include <nanobind/stl/string.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/experiment/experiment.h"
#include "node_agent/train/local_run.h"
#include "node_agent/train/train.h"
#include "shard/data/store/dataset.h"

namespace modelet::python {
namespace {

namespace nb = nanobind;

// How often the calling thread looks for a Ctrl-C.
constexpr auto kLook = std::chrono::milliseconds(50);

// Carries events from the training thread to the calling thread.
class Mailbox {
 public:
  struct Letters {
    std::vector<std::string> events;
    bool ended = false;
  };

  void add(std::string event) {
    const std::lock_guard lock(mutex_);
    letters_.events.push_back(std::move(event));
    changed_.notify_one();
  }
  void end() {
    const std::lock_guard lock(mutex_);
    letters_.ended = true;
    changed_.notify_one();
  }
  // Waits for an event or the end, at most for kLook.
  Letters take() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLook, [&] { return letters_.ended || !letters_.events.empty(); });
    return std::exchange(letters_, Letters{.ended = letters_.ended});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Letters letters_;
};

// The first exception that a call throws. Later calls are not made, because the training is ending.
class Thrown {
 public:
  template <class Call>
  void guard(const Call& call) {
    if (error_) return;
    try {
      call();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  bool any() const { return error_ != nullptr; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

agent::TrainJob make_job(const std::vector<std::string>& keys, const agent::SamplesInMemory& samples,
                         const std::string& out, const std::string& resume) {
  const Experiment experiment = parse_experiment("", "the experiment", keys);
  const Normalize as_they_are = Normalize::kNone;
  DataShape shape = shard::describe_shape(shard::Dataset::of(samples.train, as_they_are),
                                          shard::Dataset::of(samples.test, as_they_are));
  if (const std::string& names = experiment.data.labels; !names.empty())
    shard::load_label_names(names, shape.labels);  // predictions will need them
  shape.fingerprint = 0;  // not checked: this one is of the samples before they are normalised
  agent::TrainJob job = agent::job_of_one_node("python", experiment, shape);
  job.out = out;
  job.resume = resume;
  job.in_memory = &samples;
  job.other_samples = !resume.empty();
  return job;
}

}  // namespace

void train(const std::vector<std::string>& keys, const Samples& train, const Samples* test,
           const std::string& out, const std::string& resume, const nb::callable& on_event) {
  const uint64_t no_offset = 0;
  agent::SamplesInMemory samples{.train = train.samples(),
                                 .test = {.features = train.samples().features,
                                          .labels = train.samples().labels,
                                          .feature_offsets = {&no_offset, 1},
                                          .label_offsets = {&no_offset, 1}}};
  if (test != nullptr) samples.test = test->samples();
  agent::LocalRun local(make_job(keys, samples, out, resume));
  const nb::object loads = nb::module_::import_("json").attr("loads");
  Mailbox mailbox;
  Thrown here, there;  // by this thread, by the training thread
  std::thread training([&] {
    there.guard([&] {
      local.run([&](const nlohmann::json& event) { mailbox.add(event.dump()); });
    });
    mailbox.end();
  });

  for (Mailbox::Letters letters; !letters.ended;) {
    {
      const nb::gil_scoped_release unlocked;
      letters = mailbox.take();
    }
    for (const std::string& event : letters.events) here.guard([&] { on_event(loads(event)); });
    here.guard([] {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    });
    if (here.any()) local.request_stop();
  }
  training.join();
  here.rethrow();
  there.rethrow();
}

}  // namespace modelet::python
