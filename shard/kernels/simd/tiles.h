// Matrix tiles of bf16 (Intel AMX): whether this process may use them. Any thread.
#pragma once

namespace modelet::shard::kernels {

// Whether this processor has tiles that multiply bf16, and the operating system lets this process use them. The
// first call asks it.
bool machine_has_tiles();

}  // namespace modelet::shard::kernels
