# Oniguruma, which ships no CMake package: the target Oniguruma::onig. Used by the build and by the installed package.
#
# libonig.so has functions of its own under the names of POSIX (regcomp, regexec), whose flags have other values. The C
# library is named in front of it, so that everything else in a process gets the C library's.
find_library(Oniguruma_LIBRARY onig)
find_path(Oniguruma_INCLUDE_DIR oniguruma.h)
mark_as_advanced(Oniguruma_LIBRARY Oniguruma_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Oniguruma REQUIRED_VARS Oniguruma_LIBRARY Oniguruma_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "apt-get install libonig-dev")

if(Oniguruma_FOUND AND NOT TARGET Oniguruma::onig)
  add_library(Oniguruma::onig INTERFACE IMPORTED)
  set_target_properties(Oniguruma::onig PROPERTIES
    INTERFACE_LINK_LIBRARIES "-Wl,-lc;${Oniguruma_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${Oniguruma_INCLUDE_DIR}")
endif()
