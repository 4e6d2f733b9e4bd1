// ServiceNotice: tells the service manager that started this process how it is doing: systemd, in a unit with
// Type=notify, which shows the state in `systemctl status` (sd_notify(3)). Without a manager that wants to
// know ($NOTIFY_SOCKET) it does nothing.
//
// The protocol is one datagram of text lines and is stable, so it is written out here: libsystemd would be a
// library more in each archive that is to run on any machine.
//
// One thread at a time. A notice that cannot be sent is logged once and otherwise ignored: the work goes on.
#pragma once

#include <string>

#include "base/system/descriptor.h"

namespace modelet {

class ServiceNotice {
 public:
  // Throws UsageError if $NOTIFY_SOCKET is no address of a Unix socket.
  ServiceNotice();

  // The service does what it is for. What follows the first call changes nothing.
  void ready();
  // One line for people: what the service does now. The same text is not sent again.
  void status(const std::string& text);
  // It has begun to end.
  void stopping();

 private:
  void send(const std::string& text);

  std::string address_;  // of the manager's socket, as the kernel takes it; empty: nobody wants to know
  Descriptor socket_;
  bool ready_ = false, stopping_ = false, failed_ = false;
  std::string status_;
};

}  // namespace modelet
