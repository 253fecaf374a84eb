# loom_add_program, loom_add_test, loom_add_bench: every target of the project is made by one of these, or by loom_add_library
# (LoomRooms.cmake).

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(loom_library_flags INTERFACE)
target_compile_options(loom_library_flags INTERFACE -Wall -Wextra -Wpedantic -Wno-psabi)
# std::stable_sort of libstdc++ 12 calls what C++20 has deprecated.
target_compile_options(loom_library_flags INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)
# Options of all folders; a target's own come after them.
# GCC collects garbage later: a tenth off the compile time, for at most 1 GiB more memory a compiler.
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-expand=1000;--param=ggc-min-heapsize=1048576>")
# Of code that does no arithmetic. With expensive optimisations GCC clears the upper halves of vector registers, without which
# the C library's exp() takes eight times as long on an Intel processor.
set(LOOM_LIGHT_OPTIMISATION $<$<CONFIG:Release>:-O1> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fexpensive-optimizations>)
if(LOOM_SANITIZE)
  add_compile_options(-fsanitize=${LOOM_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LOOM_SANITIZE})
endif()
if(LOOM_SANITIZE MATCHES "undefined")
  # The address sanitizer finds what null and object-size look for; these four are two thirds of the compile time.
  # engine/kernels, which reads raw memory, asks for alignment again.
  add_compile_options(-fno-sanitize=null,object-size,vptr,alignment)
endif()
include(LoomProcessors)

# Programs link loom_flags, libraries loom_library_flags.
add_library(loom_flags INTERFACE)
target_link_libraries(loom_flags INTERFACE loom_library_flags)
if(LOOM_SANITIZE MATCHES "address")
  add_library(loom_keep_plugins OBJECT "${CMAKE_CURRENT_LIST_DIR}/keep_plugins.c")
  target_sources(loom_flags INTERFACE $<TARGET_OBJECTS:loom_keep_plugins>)
endif()

# The targets of rooms, programs and tests, one line each: "name | folder | sources | public links | private links". Read by tests/build.
set(LOOM_EDGES_FILE "${CMAKE_BINARY_DIR}/link_edges.txt")
file(WRITE "${LOOM_EDGES_FILE}" "")
function(loom_note_edges name sources public private)
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  foreach(list sources public private)
    list(JOIN ${list} " " ${list})
  endforeach()
  file(APPEND "${LOOM_EDGES_FILE}" "${name} | ${folder} | ${sources} | ${public} | ${private}\n")
endfunction()

# loom_add_program(name SOURCES ... LINK ... [INSTALL]): an executable; with INSTALL it goes to bin/.
function(loom_add_program name)
  cmake_parse_arguments(ARG "INSTALL" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${ARG_LINK} loom_flags)
  if(ARG_INSTALL)
    set_property(GLOBAL APPEND PROPERTY LOOM_PROGRAMS ${name})
  endif()
  loom_note_edges(${name} "${ARG_SOURCES}" "" "${ARG_LINK}")
endfunction()

# loom_add_operator_library(name SOURCES ...): a library of custom operators, <name>.so, which links nothing (engine/custom_op/abi.h).
function(loom_add_operator_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  add_library(${name} MODULE ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden)
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE loom_library_flags)
  loom_note_edges(${name} "${ARG_SOURCES}" "" "shardloom::custom_op")  # its header
endfunction()

# Without optimisation, tests compile in three quarters of the time or less. What they test is optimised as the preset
# says, and programs of many tests link it first (loom_link_optimised_first).
function(loom_compile_as_test target)
  target_compile_options(${target} PRIVATE -O0 ${LOOM_TEST_OPTIONS})
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL EXECUTABLE)
    return()
  endif()
  if(LOOM_TEST_HEADER)
    target_precompile_headers(${target} REUSE_FROM ${LOOM_TEST_HEADER})
  endif()
  target_link_options(${target} PRIVATE ${LOOM_TEST_LINK_OPTIONS})
endfunction()

# ctest counts half cores, so that a test which mostly waits, labelled `waits`, takes one half while others compute: at the end
# of the folder that calls this, PROCESSORS of its tests, which is 1 or a number of cores, becomes a number of halves.
function(loom_count_half_cores)
  get_property(counted DIRECTORY PROPERTY LOOM_COUNTS_HALF_CORES)
  if(NOT counted)
    set_property(DIRECTORY PROPERTY LOOM_COUNTS_HALF_CORES ON)
    cmake_language(DEFER CALL loom_double_processors)
  endif()
endfunction()
function(loom_double_processors)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(name IN LISTS tests)
    get_test_property(${name} LABELS labels)
    get_test_property(${name} PROCESSORS cores)
    set(halves 2)
    if("waits" IN_LIST labels)
      set(halves 1)
    elseif(cores)
      math(EXPR halves "2 * ${cores}")
    endif()
    set_tests_properties(${name} PROPERTIES PROCESSORS ${halves})
  endforeach()
endfunction()

