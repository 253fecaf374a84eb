# Promise: `cpack -G DEB` packages the program with every preset, the completions and the copyright, and no headers or
# libraries; the package depends on the shared libraries of the program and recommends mpirun; unpacked, the program finds
# its presets where the source tree and the build are not, plans, and trains the quick start.
# cmake -DBUILD=<build folder> -DCPACK=<cpack> -DMPI=<LOOM_MPI> -DSOURCE=<source tree> -DVERSION=<of the project> -P ...
include("${CMAKE_CURRENT_LIST_DIR}/installed.cmake")
run("${CPACK}" -G DEB --config "${BUILD}/CPackConfig.cmake" -B "${WORK}")
file(GLOB package "${WORK}/shardloom_${VERSION}_*.deb")

run(dpkg-deb -I "${package}")
foreach(field "Package: shardloom" "Version: ${VERSION}" "Section: science" "Maintainer: [^\n]+ <[^\n]+@[^\n]+>"
    "Description: [^\n]+" "Depends: [^\n]*libc6 [^\n]*libstdc\\+\\+6 [^\n]*libyaml-cpp0[^\n]*")
  expect("\n ${field}\n")
endforeach()
if(MPI)
  expect("\n Depends: [^\n]*libopenmpi")
  expect("\n Recommends: openmpi-bin\n")
endif()

run(dpkg-deb -c "${package}")
expect("-rwxr-xr-x root/root [^\n]* \\./usr/bin/shardloom\n")
if(output MATCHES "[^\n]*(\\.a|\\.h|\\.cmake)\n")
  fail("the package of the program has ${CMAKE_MATCH_0}")
endif()

run(dpkg-deb -x "${package}" root)
set(share "${WORK}/root/usr/share")
file(GLOB_RECURSE presets RELATIVE "${SOURCE}" "${SOURCE}/configs/*")
list(TRANSFORM presets PREPEND shardloom/)
foreach(file ${presets} bash-completion/completions/shardloom zsh/vendor-completions/_shardloom
    fish/vendor_completions.d/shardloom.fish doc/shardloom/copyright)
  if(NOT EXISTS "${share}/${file}")
    fail("share/${file} is not in the package")
  endif()
endforeach()
run(bash -c ". '${share}/bash-completion/completions/shardloom' && complete -p shardloom")
file(READ "${share}/doc/shardloom/copyright" output)
expect("Apache License.*Debian's package libjs-chart.js:")

hide_tree()
run(${hidden} "${WORK}/root/usr/bin/shardloom" --version)
expect("^shardloom ${VERSION}\n$")
run(${hidden} "${WORK}/root/usr/bin/shardloom" plan --model-config llama3_8b --use-torch-fsdp2 --fsdp2-config full_shard
  --world-size 64 --device h200 --seq-length 8192)
expect("64 x h200")
file(MAKE_DIRECTORY "${WORK}/docs")
file(COPY "${SOURCE}/LICENSE" DESTINATION "${WORK}/docs")
run(${hidden} "${WORK}/root/usr/bin/shardloom" train --model-config quickstart --data-path docs --bytes-as-tokens --train-iters 3
  --nproc-per-node 2 --use-torch-fsdp2 --fsdp2-config quickstart --save out)
expect("step 3/3  loss ")
if(NOT EXISTS "${WORK}/out")
  fail("train --save out wrote nothing")
endif()
file(REMOVE_RECURSE "${WORK}")
