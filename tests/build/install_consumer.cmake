# Promise: after `cmake --install`, a project elsewhere needs find_package(shardloom) or find_package(Shardloom), or pkg-config,
# and nothing else; its own models/ and engine/ are not in the way; its model with the migration guide's three bases trains on
# threads and under MPI; and everything runs where the source tree and the build are not.
# cmake -DBUILD=<build folder> -DCONSUMER=<project> -DCXX=<compiler> -DLAUNCHER=<ccache or empty> -DMPIRUN=<mpirun or empty>
#   -DPROGRAMS=<installed programs> -DSOURCE=<source tree> -DVERSION=<of the project> -P ...
include("${CMAKE_CURRENT_LIST_DIR}/installed.cmake")
set(prefix "${WORK}/prefix")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}")
function(build project folder)
  run("${CMAKE_COMMAND}" -S "${project}" -B "${folder}" -G Ninja -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
  run("${CMAKE_COMMAND}" --build "${folder}")
endfunction()

foreach(file share/shardloom/configs/fsdp2/quickstart.yaml share/shardloom/configs/models/quickstart.yaml
    share/doc/shardloom/LICENSE share/doc/shardloom/CHANGELOG.md include/shardloom/shardloom.h)
  if(NOT EXISTS "${prefix}/${file}")
    fail("${file} is not installed")
  endif()
endforeach()

# With CMake.
file(COPY "${CONSUMER}" DESTINATION "${WORK}")
# The project's own folders, of the same names as Shardloom's: each finds its own.
file(WRITE "${WORK}/consumer/models/hub/model_hub.h" "#pragma once\ninline constexpr int kOwnModelHub = 5;\n")
file(WRITE "${WORK}/consumer/engine/core/error.h" "#error \"found in the place of Shardloom's engine/core/error.h\"\n")
build("${WORK}/consumer" "${WORK}/build")
run("${WORK}/build/consumer")
expect("^3 6 9 12 5\n$")

# With pkg-config.
find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG)
  run(sh -c "PKG_CONFIG_PATH=$(dirname $(find '${prefix}' -name shardloom.pc)) && export PKG_CONFIG_PATH && \
'${PKG_CONFIG}' --modversion shardloom && \
'${CXX}' -std=c++20 -Iconsumer consumer/consumer.cpp -o by_pkg_config $('${PKG_CONFIG}' --cflags --libs shardloom) && ./by_pkg_config")
  expect("^${VERSION}\n3 6 9 12 5\n$")
endif()

set(example "${prefix}/share/shardloom/examples/pretrain_transformers")
build("${example}" "${WORK}/example")

hide_tree()
file(COPY "${SOURCE}/tests/reference/training/qwen2_w4_fp32" DESTINATION "${WORK}")
file(COPY "${SOURCE}/README.md" DESTINATION "${WORK}")

foreach(program ${PROGRAMS})
  run(${hidden} "${prefix}/bin/${program}" --help)
  run(${hidden} "${prefix}/bin/${program}" --version)
  expect("^shardloom ${VERSION}\n$")
endforeach()
run(${hidden} "${prefix}/bin/shardloom" plan --model-config llama3_8b --use-torch-fsdp2 --fsdp2-config full_shard
  --world-size 64 --device h200 --seq-length 8192)
expect("64 x h200")
run(${hidden} "${prefix}/bin/shardloom" train --model-config quickstart --data-path README.md --train-iters 1 --seq-length 32
  --nproc-per-node 2 --use-torch-fsdp2 --fsdp2-config quickstart --save quickstart)

run(${hidden} "${CMAKE_COMMAND}" -E env "PROGRAM=${WORK}/example/pretrain_transformers" NPUS_PER_NODE=2 TRAIN_ITERS=2
  "HF_PATH=${WORK}/qwen2_w4_fp32" "DATA_PATH=${WORK}/README.md" "SAVE_PATH=${WORK}/model"
  bash "${example}/pretrain.sh" --held-out-fraction 0)
expect("Qwen2ForCausalLM of [0-9]+ parameters on 2 ranks")
if(NOT EXISTS "${WORK}/model/model.safetensors")
  fail("the example saved nothing:\n${output}")
endif()

# The project's own model, data and loss: threads, then processes, which come to the same loss.
file(WRITE "${WORK}/own.yaml" "sharding_size: auto\n")
set(own "${WORK}/build/own_training")
set(flags --seq-length 6 --micro-batch-size 4 --train-iters 20 --lr 0.05 --use-torch-fsdp2 --fsdp2-config-path own.yaml)
run(${hidden} "${own}" ${flags} --nproc-per-node 2 --save own --metrics-path threads.jsonl)
expect("ColourVlm of [0-9]+ parameters on 2 ranks; colours")
expect("eye")
run(${hidden} "${own}" plan ${flags} --world-size 64 --device h200)
expect("64 x h200")
file(READ "${WORK}/own/config.json" config)
if(NOT config STREQUAL "{\"model_type\": \"colour_vlm\"}")
  fail("the model's config.json is ${config}")
endif()
if(MPIRUN)
  run(${hidden} "${CMAKE_COMMAND}" -E env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    "${MPIRUN}" --oversubscribe -n 2 "${own}" ${flags} --metrics-path processes.jsonl)
  foreach(file threads processes)
    file(STRINGS "${WORK}/${file}.jsonl" lines)
    list(GET lines 19 last)
    string(JSON loss_${file} GET "${last}" loss)
  endforeach()
  if(NOT loss_threads STREQUAL loss_processes)
    fail("the loss after 20 steps is ${loss_threads} on threads and ${loss_processes} on processes")
  endif()
endif()
# The model of the README trains and is planned.
set(small "${WORK}/build/readme_model")
set(small_flags --data-path README.md --seq-length 32 --micro-batch-size 4 --use-torch-fsdp2 --fsdp2-config-path own.yaml)
run(${hidden} "${small}" ${small_flags} --train-iters 2 --nproc-per-node 2)
expect("ByteModel of [0-9]+ parameters on 2 ranks")
run(${hidden} "${small}" plan ${small_flags} --world-size 64 --device h200)
expect("64 x h200")

# A device profile by name, from a program that lies outside of the package.
run(${hidden} "${own}" ${flags} --train-iters 1 --nproc-per-node 1 --report report.html --report-device h200)
file(REMOVE_RECURSE "${WORK}")
