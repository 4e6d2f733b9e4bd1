// Threads that leave the CPU and the disk to others.
#pragma once

namespace modelet {

// Puts the calling thread into SCHED_IDLE and the idle class of I/O, for good: an ordinary process may not
// undo this (sched(7), RLIMIT_NICE). Threads that it starts later inherit both. Within a control group the
// thread gets less than 1 % of a core that others want. Between control groups their weights decide. Does
// nothing where the system does not allow it. Cheap after the first call.
void become_idle_thread();

// Gives the calling thread, and threads that it starts later, the smallest share of the disk that always gets
// on: others may wait for what they write. Has an effect where the disk's scheduler knows shares (BFQ).
void lower_io_priority();

}  // namespace modelet
