#include "scheduler/core/run/run_record.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "base/text/strict_json.h"

namespace modelet::scheduler {
namespace {

namespace msg = comm::control;
using nlohmann::json;

constexpr const char* kRecord = "record of a run";
constexpr int kDeepestRecord = 5;
constexpr auto kLastState = msg::RunState::Waiting;

bool bool_at(const json& object, const char* key) {
  const json& value = member_at(object, key, kRecord);
  if (!value.is_boolean()) throw FormatError(std::string(kRecord) + ": '" + key + "' must be true or false");
  return value.get<bool>();
}

const json& list_at(const json& object, const char* key) {
  const json& value = member_at(object, key, kRecord);
  if (!value.is_array()) throw FormatError(std::string(kRecord) + ": '" + key + "' must be a list");
  return value;
}

uint32_t small_at(const json& object, const char* key) {
  const uint64_t value = unsigned_at(object, key, kRecord);
  if (value > UINT32_MAX) throw FormatError(std::string(kRecord) + ": '" + key + "' is too large");
  return static_cast<uint32_t>(value);
}

json submit_json(const msg::SubmitT& submit) {
  const msg::ShapeT& shape = *submit.shape;
  return {{"name", submit.name},
          {"experiment", submit.experiment},
          {"shape",
           {{"features", shape.features},
            {"labels", shape.labels},
            {"train_rows", shape.train_rows},
            {"test_rows", shape.test_rows},
            {"features_per_row", shape.features_per_row},
            {"labels_per_row", shape.labels_per_row},
            {"encoder", shape.encoder},
            {"fingerprint", shape.fingerprint},
            {"occurring_features", shape.occurring_features}}},
          {"nodes", submit.nodes},
          {"train_data", submit.train_data},
          {"test_data", submit.test_data},
          {"wait", submit.wait},
          {"priority", submit.priority},
          {"resume_files", submit.resume_files},
          {"token", submit.token}};
}

msg::SubmitT submit_of(const json& object) {
  msg::SubmitT submit;
  submit.name = string_at(object, "name", kRecord);
  submit.experiment = string_at(object, "experiment", kRecord);
  const json& shape = member_at(object, "shape", kRecord);
  submit.shape = std::make_unique<msg::ShapeT>(msg::ShapeT{{},
                                                           unsigned_at(shape, "features", kRecord),
                                                           unsigned_at(shape, "labels", kRecord),
                                                           unsigned_at(shape, "train_rows", kRecord),
                                                           unsigned_at(shape, "test_rows", kRecord),
                                                           number_at(shape, "features_per_row", kRecord),
                                                           number_at(shape, "labels_per_row", kRecord),
                                                           unsigned_at(shape, "encoder", kRecord),
                                                           unsigned_at(shape, "fingerprint", kRecord)});
  if (shape.contains("occurring_features"))  // ledgers of earlier programs do not have it
    submit.shape->occurring_features = unsigned_at(shape, "occurring_features", kRecord);
  submit.nodes = small_at(object, "nodes");
  submit.train_data = string_at(object, "train_data", kRecord);
  submit.test_data = string_at(object, "test_data", kRecord);
  submit.wait = bool_at(object, "wait");
  submit.priority = static_cast<int32_t>(number_at(object, "priority", kRecord));
  submit.resume_files = string_at(object, "resume_files", kRecord);
  if (object.contains("token"))  // not in records of earlier releases
    submit.token = unsigned_at(object, "token", kRecord);
  return submit;
}

json member_json(const Run::Member& member) {
  return {{"name", member.name},
          {"incarnation", member.incarnation},
          {"endpoint", member.endpoint},
          {"public_key", member.public_key},
          {"planned_bytes", member.planned_bytes},
          {"memory_bytes", member.memory_bytes},
          {"planned_seconds", member.planned_seconds},
          {"speed", member.speed},
          {"measured", member.measured},
          {"done", member.done},
          {"outcome", static_cast<int>(member.outcome)}};
}

Run::Member member_of(const json& object) {
  const uint64_t outcome = unsigned_at(object, "outcome", kRecord);
  if (outcome > static_cast<uint64_t>(msg::Outcome::Failed))
    throw FormatError("record of a run: no such outcome");
  return {.name = string_at(object, "name", kRecord),
          .incarnation = unsigned_at(object, "incarnation", kRecord),
          .endpoint = string_at(object, "endpoint", kRecord),
          .public_key = string_at(object, "public_key", kRecord),
          .planned_bytes = unsigned_at(object, "planned_bytes", kRecord),
          .memory_bytes = unsigned_at(object, "memory_bytes", kRecord),
          .planned_seconds = number_at(object, "planned_seconds", kRecord),
          .speed = number_at(object, "speed", kRecord),
          .measured = bool_at(object, "measured"),
          .done = bool_at(object, "done"),
          .outcome = static_cast<msg::Outcome>(outcome)};
}

// Only snapshots that are to be kept are recorded. A later snapshot will replace the others.
json unfinished_json(const Snapshots& snapshots) {
  json list = json::array();
  for (const Snapshots::Unfinished& each : snapshots.unfinished())
    if (each.snapshot.keep)
      list.push_back(
          {{"snapshot", comm::format_snapshot(each.snapshot)}, {"ranks", each.ranks}, {"size", each.size}});
  return list;
}

std::vector<Snapshots::Unfinished> unfinished_of(const json& object) {
  std::vector<Snapshots::Unfinished> unfinished;
  for (const json& each : list_at(object, "unfinished"))
    unfinished.push_back({comm::parse_snapshot(string_at(each, "snapshot", kRecord)),
                          list_at(each, "ranks").get<std::set<uint32_t>>(), small_at(each, "size")});
  return unfinished;
}

std::string as_text(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string text_of(const Run& run, double now) {
  json members = json::array();
  for (const Run::Member& each : run.members) members.push_back(member_json(each));
  const double seconds = (has_ended(run.state) ? run.ended : now) - run.submitted;
  return as_text({{"submitter", run.submitter},
                  {"submitted", run.submitted_at},
                  {"seconds", seconds},
                  {"state", static_cast<int>(run.state)},
                  {"detail", run.detail},
                  {"user_error", run.user_error},
                  {"epoch", run.epoch},
                  {"step", run.step},
                  {"owner", run.owner},
                  {"members", members},
                  {"snapshots", comm::format_snapshots(run.snapshots.stable())},
                  {"unfinished", unfinished_json(run.snapshots)},
                  {"began_with", run.began_with},
                  {"replans", run.replans},
                  {"recoveries", run.recoveries},
                  {"fewer", run.fewer},
                  {"recovered_from", run.recovered_from},
                  {"short_log", run.has_short_log},
                  {"attempts", run.attempts}});
}

}  // namespace

RunRecord record_of(Run& run, double now) {
  RunRecord record{run.id, has_ended(run.state), text_of(run, now)};
  if (!std::exchange(run.is_submission_written, true)) record.submission = as_text(submit_json(run.submit));
  return record;
}

Run parse_run(const RunRecord& record) {
  const json object = parse_strict_json(record.text, kRecord, kDeepestRecord);
  Run run;
  run.id = record.id;
  run.is_submission_written = !record.submission.empty();
  // Earlier releases wrote the submission anew with each change.
  const json submission = run.is_submission_written
                              ? parse_strict_json(record.submission, kRecord, kDeepestRecord)
                              : member_at(object, "submit", kRecord);
  run.submit = submit_of(submission);
  run.submitter = string_at(object, "submitter", kRecord);
  run.submitted_at = string_at(object, "submitted", kRecord);
  run.submitted = -number_at(object, "seconds", kRecord);
  const uint64_t state = unsigned_at(object, "state", kRecord);
  if (state > static_cast<uint64_t>(kLastState)) throw FormatError("record of a run: no such state");
  run.state = static_cast<msg::RunState>(state);
  run.detail = string_at(object, "detail", kRecord);
  run.user_error = bool_at(object, "user_error");
  run.epoch = small_at(object, "epoch");
  run.step = unsigned_at(object, "step", kRecord);
  for (const json& rank : list_at(object, "owner")) run.owner.push_back(rank.get<uint32_t>());
  for (const json& each : list_at(object, "members")) run.members.push_back(member_of(each));
  run.snapshots =
      Snapshots(comm::parse_snapshots(string_at(object, "snapshots", kRecord)), unfinished_of(object));
  if (submission.contains("out") && string_at(submission, "out", kRecord) != "" && !has_ended(run.state))
    throw FormatError(
        "its nodes wrote into a folder that they share, as those of earlier releases did; submit it again, with "
        "--resume and that folder");
  if (object.contains("fewer"))  // not in records of earlier releases
    run.fewer = string_at(object, "fewer", kRecord);
  if (object.contains("short_log")) run.has_short_log = bool_at(object, "short_log");
  run.began_with = unsigned_at(object, "began_with", kRecord);
  run.replans = small_at(object, "replans");
  run.recoveries = small_at(object, "recoveries");
  run.recovered_from = unsigned_at(object, "recovered_from", kRecord);
  run.attempts = small_at(object, "attempts");
  return run;
}

}  // namespace modelet::scheduler
