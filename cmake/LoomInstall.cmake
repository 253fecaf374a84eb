# cmake --install: headers under include/shardloom, libraries, programs, configs and examples under share/shardloom, and a
# package:
#   find_package(Shardloom REQUIRED)                           # or in lower case: the file's name fits both
#   target_link_libraries(mine PRIVATE shardloom::shardloom)   # every floor; or one of them: shardloom::sharding
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(libraries GLOBAL PROPERTY LOOM_LIBRARIES)
get_property(programs GLOBAL PROPERTY LOOM_PROGRAMS)

add_library(loom_all INTERFACE)
set_target_properties(loom_all PROPERTIES EXPORT_NAME shardloom)
target_link_libraries(loom_all INTERFACE ${libraries})

install(TARGETS loom_all ${libraries} EXPORT shardloomTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(programs)
  install(TARGETS ${programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
# Public headers only.
install(CODE "set(SOURCE \"${PROJECT_SOURCE_DIR}\")")
install(SCRIPT "${CMAKE_CURRENT_LIST_DIR}/install_headers.cmake")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/configs" DESTINATION "${CMAKE_INSTALL_DATADIR}/shardloom")
# Examples that are projects of their own.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples/pretrain_transformers"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/shardloom/examples")

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/shardloom")
install(EXPORT shardloomTargets NAMESPACE shardloom:: DESTINATION "${package_dir}")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/shardloom-config.cmake.in"
  "${CMAKE_CURRENT_BINARY_DIR}/shardloom-config.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/shardloom-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/shardloom-config.cmake" "${CMAKE_CURRENT_BINARY_DIR}/shardloom-config-version.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindNUMA.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindDNNL.cmake"
  DESTINATION "${package_dir}")
