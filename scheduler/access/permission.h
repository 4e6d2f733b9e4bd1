// The rules that say who may send which message to the scheduler. Agents and users have keys of their own
// (comm/security/keys.h). Pure functions; any thread may call them.
#pragma once

#include <string>

#include "comm/control/control.h"

namespace modelet::scheduler {

// What to tell the owner of a key that the scheduler does not know.
std::string unknown_text(const comm::Identity& sender);

// Returns the reason why `sender` may not send this message, or "" if it may. In a pool without keys
// everybody may send everything. A stranger may only ask to be let in.
std::string why_not(const comm::Identity& sender, const comm::control::ToSchedulerMessage& message);

// Whether `sender` may watch and stop a run that the key `submitter` submitted. That key and administrators
// may. In a pool without keys everybody may.
bool may_lead(const comm::Identity& sender, const std::string& submitter);

}  // namespace modelet::scheduler
