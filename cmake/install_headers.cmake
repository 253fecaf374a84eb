# Installs the public headers of the floors below include/shardloom. Run by `cmake --install` with SOURCE set, the root of
# the tree. A header is private, and left out, in a folder internal/ or when its first comment says "Private to ROOM.":
# the words that tests/build/private_headers.h holds the tree to.
file(GLOB_RECURSE headers RELATIVE "${SOURCE}"
  "${SOURCE}/engine/*.h" "${SOURCE}/sharding/*.h" "${SOURCE}/recompute/*.h" "${SOURCE}/offload/*.h" "${SOURCE}/models/*.h")
foreach(header ${headers})
  file(READ "${SOURCE}/${header}" text LIMIT 8192)
  string(REGEX MATCH "^(//[^\n]*\n)+" comment "${text}")
  string(REPLACE "\n//" "" comment "${comment}")
  if(header MATCHES "/internal/" OR comment MATCHES "Private to [a-z][a-z_0-9/]*\\.")
    continue()
  endif()
  get_filename_component(folder "${header}" DIRECTORY)
  file(INSTALL "${SOURCE}/${header}" DESTINATION "${CMAKE_INSTALL_PREFIX}/include/shardloom/${folder}")
endforeach()
