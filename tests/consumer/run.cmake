# The steps of the consumer test. Each must succeed. Nothing of an earlier run is used.
file(REMOVE_RECURSE ${work})
set(documents ${work}/prefix/share/doc/modelet)
foreach(step
    "${CMAKE_COMMAND};--install;${build};--prefix;${work}/prefix"
    "${CMAKE_COMMAND};-S;${source};-B;${work}/build;-G;${generator};-DCMAKE_PREFIX_PATH=${work}/prefix;-DCMAKE_CXX_COMPILER=${compiler};-DCMAKE_CXX_FLAGS=${flags}"
    "${CMAKE_COMMAND};--build;${work}/build"
    "${work}/build/consumer;${work}"
    "${CMAKE_COMMAND};-E;env;MODELET_CACHE=${work}/cache;${work}/prefix/bin/modelet;plan;${documents}/experiments/quickstart.toml;--gflops;10;--memory-gbps;5"
    "${work}/prefix/bin/modelet;version")
  execute_process(COMMAND ${step} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${step}\nfailed with ${result}:\n${output}")
  endif()
endforeach()
foreach(program modelet modelet-agent modelet-scheduler)
  list(APPEND expected share/man/man1/${program}.1 share/bash-completion/completions/${program}
       share/zsh/site-functions/_${program} share/fish/vendor_completions.d/${program}.fish)
endforeach()
list(TRANSFORM expected PREPEND ${work}/prefix/)
list(APPEND expected ${documents}/LICENSE ${documents}/README.md ${documents}/docs/experiment.md ${documents}/experiments/report.py)
foreach(file ${expected})
  file(SIZE ${file} size) # fails if it is missing
  if(size EQUAL 0)
    message(FATAL_ERROR "${file} is empty")
  endif()
endforeach()
message(STATUS "${output}")
