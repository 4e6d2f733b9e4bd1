#include "base/system/service_notice.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "base/error.h"
#include "base/system/log.h"
#include "base/text/printable.h"

namespace modelet {
namespace {

constexpr const char* kVariable = "NOTIFY_SOCKET";

std::string manager_address() {
  const char* const value = std::getenv(kVariable);
  std::string address = value == nullptr ? "" : value;
  if (address.empty()) return address;
  const bool is_abstract = address.front() == '@';
  if ((!is_abstract && address.front() != '/') || address.size() < 2 ||
      address.size() >= sizeof(sockaddr_un::sun_path))
    throw UsageError(
        std::string("the variable ") + kVariable + " is '" + printable(address) +
        "', and must be the path of a Unix socket, or '@' and its abstract name: correct it, or unset it");
  if (is_abstract) address.front() = '\0';
  return address;
}

}  // namespace

ServiceNotice::ServiceNotice()
    : address_(manager_address()),
      socket_(address_.empty() ? -1 : ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}

void ServiceNotice::ready() {
  if (ready_) return;
  ready_ = true;
  send("READY=1");
}

void ServiceNotice::status(const std::string& text) {
  if (text == status_) return;
  status_ = text;
  send("STATUS=" + printable(text));
}

void ServiceNotice::stopping() {
  if (stopping_) return;
  stopping_ = true;
  send("STOPPING=1");
}

void ServiceNotice::send(const std::string& text) {
  if (address_.empty()) return;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::ranges::copy(address_, to.sun_path);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
  if (::sendto(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to),
               bytes) >= 0 ||
      failed_)
    return;
  failed_ = true;
  log_warning("{}; the service manager does not learn how this program is doing ({})",
              errno_text("a notice to the service manager"), kVariable);
}

}  // namespace modelet
