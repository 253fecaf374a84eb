#include "engine/text/tokenizer/metaspace.h"

#include "engine/text/tokenizer/utf8.h"

namespace loom::data {
namespace {

Metaspace::Prepend read_prepend(const JsonNode& node) {
  const auto scheme = node.find("prepend_scheme");
  if (!scheme) return node.flag("add_prefix_space", true) ? Metaspace::Prepend::kAlways : Metaspace::Prepend::kNever;
  const std::string& text = scheme->as_text();
  if (text != "never" && text != "first" && text != "always") scheme->refuse("use never, first or always");
  if (text != "never" && !node.flag("add_prefix_space", true)) {
    scheme->refuse("add_prefix_space is false; use never, or take add_prefix_space out");
  }
  if (text == "never") return Metaspace::Prepend::kNever;
  return text == "first" ? Metaspace::Prepend::kFirst : Metaspace::Prepend::kAlways;
}

}  // namespace

Metaspace::Metaspace(const JsonNode& node) {
  node.allow_only({"type", "replacement", "str_rep", "prepend_scheme", "add_prefix_space", "split"});
  replacement = node.text("replacement");
  if (replacement.empty() || character_at(replacement, 0).bytes != replacement.size()) {
    node.at("replacement").refuse("use one character");
  }
  prepend = read_prepend(node);
  split = node.flag("split", true);
}

}  // namespace loom::data
