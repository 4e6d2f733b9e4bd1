// A thread that takes only what nobody else wants of the machine.
#pragma once

namespace modelet {

// The calling thread gets SCHED_IDLE and the idle class of I/O, for good: an ordinary process may not take
// that back (sched(7), RLIMIT_NICE). Threads that it starts later inherit both. Among the threads of one
// control group it gets less than 1 % of a core that others want; groups share as their weights say. Does
// nothing where the system does not allow it. Cheap after the first call.
void become_idle_thread();

}  // namespace modelet
