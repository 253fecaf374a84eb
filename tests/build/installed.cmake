# Included by the tests of what is installed, with SOURCE and BUILD. WORK, outside of the tree, is a new folder for each
# test and the working directory of `run`. `fail` removes it, and so does a test at its end.
string(RANDOM LENGTH 8 suffix)
set(WORK "/tmp/shardloom_installed_${suffix}")
file(MAKE_DIRECTORY "${WORK}")

function(fail text)
  file(REMOVE_RECURSE "${WORK}")
  message(FATAL_ERROR "${text}")
endfunction()

# Sets `output` to what the command prints.
function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${WORK}"
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    fail("${command}\nended with ${code}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect pattern)
  if(NOT output MATCHES "${pattern}")
    fail("'${pattern}' is not in:\n${output}")
  endif()
endfunction()

# From here on `run(${hidden} ...)` hides the source tree and the build, where the machine lets a process do so.
macro(hide_tree)
  set(hidden "")
  execute_process(COMMAND unshare --mount --map-root-user true RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
  if(code EQUAL 0)
    file(COPY "${CMAKE_CURRENT_LIST_DIR}/without.sh" DESTINATION "${WORK}")
    set(hidden unshare --mount --map-root-user sh "${WORK}/without.sh" "${SOURCE}" "${BUILD}" --)
    run(${hidden} sh -c "test ! -e '${SOURCE}/CMakeLists.txt' && test ! -e '${BUILD}/CMakeCache.txt'")
  else()
    message(STATUS "unshare is refused here: the programs run outside of the source tree, but could still see it")
  endif()
endmacro()
