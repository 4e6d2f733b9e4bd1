// Version of the programs and of the CMake package, which reads it here.
#pragma once

namespace modelet {

inline constexpr const char* kVersion = "0.2.0";

}  // namespace modelet
