# How every target of the project is declared: C++20, warnings, include root, export.
# Flags are properties of these targets alone; nothing is set globally and nothing leaks to a consumer.

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH MODELET_ROOT)

add_library(modelet_warnings INTERFACE)
target_compile_options(modelet_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                       -Wno-missing-field-initializers)

# Unity builds: the sanitizer presets compile several files of a library as one. So names in anonymous namespaces differ within a library.
set(MODELET_UNITY_OPTIONS $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>) # g++ takes the classes of included files for a header's
if(CMAKE_UNITY_BUILD)
  target_compile_options(modelet_warnings INTERFACE ${MODELET_UNITY_OPTIONS})
endif()

# Files that Highway includes once per instruction set stay alone. Under the sanitizers their additions to pointers are not
# checked, which takes clang most of its time there: what is read and written through them is checked.
function(modelet_simd_sources)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=.*undefined")
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -fno-sanitize=pointer-overflow)
  endif()
endfunction()

# modelet_computes_little(TARGET...): sanitizer builds do not optimise it, and so compile it in half the time.
function(modelet_computes_little)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
    foreach(target ${ARGN})
      target_compile_options(${target} PRIVATE -O0)
    endforeach()
  endif()
endfunction()

# modelet_library(NAME SOURCES file... [PUBLIC lib...] [PRIVATE lib...])
# Declares modelet_NAME (alias modelet::NAME) out of the current folder.
function(modelet_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(modelet_${name} STATIC ${ARG_SOURCES})
  add_library(modelet::${name} ALIAS modelet_${name})
  set_target_properties(modelet_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_compile_features(modelet_${name} PUBLIC cxx_std_20)
  target_include_directories(modelet_${name} PUBLIC "$<BUILD_INTERFACE:${MODELET_ROOT}>"
                             "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/modelet>")
  target_link_libraries(modelet_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE}
                        "$<BUILD_INTERFACE:modelet_warnings>")
  set_property(GLOBAL APPEND PROPERTY MODELET_LIBRARIES modelet_${name})
endfunction()

# modelet_program(NAME COMPONENT name SOURCES file... LIBS lib...): an installed executable with the manual page and the completions
# for shells that it makes of its own options (base/system/manual.h). Each component becomes a package (ModeletPackages.cmake).
function(modelet_program name)
  cmake_parse_arguments(ARG "" "COMPONENT" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} modelet_warnings $<TARGET_NAME_IF_EXISTS:modelet_older_system>)
  # All programs lie in one folder, so that `modelet` finds its agent and scheduler beside itself.
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${ARG_COMPONENT})
  set(made "${PROJECT_BINARY_DIR}/share/${name}")
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/share")
  add_custom_command(
    OUTPUT ${made}.1 ${made}.bash ${made}.zsh ${made}.fish
    COMMAND ${name} man > ${made}.1
    COMMAND ${name} completion bash > ${made}.bash
    COMMAND ${name} completion zsh > ${made}.zsh
    COMMAND ${name} completion fish > ${made}.fish
    DEPENDS ${name}
    VERBATIM)
  add_custom_target(${name}-manual ALL DEPENDS ${made}.1)
  install(FILES ${made}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${ARG_COMPONENT})
  install(FILES ${made}.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ${name} COMPONENT ${ARG_COMPONENT})
  install(FILES ${made}.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _${name} COMPONENT ${ARG_COMPONENT})
  install(FILES ${made}.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT ${ARG_COMPONENT})
endfunction()
