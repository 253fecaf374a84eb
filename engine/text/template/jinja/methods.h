// The methods that templates call on values. Private to engine/text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/text/template/jinja/value.h"

namespace loom::data::jinja {

// The method, bound to the value. An Undefined for one that would change the value: calling it is an error.
// TemplateError for an unsupported method of Python's; nothing if there is none of that name.
std::optional<Value> find_method(const Value& value, std::string_view name);

// str.replace(), at most `most` times.
std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::size_t most,
                     Budget& budget);
// str.isupper() and str.islower().
bool all_cased(std::string_view text, bool (*is)(char32_t), Budget& budget);

}  // namespace loom::data::jinja
