# cmake --install: headers as include/shardloom/..., libraries, programs, configs and examples under share/shardloom, and a
# package for CMake and one for pkg-config:
#   find_package(Shardloom REQUIRED)                           # or in lower case: the file's name fits both
#   target_link_libraries(mine PRIVATE shardloom::shardloom)   # every floor; or one of them: shardloom::sharding
#   #include <shardloom/shardloom.h>                           # or one header: <shardloom/engine/nn/layers.h>
# Component `program` is what runs: programs, configs, completion, copyright; `development`, the default, is the rest.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)

get_property(libraries GLOBAL PROPERTY LOOM_LIBRARIES)
get_property(programs GLOBAL PROPERTY LOOM_PROGRAMS)

add_library(loom_all INTERFACE)
set_target_properties(loom_all PROPERTIES EXPORT_NAME shardloom)
target_link_libraries(loom_all INTERFACE ${libraries})

install(TARGETS loom_all ${libraries} EXPORT shardloomTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(programs)
  install(TARGETS ${programs} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT program)
endif()
# Public headers only, of the rooms that are built.
set(left_out "")
if(NOT LOOM_TEXT)
  list(APPEND left_out engine/text/ engine/formats/parquet/ engine/cli/words/preprocess_)
endif()
if(NOT LOOM_IMAGES)
  list(APPEND left_out engine/images/ engine/multimodal/)
endif()
if(NOT LOOM_CONVERT)
  list(APPEND left_out engine/convert/ engine/cli/words/convert_)
endif()
if(NOT LOOM_TALK)
  list(APPEND left_out engine/talk/)
endif()
list(JOIN left_out "|" left_out)
install(CODE "set(LEFT_OUT \"${left_out}\")\nset(SOURCE \"${PROJECT_SOURCE_DIR}\")\nset(STAGE \"${CMAKE_CURRENT_BINARY_DIR}/installed\")")
install(SCRIPT "${CMAKE_CURRENT_LIST_DIR}/install_headers.cmake")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/configs" DESTINATION "${CMAKE_INSTALL_DATADIR}/shardloom" COMPONENT program)
install(CODE "
  set(SOURCE \"${PROJECT_SOURCE_DIR}\")
  set(STAGE \"${CMAKE_CURRENT_BINARY_DIR}/installed\")
  set(SHARE \"${CMAKE_INSTALL_DATADIR}\")
  set(PROGRAM \"$<TARGET_FILE:shardloom>\")" COMPONENT program)
install(SCRIPT "${CMAKE_CURRENT_LIST_DIR}/install_copyright.cmake" COMPONENT program)
if(NOT CMAKE_CROSSCOMPILING)
  install(SCRIPT "${CMAKE_CURRENT_LIST_DIR}/install_completions.cmake" COMPONENT program)
endif()
# Examples that are projects of their own.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples/pretrain_transformers"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/shardloom/examples" PATTERN main.cpp EXCLUDE)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/CHANGELOG.md" "${PROJECT_SOURCE_DIR}/README.md"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/shardloom" COMPONENT program)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/shardloom")
install(EXPORT shardloomTargets NAMESPACE shardloom:: DESTINATION "${package_dir}")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/shardloom-config.cmake.in"
  "${CMAKE_CURRENT_BINARY_DIR}/shardloom-config.cmake" INSTALL_DESTINATION "${package_dir}" PATH_VARS CMAKE_INSTALL_DATADIR)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/shardloom-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/shardloom-config.cmake" "${CMAKE_CURRENT_BINARY_DIR}/shardloom-config-version.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindNUMA.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindISAL.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindDNNL.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindOniguruma.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindUtf8proc.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindLZ4.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindSPNG.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/share_folder_of_package.cpp"
  DESTINATION "${package_dir}")

# pkg-config: one line of libraries, found from where the file lies.
set(pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH LOOM_PC_TO_PREFIX "/prefix/${pc_dir}" "/prefix")
get_property(archives GLOBAL PROPERTY LOOM_ARCHIVES)
list(TRANSFORM archives PREPEND "-l" OUTPUT_VARIABLE LOOM_PC_LIBS)
list(JOIN LOOM_PC_LIBS " " LOOM_PC_LIBS)
set(LOOM_PC_REQUIRES "fmt spdlog yaml-cpp nlohmann_json eigen3 numa libisal libcrypto")
if(LOOM_TEXT)
  string(APPEND LOOM_PC_REQUIRES " oniguruma libutf8proc snappy libzstd zlib liblz4")
endif()
if(LOOM_IMAGES)
  string(APPEND LOOM_PC_REQUIRES " spng libjpeg")
endif()
set(LOOM_PC_SYSTEM_LIBS "-pthread -lc")  # in front of -lonig: FindOniguruma.cmake
if(LOOM_PARALLEL STREQUAL "tbb")
  string(APPEND LOOM_PC_REQUIRES " tbb")
endif()
if(LOOM_MPI)
  string(APPEND LOOM_PC_REQUIRES " ompi-c")
endif()
if(LOOM_GEMM STREQUAL "onednn")
  string(APPEND LOOM_PC_SYSTEM_LIBS " -ldnnl -lgomp")
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/shardloom.pc.in" "${CMAKE_CURRENT_BINARY_DIR}/shardloom.pc" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/shardloom.pc" DESTINATION "${pc_dir}")
