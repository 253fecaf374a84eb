# Promise: after `cmake --install`, a project elsewhere needs find_package(shardloom) and nothing else.
# cmake -DBUILD=<build folder> -DCONSUMER=<project> -DWORK=<scratch folder> -DCXX=<compiler> -DLAUNCHER=<ccache or empty> -P ...
file(REMOVE_RECURSE "${WORK}")
set(prefix "${WORK}/prefix")

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${code}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}")
run("${CMAKE_COMMAND}" -S "${CONSUMER}" -B "${WORK}/build" -G Ninja -DCMAKE_BUILD_TYPE=Release
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/consumer")
if(NOT output STREQUAL "3 3 3 1\n")
  message(FATAL_ERROR "the consumer printed '${output}', expected '3 3 3 1'")
endif()

foreach(file share/shardloom/configs/fsdp2/quickstart.yaml share/shardloom/configs/models/quickstart.yaml)
  if(NOT EXISTS "${prefix}/${file}")
    message(FATAL_ERROR "${file} is not installed")
  endif()
endforeach()
foreach(program ${PROGRAMS})
  run("${prefix}/bin/${program}" --help)
endforeach()
