# ISA-L, which ships no CMake package: the target ISAL::isal. Used by the build and by the installed package.
find_library(ISAL_LIBRARY isal)
find_path(ISAL_INCLUDE_DIR isa-l/crc.h)
mark_as_advanced(ISAL_LIBRARY ISAL_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ISAL REQUIRED_VARS ISAL_LIBRARY ISAL_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "apt-get install libisal-dev")

if(ISAL_FOUND AND NOT TARGET ISAL::isal)
  add_library(ISAL::isal UNKNOWN IMPORTED)
  set_target_properties(ISAL::isal PROPERTIES
    IMPORTED_LOCATION "${ISAL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${ISAL_INCLUDE_DIR}")
endif()
