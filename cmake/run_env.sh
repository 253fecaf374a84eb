# Sourced by the scripts, in the root of the repository.
# Runs: MPI as root, and OpenMP threads that wait without spinning.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMP_WAIT_POLICY=passive
# Builds: another checkout of the same sources finds their objects in the cache.
export CCACHE_BASEDIR=$PWD
export CCACHE_DEPEND=1  # without the preprocessor, which is a tenth of a build that finds nothing
# Without the first two it does not take sources with a precompiled header, without the others those that CMake has just written.
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
