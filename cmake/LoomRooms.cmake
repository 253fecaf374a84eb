# loom_add_library, loom_finish_rooms: the rooms of the product, and how each is compiled.

# Targets whose loops over numbers or bytes are no part of their commands' time: -O1 instead of -O3 takes a third off their compile time.
set(LOOM_WITHOUT_ARITHMETIC activation_swap arguments calibrate chat_template checkpoint checkpoint_store comm config convert
  custom_op device dialects dialects_hub dist explain formats inspect io job launch launcher log models multimodal nn
  objective observe offload pipeline_split plan preprocess preprocess_run pretrain program recompute sharding sharding_config
  talk train train_schedule train_step train_support virtual_time)

# Those of them that are a small part of each command's time: -Og takes a quarter off the compile time of -O1. Programs take
# the bodies of templates from the other rooms' objects (loom_link_optimised_first).
set(LOOM_ONCE activation_swap arguments calibrate chat_template checkpoint checkpoint_store comm config convert custom_op
  dialects dialects_hub dist explain formats inspect job launch launcher log models multimodal objective observe offload
  pipeline_split preprocess preprocess_run pretrain program sharding_config talk train train_schedule train_step train_support)
# -fpch-preprocess: what ccache wants of sources that take a precompiled header.
set(LOOM_PLAIN_OPTIONS ${LOOM_LIGHT_OPTIMISATION} $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
set(LOOM_ONCE_OPTIONS ${LOOM_PLAIN_OPTIONS} $<$<CONFIG:Release>:-Og>)

# The only targets that the sanitizers optimise: their loops are most of the tests' time. The others compile in half the time at -O0.
set(LOOM_WITH_LOOPS core images kernels_fused kernels_gemm parquet records regex tokenizer)

# Nothing that fuzz targets watch: compiled without their counters, which double the time of unrolled loops.
set(LOOM_WITHOUT_PARSERS activation_swap checkpoint comm convert device dist kernels_fused kernels_gemm nn offload plan pretrain program
  recompute sharding talk tensor train train_step train_support)

# Rooms, or some of their sources, that an option may leave out: in groups of their own, so that the others are compiled
# alike whatever the options are, and ccache has them.
set(LOOM_OPTIONAL arguments chat_template convert images inspect multimodal parquet preprocess preprocess_run program records regex talk tokenizer)

# What tests of threads link: a library of its own, so that the thread sanitizer compiles no other room. It links none either.
set(LOOM_LOWER activation_swap checkpoint checkpoint_store comm config device dist formats io launch nn offload recompute
  sharding sharding_config tensor virtual_time)

# Libraries of their own: kernels link core, and the report's page is written by the build.
set(LOOM_ALONE core kernels_fused kernels_gemm report_template)

# loom_options_of(name): sets `options`, `header` (the target whose precompiled header it takes) and `kind`, which tells
# rooms of different options apart.
macro(loom_options_of name)
  set(options "")
  set(header loom_header)
  set(kind loops)
  if(LOOM_FUZZ AND NOT "${name}" IN_LIST LOOM_WITHOUT_PARSERS)
    set(options -fsanitize=fuzzer-no-link)
    set(header loom_header_watched)
  endif()
  if(LOOM_SANITIZE AND NOT "${name}" IN_LIST LOOM_WITH_LOOPS)
    list(APPEND options -O0)
    set(kind plain)
  else()
    set(header "")
    if(NOT LOOM_SANITIZE AND "${name}" IN_LIST LOOM_WITHOUT_ARITHMETIC)
      list(APPEND options ${LOOM_PLAIN_OPTIONS})
      set(header loom_header_plain)
      set(kind plain)
      if(LOOM_UNITY AND "${name}" IN_LIST LOOM_ONCE)
        set(options ${LOOM_ONCE_OPTIONS})
        set(header loom_header_once)
        set(kind once)
      endif()
    endif()
  endif()
  if("-fsanitize=fuzzer-no-link" IN_LIST options)
    string(APPEND kind _watched)
  endif()
  if("${name}" IN_LIST LOOM_OPTIONAL)
    string(APPEND kind _optional)
  endif()
endmacro()

# loom_library_of(name): sets `library`, which holds the room with LOOM_UNITY.
macro(loom_library_of name)
  set(library loom_rooms)
  if("${name}" IN_LIST LOOM_LOWER)
    set(library loom_lower_rooms)
  endif()
endmacro()

# loom_take_options(target): gives a target what loom_options_of has set.
macro(loom_take_options target)
  target_compile_options(${target} PRIVATE ${options})
  if(TARGET "${header}")
    target_precompile_headers(${target} REUSE_FROM ${header})
  endif()
endmacro()

# loom_add_library(name SOURCES ... [PER_PROCESSOR ...] [PUBLIC ...] [PRIVATE ...]): the room shardloom::<name>. With
# LOOM_UNITY its sources join those of other rooms (loom_finish_rooms), else they are the static library loom_<name>.
# PER_PROCESSOR are further sources, which LOOM_NATIVE=OFF compiles once a processor level (LoomProcessors.cmake). PUBLIC and
# PRIVATE are link edges; a floor's folder is where it is declared.
function(loom_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PER_PROCESSOR;PUBLIC;PRIVATE" ${ARGN})
  set_property(GLOBAL APPEND PROPERTY LOOM_LIBRARIES loom_${name})
  loom_note_edges(${name} "${ARG_SOURCES};${ARG_PER_PROCESSOR}" "${ARG_PUBLIC}" "${ARG_PRIVATE}")
  if(LOOM_UNITY AND NOT name IN_LIST LOOM_ALONE)
    add_library(loom_${name} INTERFACE)
    set(scope INTERFACE)
    loom_library_of(${name})
    target_link_libraries(loom_${name} INTERFACE ${library} ${ARG_PUBLIC})
    set_target_properties(loom_${name} PROPERTIES LOOM_SOURCES "${ARG_SOURCES}")
  else()
    set(scope PUBLIC)
    add_library(loom_${name} STATIC ${ARG_SOURCES})
    if(LOOM_PROCESSOR_LEVELS AND ARG_PER_PROCESSOR)
      loom_add_processor_levels(loom_${name} SOURCES ${ARG_PER_PROCESSOR} LINK ${ARG_PUBLIC} ${ARG_PRIVATE})
    else()
      target_sources(loom_${name} PRIVATE ${ARG_PER_PROCESSOR})
    endif()
    target_link_libraries(loom_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:loom_library_flags>)
    loom_options_of(${name})
    loom_take_options(loom_${name})
    if(NOT name MATCHES "^kernels")  # whose bits may depend on what is inlined
      loom_group_sources(loom_${name})
    endif()
    set_property(GLOBAL APPEND PROPERTY LOOM_ARCHIVES loom_${name})
  endif()
  set_target_properties(loom_${name} PROPERTIES LOOM_LINKS "${ARG_PUBLIC};${ARG_PRIVATE}")
  add_library(shardloom::${name} ALIAS loom_${name})
  set_target_properties(loom_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(loom_${name} ${scope} cxx_std_20)
  target_include_directories(loom_${name} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
endfunction()

# The two libraries of all rooms that are not LOOM_ALONE, with LOOM_UNITY: most of the time to compile a source is spent on
# what it includes and instantiates, so groups hold sources of several rooms.
if(LOOM_UNITY)
  add_library(loom_rooms STATIC)
  add_library(loom_lower_rooms STATIC)
endif()

# loom_link_optimised_first(program): where two objects have a body of a template, the linker takes that of the first object:
# these stand before the program's own and before the libraries.
function(loom_link_optimised_first program)
  get_property(targets GLOBAL PROPERTY LOOM_OPTIMISED)
  foreach(target IN LISTS targets)
    target_link_options(${program} PRIVATE $<TARGET_OBJECTS:${target}>)
    add_dependencies(${program} ${target})
    set_property(TARGET ${program} APPEND PROPERTY LINK_DEPENDS $<TARGET_OBJECTS:${target}>)
  endforeach()
endfunction()

# loom_finish_rooms(): called once, when all rooms are declared.
function(loom_finish_rooms)
  if(NOT LOOM_UNITY)
    return()
  endif()
  get_property(rooms GLOBAL PROPERTY LOOM_LIBRARIES)
  set(kinds "")
  set(optimised "")  # those of -O3 first
  set(links "")
  foreach(room IN LISTS rooms)
    get_target_property(room_links ${room} LOOM_LINKS)
    list(APPEND links ${room_links})
    string(REGEX REPLACE "^loom_" "" name ${room})
    if(name IN_LIST LOOM_LOWER)
      foreach(link IN LISTS room_links)
        if(link MATCHES "^shardloom::(.*)" AND NOT CMAKE_MATCH_1 IN_LIST LOOM_LOWER AND NOT CMAKE_MATCH_1 IN_LIST LOOM_ALONE)
          message(FATAL_ERROR "${name} is a lower room and links ${link}, which is not one; LOOM_LOWER must have both or neither (cmake/LoomRooms.cmake)")
        endif()
      endforeach()
    endif()
    get_target_property(sources ${room} LOOM_SOURCES)
    if(NOT sources)
      continue()
    endif()
    loom_options_of(${name})
    loom_library_of(${name})
    set(target ${library}_${kind})
    if(NOT TARGET ${target})
      add_library(${target} OBJECT)
      target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
      loom_take_options(${target})
      list(APPEND kinds ${target})
      if(NOT LOOM_SANITIZE AND kind MATCHES "^loops")
        list(PREPEND optimised ${target})
      elseif(NOT LOOM_SANITIZE AND kind MATCHES "^plain")
        list(APPEND optimised ${target})
      endif()
      target_sources(${library} PRIVATE $<TARGET_OBJECTS:${target}>)
    endif()
    get_target_property(folder ${room} SOURCE_DIR)
    foreach(source IN LISTS sources)
      target_sources(${target} PRIVATE "${folder}/${source}")
      foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS)
        get_source_file_property(value "${folder}/${source}" DIRECTORY "${folder}" ${property})
        if(value)
          # GCC may end with a segmentation fault where a header was compiled with other options.
          set_source_files_properties("${folder}/${source}" PROPERTIES ${property} "${value}" SKIP_PRECOMPILE_HEADERS ON)
        endif()
      endforeach()
    endforeach()
  endforeach()

  set_property(GLOBAL PROPERTY LOOM_OPTIMISED "${optimised}")
  list(REMOVE_DUPLICATES links)
  list(FILTER links EXCLUDE REGEX "^shardloom::")
  foreach(target IN LISTS kinds)
    target_link_libraries(${target} PRIVATE ${links} loom_library_flags)
    loom_group_sources(${target})
  endforeach()
  list(TRANSFORM LOOM_ALONE PREPEND "shardloom::" OUTPUT_VARIABLE alone)
  target_link_libraries(loom_rooms PRIVATE loom_lower_rooms)
  foreach(library IN ITEMS loom_rooms loom_lower_rooms)
    string(REGEX REPLACE "^loom_" "" exported ${library})
    set_target_properties(${library} PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME ${exported})
    target_link_libraries(${library} PRIVATE ${alone} ${links})
    set_property(GLOBAL APPEND PROPERTY LOOM_LIBRARIES ${library})
    set_property(GLOBAL APPEND PROPERTY LOOM_ARCHIVES ${library})
  endforeach()
endfunction()