# loom_add_test_library(name SOURCES ... LINK ...): code that several test programs share; alias shardloom::<name>, not
# installed.
function(loom_add_test_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(loom_${name} STATIC ${ARG_SOURCES})
  add_library(shardloom::${name} ALIAS loom_${name})
  target_link_libraries(loom_${name} PUBLIC ${ARG_LINK} loom_flags)
  loom_compile_as_test(loom_${name})
  loom_group_sources(loom_${name})
  loom_note_edges(${name} "${ARG_SOURCES}" "${ARG_LINK}" "")
endfunction()

# loom_add_reference_program(name SOURCES ... LINK ... [ALONE]): a program that a test runs with arguments. Its sources define
# `int main_of_<name>(int argc, char** argv)`, and are compiled with those of other programs (loom_finish_tests). One that
# stands ALONE is a program for a person, not for a test, and defines `main`.
function(loom_add_reference_program name)
  cmake_parse_arguments(ARG "ALONE" "" "SOURCES;LINK" ${ARGN})
  if(ARG_ALONE)
    loom_add_program(${name} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK})
    loom_group_sources(${name})
  else()
    set(main "${CMAKE_CURRENT_BINARY_DIR}/main_of_${name}.cpp")
    file(CONFIGURE OUTPUT "${main}" CONTENT
      "int main_of_${name}(int argc, char** argv);\nint main(int argc, char** argv) { return main_of_${name}(argc, argv); }\n")
    set_source_files_properties("${main}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    add_executable(${name} "${main}")
    target_link_libraries(${name} PRIVATE loom_reference_programs loom_flags)
    loom_link_optimised_first(${name})
    loom_note_edges(${name} "${ARG_SOURCES}" "" "${ARG_LINK}")
    loom_note_together(REFERENCE ${name} "${ARG_SOURCES}" "${ARG_LINK}")
  endif()
  loom_compile_as_test(${name})
  loom_count_half_cores()
endfunction()

# loom_define_for_tests(target): what the sources of tests know of the build.
function(loom_define_for_tests target)
  target_compile_definitions(${target} PRIVATE LOOM_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LOOM_VERSION_OF_TEST="${PROJECT_VERSION}")
  if(LOOM_SANITIZE)
    target_compile_definitions(${target} PRIVATE LOOM_SANITIZED)
  endif()
endfunction()

# loom_add_test_program(name sources link definitions): a GoogleTest program. It knows the path of shardloom, or of the program that
# its definitions give in its place.
function(loom_add_test_program name sources link definitions)
  if(NOT definitions MATCHES "SHARDLOOM_PROGRAM")
    list(APPEND definitions SHARDLOOM_PROGRAM="$<TARGET_FILE:shardloom>")
  endif()
  add_executable(${name} ${sources})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_definitions(${name} PRIVATE ${definitions})
  target_link_libraries(${name} PRIVATE ${link} GTest::gmock GTest::gtest loom_flags)
  loom_compile_as_test(${name})
  loom_define_for_tests(${name})
  loom_group_sources(${name})
endfunction()

# loom_add_test(name SOURCES ... LINK ... [LABELS ...] [DEFINITIONS ...] [ALONE]): a GoogleTest program, one CTest entry. Label
# `unit` by default. It may be a link to one program of many (LoomTestProgram.cmake), so a definition has one value in all
# programs; one that has other values or options of its own stands ALONE.
# Sources NAME_regex_test.cpp need regular expressions, and are left out without LOOM_TEXT.
# The target tests_<label> builds the test programs of a label.
function(loom_add_test name)
  cmake_parse_arguments(ARG "ALONE" "" "SOURCES;LINK;LABELS;DEFINITIONS" ${ARGN})
  if(NOT LOOM_TEXT)
    list(FILTER ARG_SOURCES EXCLUDE REGEX "_regex_test\\.cpp$")
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  loom_is_together("${ARG_LABELS}" together)
  if(together AND NOT ARG_ALONE)
    loom_put_together(${name} "${ARG_SOURCES}" "${ARG_LINK}" "${ARG_DEFINITIONS}")
  else()
    loom_add_test_program(${name} "${ARG_SOURCES}" "${ARG_LINK};GTest::gtest_main" "${ARG_DEFINITIONS}")
  endif()
  add_test(NAME ${name} COMMAND "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600)
  loom_count_half_cores()
  loom_note_edges(${name} "${ARG_SOURCES}" "" "${ARG_LINK}")
  foreach(label ${ARG_LABELS})
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${name})
  endforeach()
endfunction()

# loom_add_program_test(name [source ...]): <name>.cpp and further sources, which run the built shardloom program. Its ranks
# take both cores of a small machine, so it runs alone. Label `program`.
function(loom_add_program_test name)
  loom_add_test(${name} SOURCES ${name}.cpp ${ARGN} LINK fmt::fmt nlohmann_json::nlohmann_json LABELS program)
  add_dependencies(${name} shardloom)
  set_tests_properties(${name} PROPERTIES PROCESSORS 2)
endfunction()

# loom_run_in_two(name cost): two entries of ctest share the tests of a program, so that two cores are in use. Entries begin
# in the order of their costs, the highest first: about their seconds, with 1000 for those that use one core.
function(loom_run_in_two name cost)
  get_test_property(${name} LABELS labels)
  get_test_property(${name} TIMEOUT timeout)
  add_test(NAME ${name}_2 COMMAND "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  set_tests_properties(${name}_2 PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} PROCESSORS 1 COST ${cost}
    ENVIRONMENT "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=1")
  set_tests_properties(${name} PROPERTIES PROCESSORS 1 COST ${cost} ENVIRONMENT "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=0")
endfunction()

# loom_add_bench(name SOURCES ... LINK ...): a Google Benchmark program. What it measures is in libraries: -O1 is enough.
function(loom_add_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} benchmark::benchmark loom_flags)
  target_compile_options(${name} PRIVATE ${LOOM_LIGHT_OPTIMISATION})
endfunction()
