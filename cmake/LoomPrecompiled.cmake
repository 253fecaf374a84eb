# Precompiled headers for code that clang compiles without optimisation, where reading headers is most of the time: the
# products of the sanitizers' builds here, the tests in LoomTestCompiler.cmake. (GCC gains a tenth, and then does not.)

# loom_add_precompiled_header(name HEADER OPTIONS ... [LINK ...]): the target `name` has a precompiled header, which other
# targets of the same kind (PROGRAM, or library) and options take with target_precompile_headers(... REUSE_FROM name).
function(loom_add_precompiled_header name)
  cmake_parse_arguments(ARG "PROGRAM" "HEADER" "OPTIONS;LINK" ${ARGN})
  if(ARG_PROGRAM)
    add_executable(${name} EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp")
  else()
    add_library(${name} OBJECT EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp")
  endif()
  # ccache takes headers without a time stamp.
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS} -fpch-instantiate-templates -Xclang -fno-pch-timestamp)
  target_link_libraries(${name} PRIVATE ${ARG_LINK} fmt::fmt nlohmann_json::nlohmann_json loom_library_flags)
  target_precompile_headers(${name} PRIVATE "${PROJECT_SOURCE_DIR}/${ARG_HEADER}")
endfunction()

if(LOOM_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  loom_add_precompiled_header(loom_header HEADER cmake/precompiled.h OPTIONS -O0)
  if(LOOM_FUZZ)
    loom_add_precompiled_header(loom_header_watched HEADER cmake/precompiled.h OPTIONS -O0 -fsanitize=fuzzer-no-link)
  endif()
endif()
