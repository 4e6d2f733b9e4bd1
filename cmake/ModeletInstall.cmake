# Install + export: find_package(modelet) gives modelet::base, hashing, comm, shard, node_agent, scheduler.
# Components: client, agent, scheduler (the programs), development (the libraries). Each becomes a package (ModeletPackages.cmake).
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/modelet")
get_property(libraries GLOBAL PROPERTY MODELET_LIBRARIES)
install(TARGETS ${libraries} EXPORT modelet-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(EXPORT modelet-targets NAMESPACE modelet:: DESTINATION ${package_dir} COMPONENT development)
foreach(folder base hashing comm shard node_agent scheduler)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/modelet COMPONENT development
          FILES_MATCHING PATTERN "*.h")
endforeach()
install(DIRECTORY ${PROJECT_BINARY_DIR}/comm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/modelet COMPONENT development
        FILES_MATCHING PATTERN "*_generated.h" PATTERN "CMakeFiles" EXCLUDE)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/modelet-config.cmake.in
                              ${PROJECT_BINARY_DIR}/modelet-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/modelet-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/modelet-config.cmake ${PROJECT_BINARY_DIR}/modelet-config-version.cmake
              ${PROJECT_SOURCE_DIR}/cmake/ModeletDependencies.cmake
        DESTINATION ${package_dir} COMPONENT development)

# Documents and examples, in the folders that they have in the repository, so that they find each other: every link of an
# installed page leads to an installed file, and `mkdocs serve` shows the pages. Programs install their manual pages
# themselves (modelet_program).
set(documents DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT client)
foreach(file LICENSE README.md CHANGELOG.md CONTRIBUTING.md mkdocs.yml)
  install(FILES ${PROJECT_SOURCE_DIR}/${file} ${documents})
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples ${documents})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${documents} PATTERN "__pycache__" EXCLUDE)
file(GLOB examples CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/experiments/*.toml)
install(FILES ${examples} DESTINATION ${CMAKE_INSTALL_DOCDIR}/experiments COMPONENT client)
file(GLOB pages CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/experiments/*/README.md)
foreach(page ${pages})
  cmake_path(GET page PARENT_PATH folder)
  install(FILES ${PROJECT_SOURCE_DIR}/${page} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder} COMPONENT client)
endforeach()
install(PROGRAMS ${PROJECT_SOURCE_DIR}/experiments/python/read_checkpoint.py
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/experiments/python COMPONENT client)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/experiments/datasets/debian-deps
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/experiments/datasets COMPONENT client)

# The units name the programs by their full paths, which are those of the folder for which this build was configured.
foreach(part agent scheduler)
  set(unit modelet-${part}.service)
  configure_file(${PROJECT_SOURCE_DIR}/packaging/systemd/${unit}.in ${PROJECT_BINARY_DIR}/share/${unit} @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/share/${unit} DESTINATION lib/systemd/system COMPONENT ${part})
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/packaging/systemd/examples/agent/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/modelet-agent/examples
        COMPONENT agent)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/systemd/modelet.slice DESTINATION lib/systemd/system COMPONENT agent)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/packaging/monitoring DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/modelet-scheduler/examples
        COMPONENT scheduler)
