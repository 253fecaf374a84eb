# Dependencies: Debian packages, each with its reason in docs/dependencies.md.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Eigen3 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(biosoup REQUIRED)  # libbiosoup-dev: the progress bar, one header
if(NOT TARGET yaml-cpp::yaml-cpp)
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()

find_package(NUMA REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(ISAL REQUIRED)
if(LOOM_TEXT)
  find_package(Oniguruma REQUIRED)
  find_package(Utf8proc REQUIRED)
  # Codecs of parquet files.
  find_package(Snappy REQUIRED)
  find_package(zstd REQUIRED)
  find_package(ZLIB REQUIRED)
  find_package(LZ4 REQUIRED)
endif()
if(LOOM_IMAGES)
  find_package(SPNG REQUIRED)
  find_package(JPEG REQUIRED)  # libjpeg62-turbo-dev
endif()

if(LOOM_PARALLEL STREQUAL "tbb")
  find_package(TBB REQUIRED)
endif()

if(NOT LOOM_GEMM MATCHES "^(own|onednn|eigen)$")
  message(FATAL_ERROR "LOOM_GEMM=${LOOM_GEMM}; it is own, onednn or eigen: cmake -DLOOM_GEMM=own ...")
endif()
find_package(DNNL)  # for LOOM_GEMM=onednn, and for the tests and benchmarks of that file
if(LOOM_GEMM STREQUAL "onednn" AND NOT DNNL_FOUND)
  message(FATAL_ERROR "LOOM_GEMM=onednn, but oneDNN is not installed; apt-get install libdnnl-dev, or LOOM_GEMM=own")
endif()
message(STATUS "Matrix products: ${LOOM_GEMM}; parallel loops: ${LOOM_PARALLEL}; MPI: ${LOOM_MPI}")

if(LOOM_MPI)
  find_package(MPI REQUIRED COMPONENTS C)
  target_compile_definitions(MPI::MPI_C INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)  # its C interface only
endif()
if(LOOM_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(LOOM_BUILD_BENCH)
  find_package(benchmark REQUIRED)
endif()
