# Which processor the sources are compiled for.
#
# LOOM_NATIVE=ON   this machine's.
# LOOM_NATIVE=OFF  on x86-64: every processor with AVX2 and FMA (x86-64-v3). Sources PER_PROCESSOR of loom_add_library are
#                  compiled for each of LOOM_PROCESSOR_LEVELS, and a call goes to the best one that the processor has
#                  (engine/core/processor_level.h).
set(LOOM_PROCESSOR_LEVELS "")
set(LOOM_OPTIONS_v3 -march=x86-64-v3)
set(LOOM_OPTIONS_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
set(LOOM_OPTIONS_avx512_bf16 ${LOOM_OPTIONS_avx512} -mavx512bf16)

# LOOM_LEVEL: a property of the targets below, which have options of their own.
set(not_of_a_level "$<NOT:$<BOOL:$<TARGET_PROPERTY:LOOM_LEVEL>>>")
if(LOOM_NATIVE)
  target_compile_options(loom_library_flags INTERFACE $<${not_of_a_level}:-march=native>)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(LOOM_PROCESSOR_LEVELS v3 avx512 avx512_bf16)
  target_compile_options(loom_library_flags INTERFACE $<${not_of_a_level}:${LOOM_OPTIONS_v3}>)
endif()

# loom_add_processor_levels(target SOURCES ... LINK ...): adds the sources to the static library `target` once a level.
#
# The objects of a level become one relocatable object. Its functions that other objects may call get the level as a
# suffix; everything else becomes local to it, so that no inline function that is compiled for AVX-512 serves another
# processor. Under the functions' own names stand jumps to the level in use (processor_entries.sh).
function(loom_add_processor_levels target)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  set(entries "${CMAKE_CURRENT_BINARY_DIR}/${target}_entries.o")
  set(objects "")
  foreach(level v3 avx512 avx512_bf16)
    add_library(${target}_${level} OBJECT ${ARG_SOURCES})
    set_target_properties(${target}_${level} PROPERTIES LOOM_LEVEL ${level})
    target_include_directories(${target}_${level} PRIVATE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${target}_${level} PRIVATE ${ARG_LINK} loom_library_flags)
    target_compile_options(${target}_${level} PRIVATE ${LOOM_OPTIONS_${level}} $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${target}_${level}.o")
    add_custom_command(OUTPUT "${object}"
      COMMAND bash "${PROJECT_SOURCE_DIR}/cmake/processor_object.sh" "${CMAKE_LINKER}" "${CMAKE_NM}" "${CMAKE_OBJCOPY}" ${level}
        "${object}" "$<TARGET_OBJECTS:${target}_${level}>"
      DEPENDS "$<TARGET_OBJECTS:${target}_${level}>" "${PROJECT_SOURCE_DIR}/cmake/processor_object.sh"
      COMMAND_EXPAND_LISTS VERBATIM COMMENT "Relocatable object of ${target} for ${level}")
    list(APPEND objects "${object}")
  endforeach()
  add_custom_command(OUTPUT "${entries}"
    COMMAND bash "${PROJECT_SOURCE_DIR}/cmake/processor_entries.sh" "${CMAKE_CXX_COMPILER}" "${CMAKE_NM}" "${entries}" ${objects}
    DEPENDS ${objects} "${PROJECT_SOURCE_DIR}/cmake/processor_entries.sh"
    VERBATIM COMMENT "Entries of ${target}")
  set_source_files_properties(${objects} "${entries}" PROPERTIES GENERATED ON EXTERNAL_OBJECT ON)
  target_sources(${target} PRIVATE ${objects} "${entries}")
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()
