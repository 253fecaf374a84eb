// Filters and tests of templates. Private to engine/text.
//
// Source   jinja2: filters.py, tests.py.
#pragma once

#include <string_view>

#include "engine/text/template/jinja/value.h"

namespace loom::data::jinja {

using Filter = Value (*)(Interpreter& interpreter, const Value& value, const Arguments& arguments);
using Test = bool (*)(Interpreter& interpreter, const Value& value, const Arguments& arguments);

// TemplateError for an unknown name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);

}  // namespace loom::data::jinja
