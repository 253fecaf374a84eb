# loom_finish_tests: with LOOM_TESTS_TOGETHER, the GoogleTest sources of most test programs are one program, all_tests, so that a
# group of sources holds tests of several folders: what they include and instantiate is most of the time to compile them.
#
# NAME, a program of loom_add_test, is a link to all_tests, which runs the tests of NAME's sources (tests/support/all_tests.cpp).
# A sanitizer's build takes the tests of its label only, and those that stand alone are programs as before.
# Reference programs are programs, whose sources are one library.

# loom_is_together(labels result): whether a test of these labels is part of all_tests.
function(loom_is_together labels result)
  set(label "")
  if(LOOM_SANITIZE MATCHES "address")
    set(label asan)
  elseif(LOOM_SANITIZE MATCHES "thread")
    set(label tsan)
  endif()
  set(together ${LOOM_TESTS_TOGETHER})
  if(NOT LOOM_UNITY OR (LOOM_SANITIZE AND NOT label IN_LIST labels))
    set(together OFF)
  endif()
  set(${result} ${together} PARENT_SCOPE)
endfunction()

# loom_note_together(kind name sources link): sources of the program `name`, for one of the two targets of loom_finish_tests.
function(loom_note_together kind name sources link)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    set_property(GLOBAL APPEND PROPERTY LOOM_${kind}_SOURCES "${source}")
    set_property(GLOBAL APPEND PROPERTY LOOM_${kind}_ROWS "${name} ${source}")
  endforeach()
  set_property(GLOBAL APPEND PROPERTY LOOM_${kind}_LINK "${link}")
endfunction()

# loom_take_together(kind): sets `sources` and `link` to what loom_note_together was given.
macro(loom_take_together kind)
  get_property(sources GLOBAL PROPERTY LOOM_${kind}_SOURCES)
  get_property(link GLOBAL PROPERTY LOOM_${kind}_LINK)
  list(REMOVE_DUPLICATES sources)
  list(REMOVE_DUPLICATES link)
endmacro()

# loom_put_together(name sources link definitions): the target `name` is a link to all_tests.
function(loom_put_together name sources link definitions)
  loom_note_together(TEST ${name} "${sources}" "${link}")
  set_property(GLOBAL APPEND PROPERTY LOOM_TEST_DEFINITIONS "${definitions}")
  set_property(GLOBAL APPEND PROPERTY LOOM_TEST_PROGRAMS "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  add_custom_target(${name})
  add_dependencies(${name} all_tests)
endfunction()

# loom_finish_tests(): called once, when all tests are declared.
function(loom_finish_tests)
  loom_take_together(REFERENCE)
  add_library(loom_reference_programs STATIC EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(loom_reference_programs PUBLIC ${link} GTest::gtest loom_flags)
  loom_compile_as_test(loom_reference_programs)
  loom_define_for_tests(loom_reference_programs)
  loom_group_sources(loom_reference_programs)

  loom_note_edges(all_tests support/all_tests.cpp "" "")
  loom_take_together(TEST)
  if(NOT sources)
    return()
  endif()
  get_property(definitions GLOBAL PROPERTY LOOM_TEST_DEFINITIONS)
  get_property(programs GLOBAL PROPERTY LOOM_TEST_PROGRAMS)
  get_property(rows GLOBAL PROPERTY LOOM_TEST_ROWS)
  list(REMOVE_DUPLICATES definitions)
  list(JOIN rows "\n" rows)
  set(table "${CMAKE_CURRENT_BINARY_DIR}/all_tests.txt")
  file(CONFIGURE OUTPUT "${table}" CONTENT "${rows}\n")
  loom_add_test_program(all_tests "support/all_tests.cpp;${sources}" "${link}" "LOOM_TEST_PROGRAMS=\"${table}\";${definitions}")
  loom_link_optimised_first(all_tests)
  set(links "")
  foreach(program IN LISTS programs)
    cmake_path(GET program PARENT_PATH folder)
    file(RELATIVE_PATH path "${folder}" "${CMAKE_CURRENT_BINARY_DIR}/all_tests")
    list(APPEND links COMMAND ${CMAKE_COMMAND} -E create_symlink "${path}" "${program}")
  endforeach()
  add_custom_command(TARGET all_tests POST_BUILD ${links} VERBATIM)
endfunction()
