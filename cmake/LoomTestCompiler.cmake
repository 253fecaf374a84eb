# Included by tests/CMakeLists.txt: how the folders below compile test programs.
#
# Without optimisation, clang takes two thirds of GCC's time, and half of it with a precompiled header. Where GCC builds the
# product, clang compiles the tests if the machine has it (LOOM_TEST_COMPILER; empty: the product's compiler does).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT LOOM_SANITIZE)
  find_program(LOOM_TEST_COMPILER clang++-19 DOC "clang that compiles the tests; empty: the compiler of the product does")
else()
  set(LOOM_TEST_COMPILER "")  # also where this folder was configured without sanitizers before
endif()
set(LOOM_TEST_HEADER)  # the target whose precompiled header test programs share, where clang compiles them
set(LOOM_TEST_OPTIONS)
if(LOOM_TEST_COMPILER)
  message(STATUS "${LOOM_TEST_COMPILER} compiles the tests")
  set(LOOM_PRODUCT_COMPILE_OBJECT "${CMAKE_CXX_COMPILE_OBJECT}")  # tests/kernels takes it back
  set(CMAKE_CXX_COMPILE_OBJECT "\"${LOOM_TEST_COMPILER}\" <DEFINES> <INCLUDES> <FLAGS> -o <OBJECT> -c <SOURCE>")
  set_directory_properties(PROPERTIES COMPILE_OPTIONS "")  # GCC's
  # Sums are rounded as GCC does without optimisation.
  set(LOOM_TEST_OPTIONS -Wno-unknown-warning-option -Wno-deprecated-declarations -ffp-contract=off)
endif()

if(LOOM_TEST_COMPILER OR CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(LOOM_TEST_HEADER loom_test_header)
  loom_add_precompiled_header(loom_test_header PROGRAM OPTIONS -O0 ${LOOM_TEST_OPTIONS} ${LOOM_CLANG_HEADER_OPTIONS}
    HEADERS <gmock/gmock.h> <gtest/gtest.h> LINK GTest::gmock GTest::gtest)
endif()
