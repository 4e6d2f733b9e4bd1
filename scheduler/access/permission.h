// Who may send what to the scheduler: agents and users have keys of their own (comm/security/keys.h). Pure;
// any thread.
#pragma once

#include <string>

#include "comm/control/control.h"

namespace modelet::scheduler {

// The reason why `sender` may not send this; empty if it may. In a pool without keys everybody may send
// everything.
std::string why_not(const comm::Identity& sender, const comm::control::ToSchedulerMessage& message);

// Whether `sender` may watch and stop a run that the key `submitter` submitted: that key, administrators, and
// in a pool without keys everybody.
bool may_lead(const comm::Identity& sender, const std::string& submitter);

}  // namespace modelet::scheduler
