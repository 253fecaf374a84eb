# Installs the public headers of the floors as include/shardloom/..., and the umbrella header shardloom.h. Run by
# `cmake --install` with SOURCE, the root of the tree, STAGE, a folder for the installed texts, and LEFT_OUT, beginnings of
# paths that this build leaves out, with | between them. A header is private, and left out, in a folder internal/ or when
# its first comment says "Private to ROOM.": the words that tests/build/private_headers.h holds the tree to.
#
# In the tree, headers include each other as "engine/...". Installed, they say "shardloom/engine/...": their root is
# include/, and a user's own engine/ or models/ is never found in their place.
include("${CMAKE_CURRENT_LIST_DIR}/installed_includes.cmake")

file(GLOB_RECURSE headers RELATIVE "${SOURCE}"
  "${SOURCE}/engine/*.h" "${SOURCE}/sharding/*.h" "${SOURCE}/recompute/*.h" "${SOURCE}/offload/*.h" "${SOURCE}/models/*.h")
if(LEFT_OUT)
  list(FILTER headers EXCLUDE REGEX "^(${LEFT_OUT})")
endif()
foreach(header ${headers})
  file(READ "${SOURCE}/${header}" text LIMIT 8192)
  string(REGEX MATCH "^(//[^\n]*\n)+" comment "${text}")
  string(REPLACE "\n//" "" comment "${comment}")
  if(header MATCHES "/internal/" OR comment MATCHES "Private to [a-z][a-z_0-9/]*\\.")
    continue()
  endif()
  get_filename_component(folder "${header}" DIRECTORY)
  loom_installed_text("${SOURCE}/${header}" "${STAGE}/${header}")
  file(INSTALL "${STAGE}/${header}" DESTINATION "${CMAKE_INSTALL_PREFIX}/include/shardloom/${folder}")
endforeach()
loom_installed_text("${SOURCE}/cmake/shardloom.h" "${STAGE}/shardloom.h")
file(INSTALL "${STAGE}/shardloom.h" DESTINATION "${CMAKE_INSTALL_PREFIX}/include/shardloom")

# Examples that are projects of their own include as their users do.
set(example "examples/pretrain_transformers")
loom_installed_text("${SOURCE}/${example}/main.cpp" "${STAGE}/${example}/main.cpp")
file(INSTALL "${STAGE}/${example}/main.cpp" DESTINATION "${CMAKE_INSTALL_PREFIX}/share/shardloom/${example}")
