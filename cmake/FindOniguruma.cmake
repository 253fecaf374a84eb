# Oniguruma, which ships no CMake package: the target Oniguruma::onig. Used by the build and by the installed package.
find_library(Oniguruma_LIBRARY onig)
find_path(Oniguruma_INCLUDE_DIR oniguruma.h)
mark_as_advanced(Oniguruma_LIBRARY Oniguruma_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Oniguruma REQUIRED_VARS Oniguruma_LIBRARY Oniguruma_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "apt-get install libonig-dev")

if(Oniguruma_FOUND AND NOT TARGET Oniguruma::onig)
  add_library(Oniguruma::onig UNKNOWN IMPORTED)
  set_target_properties(Oniguruma::onig PROPERTIES
    IMPORTED_LOCATION "${Oniguruma_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${Oniguruma_INCLUDE_DIR}")
endif()
