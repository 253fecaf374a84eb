# Puts the report's page together and writes it as a C++ source.
# cmake -DFOLDER=<this folder> -DCHARTS=<chart.min.js> -DOUTPUT=<file.cpp> -P embed.cmake
#
# template.html holds @STYLE@, @CHARTS@, @SCRIPTS@ and @DATA@, each once.
cmake_minimum_required(VERSION 3.25)
set(scripts "")
foreach(name format sections charts timeline report)
  file(READ "${FOLDER}/${name}.js" text)
  string(APPEND scripts "${text}")
endforeach()
file(READ "${FOLDER}/template.html" page)
file(READ "${FOLDER}/report.css" style)
file(READ "${CHARTS}" charts)

foreach(part style charts scripts)
  string(TOUPPER "@${part}@" marker)
  string(FIND "${page}" "${marker}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "template.html has no ${marker}")
  endif()
  if("${${part}}" MATCHES "</script|</style|<!--")
    message(FATAL_ERROR "${part}: an inlined file must not hold </script, </style or <!--")
  endif()
endforeach()

# The markers are looked for in the template alone: what is put in may hold anything.
function(split text marker before after)
  string(FIND "${text}" "${marker}" at)
  string(LENGTH "${marker}" length)
  string(SUBSTRING "${text}" 0 ${at} head)
  math(EXPR rest "${at} + ${length}")
  string(SUBSTRING "${text}" ${rest} -1 tail)
  set(${before} "${head}" PARENT_SCOPE)
  set(${after} "${tail}" PARENT_SCOPE)
endfunction()
split("${page}" "@STYLE@" head page)
split("${page}" "@DATA@" to_data page)
split("${page}" "@CHARTS@" to_charts page)
split("${page}" "@SCRIPTS@" to_scripts end)

set(q "LOOM_PAGE")
file(WRITE "${OUTPUT}" "// Written by engine/observe/report/embed.cmake.
#include \"engine/observe/report_template.h\"

namespace loom::observe {
namespace {

constexpr std::string_view kBefore = R\"${q}(${head}${style}${to_data})${q}\";
constexpr std::string_view kAfter = R\"${q}(${to_charts}${charts}${to_scripts}${scripts}${end})${q}\";

}  // namespace

std::pair<std::string_view, std::string_view> report_template() { return {kBefore, kAfter}; }

}  // namespace loom::observe
")
