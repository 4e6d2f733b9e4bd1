// The rules that say who may send which message to the scheduler. Agents and users have keys of their own
// (comm/security/keys.h). Pure functions; any thread may call them.
#pragma once

#include <string>

#include "comm/control/control.h"

namespace modelet::scheduler {

// Returns the reason why `sender` may not send this message, or "" if it may. In a pool without keys
// everybody may send everything.
std::string why_not(const comm::Identity& sender, const comm::control::ToSchedulerMessage& message);

// Whether `sender` may watch and stop a run that the key `submitter` submitted. That key and administrators
// may. In a pool without keys everybody may.
bool may_lead(const comm::Identity& sender, const std::string& submitter);

}  // namespace modelet::scheduler
