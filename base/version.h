// Version of the programs.
#pragma once

namespace modelet {

inline constexpr const char* kVersion = "0.1.0";  // CMakeLists.txt: project(VERSION)

}  // namespace modelet
