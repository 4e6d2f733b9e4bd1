# The compiler of this machine; a cross-build would find the other machine's as flatbuffers::flatc.
find_program(MODELET_FLATC flatc REQUIRED)

# modelet_flatbuffers(TARGET file.fbs...)
# Generates NAME_generated.h of each schema of the current folder at build time and lets TARGET, and what links it,
# include it as "FOLDER/NAME_generated.h". Generated headers are not in the repository.
function(modelet_flatbuffers target)
  foreach(schema ${ARGN})
    cmake_path(REMOVE_EXTENSION schema OUTPUT_VARIABLE name)
    cmake_path(GET name PARENT_PATH folder)
    set(header ${CMAKE_CURRENT_BINARY_DIR}/${name}_generated.h)
    add_custom_command(
      OUTPUT ${header}
      COMMAND ${MODELET_FLATC} --cpp --gen-object-api --scoped-enums -o ${CMAKE_CURRENT_BINARY_DIR}/${folder} ${schema}
      DEPENDS ${schema}
      WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
      COMMENT "Generating ${name}_generated.h")
    target_sources(${target} PRIVATE ${header})
  endforeach()
  # SYSTEM: warnings in generated code are nobody's business here.
  target_include_directories(${target} SYSTEM PUBLIC "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}>")
  target_link_libraries(${target} PUBLIC flatbuffers::flatbuffers)
endfunction()
