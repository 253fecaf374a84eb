# libnuma, which ships no CMake package: the target NUMA::numa. Used by the build and by the installed package.
find_library(NUMA_LIBRARY numa)
find_path(NUMA_INCLUDE_DIR numa.h)
mark_as_advanced(NUMA_LIBRARY NUMA_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NUMA REQUIRED_VARS NUMA_LIBRARY NUMA_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "apt-get install libnuma-dev")

if(NUMA_FOUND AND NOT TARGET NUMA::numa)
  add_library(NUMA::numa UNKNOWN IMPORTED)
  set_target_properties(NUMA::numa PROPERTIES
    IMPORTED_LOCATION "${NUMA_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${NUMA_INCLUDE_DIR}")
endif()
