// Notices: a source says that this machine will soon go away. Clouds do this at an address of the machine.
// A file or a command covers everything else.
//
// One thread asks a source. Answers are limited in size, and each question is limited in time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace modelet::agent {

struct Notice {
  double seconds = 0;  // until the machine goes
  std::string reason;
};

class NoticeSource {
 public:
  virtual ~NoticeSource() = default;
  // Returns nothing if the machine stays, as far as is known. Throws Error if the source cannot be asked,
  // or if its answer makes no sense.
  virtual std::optional<Notice> ask() = 0;
};

struct NoticeOptions {
  // Of a cloud's metadata, "http://HOST:PORT" with a number as HOST; empty: the cloud's usual one.
  std::string address;
  double timeout_seconds = 2;   // for one question
  std::function<double()> utc;  // seconds since 1970; null: the system's clock
  // Called several times a second while an answer is awaited; may throw, which ends the question.
  std::function<void()> check = {};
};

// `from` is one of
//   aws, gcp, azure   the cloud's notices for spot machines, at its metadata address
//   file:PATH         a notice once the file exists; its first word may be the seconds, else 30
//   command:COMMAND   run by /bin/sh. Exit code 0: the machine goes; its output may have the seconds.
//                     Exit code 1: the machine stays.
// Throws UsageError for anything else.
std::unique_ptr<NoticeSource> make_notice_source(const std::string& from, const NoticeOptions& options = {});

}  // namespace modelet::agent
