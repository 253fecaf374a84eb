# What makes builds quick: a fast linker for tests, and precompiled headers. Where clang compiles without optimisation,
# reading headers is most of the time: the products of the sanitizers' builds here, tests in LoomTestCompiler.cmake, fuzz
# targets in tests/fuzz. GCC gains a tenth where it optimises little: rooms with -O1 or -Og (LOOM_WITHOUT_ARITHMETIC).

# Programs of tests are linked by LLVM's linker if there is one: in a fifth of the time of binutils'.
find_program(LOOM_LLD ld.lld HINTS /usr/lib/llvm-19/bin DOC "LLVM's linker, for programs of tests; empty: the compiler's linker")
set(LOOM_TEST_LINK_OPTIONS)
if(LOOM_LLD)
  get_filename_component(folder "${LOOM_LLD}" DIRECTORY)
  set(LOOM_TEST_LINK_OPTIONS "-B${folder}" -fuse-ld=lld)
endif()

# Options of clang's headers; ccache takes those without a time stamp.
set(LOOM_CLANG_HEADER_OPTIONS -fpch-instantiate-templates -Xclang -fno-pch-timestamp)

# loom_add_precompiled_header(name [PROGRAM] OPTIONS ... [HEADERS ...] [LINK ...]): the target `name` has a precompiled header of
# LOOM_COMMON_HEADERS and HEADERS, which targets of the same kind (PROGRAM, or library) and options take with
# target_precompile_headers(... REUSE_FROM name). A source includes what it uses all the same: LOOM_UNITY=OFF compiles it without.
set(LOOM_COMMON_HEADERS <fmt/format.h> <nlohmann/json.hpp> <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <filesystem>
  <fstream> <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <string> <string_view> <thread>
  <unordered_map> <variant> <vector>)
function(loom_add_precompiled_header name)
  cmake_parse_arguments(ARG "PROGRAM" "" "OPTIONS;HEADERS;LINK" ${ARGN})
  set(source "${PROJECT_BINARY_DIR}/${name}.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "int main() {}\n")  # CMake wants a source
  if(ARG_PROGRAM)
    add_executable(${name} EXCLUDE_FROM_ALL "${source}")
  else()
    add_library(${name} OBJECT EXCLUDE_FROM_ALL "${source}")
  endif()
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} fmt::fmt nlohmann_json::nlohmann_json loom_library_flags)
  target_precompile_headers(${name} PRIVATE ${LOOM_COMMON_HEADERS} ${ARG_HEADERS})
endfunction()

if(LOOM_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  loom_add_precompiled_header(loom_header OPTIONS -O0 ${LOOM_CLANG_HEADER_OPTIONS})
  if(LOOM_FUZZ)
    loom_add_precompiled_header(loom_header_watched OPTIONS -O0 -fsanitize=fuzzer-no-link ${LOOM_CLANG_HEADER_OPTIONS})
  endif()
elseif(LOOM_UNITY AND NOT LOOM_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  loom_add_precompiled_header(loom_header_plain OPTIONS ${LOOM_PLAIN_OPTIONS})
  loom_add_precompiled_header(loom_header_once OPTIONS ${LOOM_ONCE_OPTIONS})
endif()
