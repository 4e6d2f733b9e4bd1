// Who may send the scheduler what: agents and users have keys of their own (comm/keys.h). Pure; any thread.
#pragma once

#include <string>

#include "comm/control.h"

namespace modelet::scheduler {

// Why `sender` may not send this; empty if it may. In a pool without keys everybody may send everything.
std::string why_not(const comm::Identity& sender, const comm::control::ToSchedulerMessage& message);

}  // namespace modelet::scheduler
