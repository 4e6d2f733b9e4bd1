// Notices: something says that this machine goes away soon. Clouds tell so at an address of the machine; a file
// or a command stand for everything else.
//
// A source is asked from one thread. Whatever comes from it is limited in size, and each question in time.
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
  // Nothing: the machine stays, as far as is known. Error if the source cannot be asked, or talks nonsense.
  virtual std::optional<Notice> ask() = 0;
};

struct NoticeOptions {
  std::string address;  // of a cloud's metadata, "http://HOST:PORT", HOST as a number; empty: the cloud's own
  double timeout_seconds = 2;   // of a question
  std::function<double()> utc;  // seconds since 1970; null: the system's clock
};

// `from` is one of
//   aws, gcp, azure   the cloud's notices for spot machines, at its metadata address
//   file:PATH         once the file exists; its first word may be the number of seconds, else 30
//   command:COMMAND   asked by /bin/sh: exit code 0 and perhaps the seconds on its output, or 1: the machine stays
// UsageError for anything else.
std::unique_ptr<NoticeSource> make_notice_source(const std::string& from, const NoticeOptions& options = {});

}  // namespace modelet::agent
