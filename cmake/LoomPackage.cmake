# cpack -G DEB, in a build folder: the component `program` as shardloom_VERSION_ARCHITECTURE.deb. The preset `package`
# builds a program for every processor of the architecture (LOOM_NATIVE=OFF).
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL program)
set(CPACK_PACKAGE_VENDOR "Shardloom")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME shardloom)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "Shardloom maintainers <maintainers@shardloom.invalid>")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "sharded training of language models on CPU ranks, and its planning
Shardloom trains language models on CPU ranks as PyTorch FSDP2 shards them. It
plans the memory and the time of the same training on thousands of devices.")

# Shared libraries become dependencies. mpirun starts ranks as processes; ranks as threads do not need it.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(LOOM_MPI)
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS openmpi-bin)
endif()

if(LOOM_NATIVE)
  set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_BINARY_DIR}/native_package.cmake")
  set(warning "The program of this package is compiled for this machine's processor; use the preset package for others")
  file(WRITE "${CPACK_PRE_BUILD_SCRIPTS}" "message(WARNING \"${warning}\")\n")
endif()
include(CPack)
