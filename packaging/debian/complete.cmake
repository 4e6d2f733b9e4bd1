# Called by CPack when the components have been installed into their folders, before these become packages: what Debian wants of
# each of them beside the files of the project.
cmake_policy(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH packaging)
cmake_path(GET packaging PARENT_PATH source)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER ${component} name)
  set(package ${CPACK_DEBIAN_${name}_PACKAGE_NAME})
  set(top "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${component}")
  set(documents "${top}/usr/share/doc/${package}")

  # The changelog for users is Debian's, too. The licence is in the copyright file.
  file(MAKE_DIRECTORY "${documents}")
  file(REMOVE "${documents}/LICENSE")
  configure_file("${CMAKE_CURRENT_LIST_DIR}/copyright" "${documents}/copyright" COPYONLY)
  run(python3 -B "${CMAKE_CURRENT_LIST_DIR}/changelog.py" "${source}/CHANGELOG.md" ${package}
      "${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}" "${CPACK_PACKAGE_CONTACT}" "${documents}/changelog.Debian")
  file(GLOB_RECURSE pages "${top}/usr/share/man/*.1")
  run(gzip -9nf "${documents}/changelog.Debian" ${pages})

  # Debian's zsh looks for completions in another folder.
  if(EXISTS "${top}/usr/share/zsh/site-functions")
    file(RENAME "${top}/usr/share/zsh/site-functions" "${top}/usr/share/zsh/vendor-completions")
  endif()
  if(component STREQUAL "scheduler")
    configure_file("${CMAKE_CURRENT_LIST_DIR}/scheduler/scheduler.toml" "${top}/etc/modelet/scheduler.toml" COPYONLY)
  endif()
  run(chmod -R go-w,a+rX ${top})
endforeach()
