#include <array>
#include <utility>

#include "base/error.h"
#include "base/text/strict_json.h"
#include "comm/control/snapshot_tables.h"
#include "scheduler/core/run/run.h"

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

json tasks_json(const std::vector<msg::TaskLabels>& tasks) {
  json list = json::array();
  for (const msg::TaskLabels& each : tasks)
    list.push_back({{"labels", each.labels()}, {"entries", each.entries()}});
  return list;
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
          {"division", submit.division},
          {"tasks", tasks_json(submit.tasks)},
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
  if (object.contains("division")) {  // not in records of earlier releases
    submit.division = string_at(object, "division", kRecord);
    for (const json& labels : list_at(object, "tasks"))
      submit.tasks.emplace_back(unsigned_at(labels, "labels", kRecord),
                                unsigned_at(labels, "entries", kRecord));
  }
  if (object.contains("token"))  // not in records of earlier releases
    submit.token = unsigned_at(object, "token", kRecord);
  return submit;
}

json member_json(const Member& member) {
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

Member member_of(const json& object) {
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

}  // namespace

RunRecord Run::record(double now) {
  json group = json::array();
  for (const Member& each : members()) group.push_back(member_json(each));
  json text = {{"submitter", submitter_},
               {"submitted", submitted_at_},
               {"seconds", status(now).seconds},
               {"state", static_cast<int>(state_)},
               {"detail", detail_},
               {"user_error", user_error_},
               {"epoch", epoch()},
               {"step", step_},
               {"owner", group_.owner()},
               {"members", group},
               {"snapshots", comm::format_snapshots(snapshots_.stable())},
               {"unfinished", unfinished_json(snapshots_)},
               {"began_with", began_with_},
               {"replans", replans_},
               {"recoveries", recoveries_},
               {"repeated_steps", repeated_steps_},
               {"fewer", fewer_},
               {"recovered_from", attempts_.step()},
               {"short_log", journal_.is_short()},
               {"attempts", attempts_.count()}};
  if (!results_.empty()) text["results"] = results_;
  if (!owners_.empty()) text["owners"] = owners_;
  if (parent_ != 0) {
    text["parent"] = parent_;
    text["task"] = task_;
  }
  RunRecord record{id_, has_ended(state_), as_text(text)};
  if (!std::exchange(is_submission_written_, true))
    record.submission = as_text(submit_json(submit_));
  return record;
}

Run::Run(const RunRecord& record) : id_(record.id), is_submission_written_(!record.submission.empty()) {
  const json object = parse_strict_json(record.text, kRecord, kDeepestRecord);
  json submission = json::object();
  if (object.contains("parent")) {  // its submission is that of its parent (accept_task)
    parent_ = unsigned_at(object, "parent", kRecord);
    task_ = small_at(object, "task");
    is_submission_written_ = true;
  } else {
    // Earlier releases wrote the submission anew with each change.
    submission = is_submission_written_ ? parse_strict_json(record.submission, kRecord, kDeepestRecord)
                                        : member_at(object, "submit", kRecord);
    submit_ = submit_of(submission);
  }
  if (object.contains("results")) results_ = list_at(object, "results").get<std::vector<uint64_t>>();
  if (object.contains("owners")) owners_ = list_at(object, "owners").get<std::set<std::string>>();
  submitter_ = string_at(object, "submitter", kRecord);
  submitted_at_ = string_at(object, "submitted", kRecord);
  submitted_ = -number_at(object, "seconds", kRecord);
  const uint64_t state = unsigned_at(object, "state", kRecord);
  if (state > static_cast<uint64_t>(kLastState)) throw FormatError("record of a run: no such state");
  state_ = static_cast<msg::RunState>(state);
  detail_ = string_at(object, "detail", kRecord);
  user_error_ = bool_at(object, "user_error");
  step_ = unsigned_at(object, "step", kRecord);
  std::vector<uint32_t> owner;
  std::vector<Member> members;
  for (const json& rank : list_at(object, "owner")) owner.push_back(rank.get<uint32_t>());
  for (const json& each : list_at(object, "members")) members.push_back(member_of(each));
  group_ = Group(small_at(object, "epoch"), std::move(members), std::move(owner));
  snapshots_ =
      Snapshots(comm::parse_snapshots(string_at(object, "snapshots", kRecord)), unfinished_of(object));
  if (submission.contains("out") && string_at(submission, "out", kRecord) != "" && !has_ended(state_))
    throw FormatError(
        "its nodes wrote into a folder that they share, as those of earlier releases did; submit it again, with "
        "--resume and that folder");
  if (object.contains("fewer"))  // not in records of earlier releases
    fewer_ = string_at(object, "fewer", kRecord);
  if (object.contains("repeated_steps")) repeated_steps_ = unsigned_at(object, "repeated_steps", kRecord);
  if (object.contains("short_log")) journal_ = Journal(bool_at(object, "short_log"));
  began_with_ = unsigned_at(object, "began_with", kRecord);
  replans_ = small_at(object, "replans");
  recoveries_ = small_at(object, "recoveries");
  attempts_ = Attempts(unsigned_at(object, "recovered_from", kRecord), small_at(object, "attempts"));
  // Earlier releases wrote down what it continues from beside its own snapshots.
  const json& written = parent_ != 0 ? object : submission;
  const char* key = parent_ != 0 ? "begins_with" : "resume_files";
  if (const std::string start = written.contains(key) ? string_at(written, key, kRecord) : "";
      !start.empty() && !has_ended(state_) && snapshots_.newest() == nullptr)
    snapshots_ = Snapshots(comm::parse_snapshot(start));
}

}  // namespace modelet::scheduler
