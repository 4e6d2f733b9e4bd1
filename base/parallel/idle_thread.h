// Idle threads take only the CPU and disk time that nobody else wants.
#pragma once

namespace modelet {

// Puts the calling thread into SCHED_IDLE and the idle class of I/O, for good: an ordinary process may not
// undo this (sched(7), RLIMIT_NICE). Threads that it starts later inherit both. Within a control group the
// thread gets less than 1 % of a core that others want. Between control groups their weights decide. Does
// nothing where the system does not allow it. Cheap after the first call.
void become_idle_thread();

}  // namespace modelet
