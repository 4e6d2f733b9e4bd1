# The steps of the consumer test. Each must succeed. Nothing of an earlier run is used.
file(REMOVE_RECURSE ${work})
set(documents ${work}/prefix/share/doc/modelet)
foreach(number RANGE 1 20)
  file(APPEND ${work}/train.txt "__label__fruit apple pear plum\n__label__tool hammer saw file\n")
endforeach()
foreach(step
    "${CMAKE_COMMAND};--install;${build};--prefix;${work}/prefix"
    "${CMAKE_COMMAND};-S;${source}/examples;-B;${work}/build;-G;${generator};-DCMAKE_PREFIX_PATH=${work}/prefix;-DCMAKE_CXX_COMPILER=${compiler};-DCMAKE_CXX_FLAGS=${flags}"
    "${CMAKE_COMMAND};--build;${work}/build"
    "${CMAKE_COMMAND};-E;env;MODELET_CACHE=${work}/cache;${work}/build/hello;${work}/train.txt;${work}/train.txt;${work}/run;an apple and a plum"
    "${CMAKE_COMMAND};-E;env;MODELET_CACHE=${work}/cache;${work}/prefix/bin/modelet;plan;${documents}/experiments/quickstart.toml;--gflops;10;--memory-gbps;5"
    "${work}/prefix/bin/modelet;version")
  execute_process(COMMAND ${step} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${step}\nfailed with ${result}:\n${output}")
  endif()
  string(APPEND outputs "${output}")
endforeach()
if(NOT outputs MATCHES "fruit\n *-?[0-9.]+  tool\n")
  message(FATAL_ERROR "hello does not call an apple a fruit:\n${outputs}")
endif()
# README.md shows a part of the example.
file(READ ${source}/README.md readme)
file(READ ${source}/examples/hello.cc hello)
if(NOT readme MATCHES "```cpp\n([^`]+)```")
  message(FATAL_ERROR "README.md does not show examples/hello.cc")
endif()
string(FIND "${hello}" "${CMAKE_MATCH_1}" place)
if(place EQUAL -1)
  message(FATAL_ERROR "README.md shows what examples/hello.cc does not have:\n${CMAKE_MATCH_1}")
endif()
foreach(program modelet modelet-agent modelet-scheduler)
  list(APPEND expected share/man/man1/${program}.1 share/bash-completion/completions/${program}
       share/zsh/site-functions/_${program} share/fish/vendor_completions.d/${program}.fish)
endforeach()
list(TRANSFORM expected PREPEND ${work}/prefix/)
list(APPEND expected ${documents}/LICENSE ${documents}/README.md ${documents}/docs/experiment.md ${documents}/experiments/quickstart.toml)
foreach(file ${expected})
  file(SIZE ${file} size) # fails if it is missing
  if(size EQUAL 0)
    message(FATAL_ERROR "${file} is empty")
  endif()
endforeach()
message(STATUS "${output}")
