// Parses a template's text into statements. Private to engine/text.
//
// Errors   SyntaxError with the line: also for parts of Jinja that chat templates lack (include, import, extends,
//          block, autoescape).
// Source   jinja2/parser.py; from extensions: break, continue and generation.
#pragma once

#include <string_view>

#include "engine/text/template/jinja/lexer.h"
#include "engine/text/template/jinja/syntax.h"

namespace loom::data::jinja {

// Precondition: `text` is UTF-8.
Body parse(std::string_view text);

}  // namespace loom::data::jinja
