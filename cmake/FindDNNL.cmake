# oneDNN: the target DNNL::dnnl. Debian's own package file asks for OpenCL, which a CPU run does not need.
# Used by the build and by the installed package.
find_library(DNNL_LIBRARY dnnl)
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
mark_as_advanced(DNNL_LIBRARY DNNL_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DNNL REQUIRED_VARS DNNL_LIBRARY DNNL_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "apt-get install libdnnl-dev")

if(DNNL_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES
    IMPORTED_LOCATION "${DNNL_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${DNNL_INCLUDE_DIR}")
endif()
