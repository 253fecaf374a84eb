# Promise: after `cmake --install`, a project elsewhere needs find_package(shardloom) or find_package(Shardloom) and nothing
# else; the installed example builds there and trains.
# cmake -DBUILD=<build folder> -DCONSUMER=<project> -DWORK=<scratch folder> -DCXX=<compiler> -DLAUNCHER=<ccache or empty>
#   -DPROGRAMS=<installed programs> -DSOURCE=<source tree> -P ...
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
function(build project folder)
  run("${CMAKE_COMMAND}" -S "${project}" -B "${folder}" -G Ninja -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
  run("${CMAKE_COMMAND}" --build "${folder}")
endfunction()

build("${CONSUMER}" "${WORK}/build")
run("${WORK}/build/consumer")
if(NOT output STREQUAL "3 6 9 12\n")
  message(FATAL_ERROR "the consumer printed '${output}', expected '3 6 9 12'")
endif()

foreach(file share/shardloom/configs/fsdp2/quickstart.yaml share/shardloom/configs/models/quickstart.yaml)
  if(NOT EXISTS "${prefix}/${file}")
    message(FATAL_ERROR "${file} is not installed")
  endif()
endforeach()
foreach(program ${PROGRAMS})
  run("${prefix}/bin/${program}" --help)
endforeach()

set(example "${prefix}/share/shardloom/examples/pretrain_transformers")
build("${example}" "${WORK}/example")
run("${CMAKE_COMMAND}" -E env "PROGRAM=${WORK}/example/pretrain_transformers" NPUS_PER_NODE=2 TRAIN_ITERS=2
  "HF_PATH=${SOURCE}/tests/reference/training/qwen2_w4_fp32" "DATA_PATH=${SOURCE}/README.md" "SAVE_PATH=${WORK}/model"
  bash "${example}/pretrain.sh" --held-out-fraction 0)
if(NOT output MATCHES "Qwen2ForCausalLM of [0-9]+ parameters on 2 ranks" OR NOT EXISTS "${WORK}/model/model.safetensors")
  message(FATAL_ERROR "the example printed '${output}'")
endif()
