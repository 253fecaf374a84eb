# libspng, whose Debian package ships no CMake package: the target SPNG::spng. Used by the build and by the installed package.
find_library(SPNG_LIBRARY spng)
find_path(SPNG_INCLUDE_DIR spng.h)
mark_as_advanced(SPNG_LIBRARY SPNG_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SPNG REQUIRED_VARS SPNG_LIBRARY SPNG_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "apt-get install libspng-dev")

if(SPNG_FOUND AND NOT TARGET SPNG::spng)
  add_library(SPNG::spng UNKNOWN IMPORTED)
  set_target_properties(SPNG::spng PROPERTIES
    IMPORTED_LOCATION "${SPNG_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${SPNG_INCLUDE_DIR}")
endif()
