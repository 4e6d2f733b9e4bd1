# Steps of the consumer test; each must succeed. Nothing of an earlier run is used.
file(REMOVE_RECURSE ${work})
foreach(step
    "${CMAKE_COMMAND};--install;${build};--prefix;${work}/prefix"
    "${CMAKE_COMMAND};-S;${source};-B;${work}/build;-G;${generator};-DCMAKE_PREFIX_PATH=${work}/prefix;-DCMAKE_CXX_COMPILER=${compiler};-DCMAKE_CXX_FLAGS=${flags}"
    "${CMAKE_COMMAND};--build;${work}/build"
    "${work}/build/consumer;${work}"
    "${work}/prefix/bin/modelet;version")
  execute_process(COMMAND ${step} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${step}\nfailed with ${result}:\n${output}")
  endif()
endforeach()
message(STATUS "${output}")
