# Installs share/doc/shardloom/copyright: the license, and the copyright texts of the Debian packages whose code is
# compiled into the program. Run by `cmake --install` with SOURCE, the root of the tree, STAGE, a folder for the text, and
# SHARE, share/ below the prefix.
set(compiled_in libbiosoup-dev libcli11-dev libeigen3-dev libjs-chart.js nlohmann-json3-dev)

file(READ "${SOURCE}/LICENSE" license)
set(text "Shardloom is licensed under the Apache License, Version 2.0:\n${license}")
foreach(package ${compiled_in})
  set(copyright "/usr/share/doc/${package}/copyright")
  if(EXISTS "${copyright}")
    file(READ "${copyright}" terms)
    string(APPEND text "\n\nThe program contains code of Debian's package ${package}:\n\n${terms}")
  endif()
endforeach()
file(WRITE "${STAGE}/copyright" "${text}")
file(INSTALL "${STAGE}/copyright" DESTINATION "${CMAKE_INSTALL_PREFIX}/${SHARE}/doc/shardloom")
