// A template's text as statements. Private to engine/text.
//
// Errors   SyntaxError with the line: also for what Jinja has and chat templates do not (include, import, extends,
//          block, autoescape).
// Source   jinja2/parser.py; of extensions break, continue and generation.
#pragma once

#include <string_view>

#include "engine/text/template/jinja/lexer.h"
#include "engine/text/template/jinja/syntax.h"

namespace loom::data::jinja {

// Before: `text` is UTF-8.
Body parse(std::string_view text);

}  // namespace loom::data::jinja
