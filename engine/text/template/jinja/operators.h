// The results of operators and indices, as in Python. Private to engine/text.
//
// Errors   TemplateError for types that an operator does not support.
#pragma once

#include <string_view>

#include "engine/text/template/jinja/value.h"

namespace loom::data::jinja {

// + - * / // % **
Value binary(std::string_view op, const Value& a, const Value& b, Budget& budget);
Value negative(const Value& value);
Value positive(const Value& value);
// == != < <= > >= in, not in
bool compare(std::string_view op, const Value& a, const Value& b, Budget& budget);
bool contains(const Value& container, const Value& item, Budget& budget);

// value[begin:end:step]; absent ones are none.
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget);
// value[index]: undefined if there is no such item.
Value item(const Value& value, const Value& index, Budget& budget);
// value.name: a method, an attribute, or the item of that key.
Value attribute(const Value& value, std::string_view name, Budget& budget);

// As markupsafe.escape.
std::string html_escaped(std::string_view text, Budget& budget);

}  // namespace loom::data::jinja
