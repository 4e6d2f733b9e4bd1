#include "scheduler/client/send_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/experiment/towers.h"
#include "base/parallel/thread_pool.h"
#include "base/system/clock.h"
#include "base/system/file.h"
#include "comm/content/transfer/transfer.h"
#include "node_agent/train/data/sample_source.h"
#include "node_agent/train/job/snapshot.h"
#include "node_agent/train/towers.h"
#include "node_agent/train/train.h"
#include "shard/data/store/label_division.h"

namespace modelet::cli {

namespace {

comm::ContentId send_file(comm::DataLink& link, std::span<const std::byte> file, const std::string& what,
                          Reporter* reporter) {
  constexpr double kReportEvery = 1;  // seconds
  const auto manifest = comm::Manifest::of(file);
  const Stopwatch watch;
  Stopwatch since_report;
  comm::send_content(link, manifest, comm::reader_of(file), {}, [&](uint64_t bytes, uint64_t total) {
    if (reporter == nullptr || (bytes < total && since_report.seconds() < kReportEvery)) return;
    since_report.lap();
    const double rate = static_cast<double>(bytes) / std::max(1e-9, watch.seconds());
    reporter->handle({{"event", "sending"},
                      {"data", what},
                      {"bytes", bytes},
                      {"total_bytes", total},
                      {"bytes_per_second", rate},
                      {"eta_seconds", static_cast<double>(total - bytes) / rate}});
  });
  return manifest.id();
}

}  // namespace

std::string send_data(const comm::control::SchedulerAddress& server, const shard::Dataset& data,
                      const std::string& what, Reporter& reporter, double ask_again) {
  comm::DataLink link(server, {.ask_again = ask_again});
  return comm::to_text(send_file(link, data.file(), what, &reporter));
}

comm::Snapshot send_checkpoint(const comm::control::SchedulerAddress& server,
                               const shard::Checkpoint& checkpoint, Reporter* reporter, double ask_again,
                               std::function<void()> check) {
  comm::DataLink link(server, {.ask_again = ask_again, .check = std::move(check)});
  comm::Snapshot snapshot{.step = checkpoint.index().step, .keep = true};
  for (const agent::NamedFile& file : agent::snapshot_files(checkpoint)) {
    const MappedFile mapped(file.path);
    snapshot.files.push_back({.name = file.name,
                              .content = send_file(link, mapped.bytes(), file.name, reporter),
                              .bytes = mapped.bytes().size(),
                              .holders = {""}});
  }
  return snapshot;
}

void send_start(const comm::control::SchedulerAddress& server, const std::filesystem::path& resume, Submission& submission,
                Reporter* reporter, double ask_again, const std::function<void()>& check) {
  if (tower_tasks(submission.experiment.model) == 1) {
    if (!resume.empty())
      submission.resume_files = send_checkpoint(server, shard::Checkpoint::open(resume), reporter, ask_again, check);
    return;
  }
  agent::TrainJob job = agent::job_of_one_node(submission.name, submission.experiment, submission.shape);
  job.resume = resume;
  ThreadPool pool(agent::thread_count(job));
  const agent::TowersStart start = agent::start_of_towers(job, pool);
  const shard::Dataset data = agent::shared_samples(job)->train(
      {{0, job.shape.labels}}, [](const std::string&) { return shard::PrepareProgress(); });
  for (const shard::LabelDivision::Part& part : start.division.parts(shard::count_labels(data)))
    submission.tasks.emplace_back(part.labels, part.entries);
  const TemporaryFolder folder("division");
  const std::filesystem::path file = folder.path() / shard::LabelDivision::kFile;
  start.division.write(file);
  comm::DataLink link(server, {.ask_again = ask_again, .check = check});
  submission.division = comm::to_text(send_file(link, MappedFile(file).bytes(), "towers", nullptr));
  if (resume.empty()) return;
  for (const std::filesystem::path& from : start.checkpoints)
    submission.resume_tasks.push_back(
        from.empty() ? comm::Snapshot()
                     : send_checkpoint(server, shard::Checkpoint::open(from), reporter, ask_again, check));
}

}  // namespace modelet::cli
