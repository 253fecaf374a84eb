#include "engine/text/tokenizer/pre_tokenizer.h"

#include "engine/text/tokenizer/normalizer.h"
#include "engine/text/tokenizer/utf8.h"

namespace loom::data {
namespace {

using Visit = std::function<void(std::string_view, bool)>;

Behavior read_behavior(const JsonNode& node) {
  const std::string& text = node.as_text();
  if (text == "Removed") return Behavior::kRemoved;
  if (text == "Isolated") return Behavior::kIsolated;
  if (text == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (text == "MergedWithNext") return Behavior::kMergedWithNext;
  if (text == "Contiguous") return Behavior::kContiguous;
  node.refuse("use Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

void cut_digits(bool individual, std::string_view text, const Visit& visit) {
  std::size_t begin = 0;
  const auto cut = [&](std::size_t end) {
    if (end != begin) visit(text.substr(begin, end - begin), begin == 0);
    begin = end;
  };
  bool in_digits = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const bool digit = is_numeric(character.code);
    if (digit != in_digits || (digit && individual)) cut(at);
    in_digits = digit;
    at += character.bytes;
  }
  cut(text.size());
}

std::string with_metaspaces(const Metaspace& space, std::string_view text, bool at_start) {
  std::string made;
  for (const char byte : text) byte == ' ' ? made.append(space.replacement) : made.append(1, byte);
  const bool wanted =
      space.prepend == Metaspace::Prepend::kAlways || (space.prepend == Metaspace::Prepend::kFirst && at_start);
  return wanted && !made.starts_with(space.replacement) ? space.replacement + made : made;
}

// Each piece begins with a replacement, except the text before the first one.
void cut_metaspaces(const Metaspace& space, std::string_view text, const Visit& visit) {
  std::vector<Splitter::Piece> pieces;
  std::size_t done = 0;
  for (std::size_t at = text.find(space.replacement); at != std::string_view::npos;
       at = text.find(space.replacement, done)) {
    if (at != done) pieces.push_back({{done, at}, false});
    done = at + space.replacement.size();
    pieces.push_back({{at, done}, true});
  }
  if (done != text.size()) pieces.push_back({{done, text.size()}, false});
  for (const auto& [range, match] : joined(std::move(pieces), Behavior::kMergedWithNext)) {
    visit(text.substr(range.begin, range.end - range.begin), range.begin == 0);
  }
}

}  // namespace

void PreTokenizer::add(const JsonNode& node) {
  const std::string type = node.type();
  check_steps(node, steps_.size());
  if (byte_level_) node.refuse("nothing is read after ByteLevel; put ByteLevel last");
  if (type == "Sequence") {
    node.allow_only({"type", "pretokenizers"});
    for (const JsonNode& step : node.at("pretokenizers").as_list()) add(step);
  } else if (type == "ByteLevel") {
    add_byte_level(node);
  } else if (type == "Split") {
    add_split(node);
  } else if (type == "Digits") {
    node.allow_only({"type", "individual_digits"});
    steps_.emplace_back(Digits{node.flag("individual_digits", false)});
  } else if (type == "Metaspace") {
    steps_.emplace_back(Metaspace(node));
  } else {
    node.at("type").refuse("use ByteLevel, Split, Digits, Metaspace or Sequence");
  }
}

void PreTokenizer::add_byte_level(const JsonNode& node) {
  node.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (node.flag("add_prefix_space", true)) steps_.emplace_back(PrefixSpace{});
  if (node.flag("use_regex", true)) {
    steps_.emplace_back(Splitter(Pattern::regex(kGpt2Pattern, node.where()), WordPattern::of(kGpt2Pattern),
                                 Behavior::kIsolated, false));
  }
  byte_level_ = true;
}

void PreTokenizer::add_split(const JsonNode& node) {
  node.allow_only({"type", "pattern", "behavior", "invert"});
  const JsonNode pattern = node.at("pattern");
  const auto regex = pattern.find("Regex");
  steps_.emplace_back(Splitter(read_pattern(pattern), regex ? WordPattern::of(regex->as_text()) : std::nullopt,
                               read_behavior(node.at("behavior")), node.flag("invert", false)));
}

void PreTokenizer::run_rare(const Step& step, std::string_view text, bool at_start, const Visit& visit) {
  if (std::holds_alternative<PrefixSpace>(step)) {
    if (text.starts_with(' ')) return visit(text, true);
    return visit(" " + std::string(text), true);
  }
  if (const auto* digits = std::get_if<Digits>(&step)) return cut_digits(digits->individual, text, visit);
  const auto& space = std::get<Metaspace>(step);
  const std::string made = with_metaspaces(space, text, at_start);
  space.split ? cut_metaspaces(space, made, visit) : visit(made, true);
}

}  // namespace loom::data
