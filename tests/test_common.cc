// Carries the precompiled headers of all test programs (tests/CMakeLists.txt), nothing else.
