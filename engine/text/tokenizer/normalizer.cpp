#include "engine/text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <utility>

#include "engine/core/error.h"
#include "engine/text/tokenizer/utf8.h"

namespace loom::data {
namespace {

// Characters that NFC never changes, whatever their neighbours; not all of them, but those in most text.
bool stays_in_nfc(char32_t code) {
  return code < 0x300 || (code >= 0x400 && code <= 0x482) || (code >= 0x2010 && code <= 0x2027) ||
         (code >= 0x2500 && code <= 0x2ad0) || (code >= 0x3001 && code <= 0x3029) ||
         (code >= 0x3041 && code <= 0x3096) || (code >= 0x30a1 && code <= 0x30fe) ||
         (code >= 0x3400 && code <= 0x9fff) || (code >= 0xac00 && code <= 0xd7a3) ||
         (code >= 0xff01 && code <= 0xff9d) || (code >= 0x1f300 && code <= 0x1faff);
}

bool stays_in_nfc(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (!stays_in_nfc(character.code)) return false;
    at += character.bytes;
  }
  return true;
}

// Characters that utf8proc knows and the tables of Hugging Face's library (of Unicode 9) do not: there they stay as
// they are, and nothing moves or composes across them. Found by comparing all characters with tokenizers 0.23.3.
// U+11A7, a vowel in front of the trailing consonants, is here because utf8proc composes it away behind a syllable.
struct Span {
  char32_t first;
  char32_t last;
};
constexpr Span kUnknownThere[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x11a7, 0x11a7},   {0x1715, 0x1715},   {0x1abf, 0x1ace},
    {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},
    {0x10781, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac},
    {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b},
    {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938},
    {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47},
    {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42},
    {0x16ff0, 0x16ff1}, {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
    {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};

bool is_unknown_there(char32_t code) {
  const auto span = std::ranges::lower_bound(kUnknownThere, code, {}, &Span::last);
  return span != std::end(kUnknownThere) && span->first <= code;
}

// A text by its characters, decomposed, put in order and composed. utf8proc_map() does the same, but moves each mark
// past its neighbours one by one.
class Mapping {
 public:
  explicit Mapping(int options) : options_(options) {}

  void add(char32_t code) {
    constexpr std::size_t kLongest = 18;  // of U+FDFA
    std::array<utf8proc_int32_t, kLongest> parts{};
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts.data(), kLongest, option(), &boundary_);
    require(count >= 0 && count <= std::ssize(parts), "U+{:04X} is decomposed to {}", std::uint32_t{code}, count);
    codes_.insert(codes_.end(), parts.begin(), parts.begin() + count);
  }
  // Appends what was added to `text`, and begins again.
  void flush(std::string& text) {
    put_in_order();
    if ((options_ & UTF8PROC_COMPOSE) != 0) {
      const auto count = utf8proc_normalize_utf32(codes_.data(), std::ssize(codes_), option());
      require(count >= 0, "{} characters are composed to {}", codes_.size(), count);
      codes_.resize(static_cast<std::size_t>(count));
    }
    for (const utf8proc_int32_t code : codes_) append_character(text, static_cast<char32_t>(code));
    codes_.clear();
  }

 private:
  utf8proc_option_t option() const { return static_cast<utf8proc_option_t>(options_); }

  static int order_of(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

  // Marks between two characters that are none: by their combining class.
  void put_in_order() {
    for (auto at = codes_.begin(); at != codes_.end();) {
      if (order_of(*at) == 0) {
        ++at;
        continue;
      }
      const auto end = std::find_if(at, codes_.end(), [](utf8proc_int32_t code) { return order_of(code) == 0; });
      std::ranges::stable_sort(at, end, std::less{}, order_of);
      at = end;
    }
  }

  int options_;
  int boundary_ = 0;
  std::vector<utf8proc_int32_t> codes_;
};

std::string mapped(std::string_view text, int options) {
  std::string made;
  Mapping mapping(options);
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (is_unknown_there(character.code)) {
      mapping.flush(made);
      made.append(text.substr(at, character.bytes));
    } else {
      mapping.add(character.code);
    }
    at += character.bytes;
  }
  mapping.flush(made);
  return made;
}

}  // namespace

Pattern read_pattern(const JsonNode& node) {
  node.allow_only({"String", "Regex"});
  const auto literal = node.find("String");
  const auto regex = node.find("Regex");
  if (literal.has_value() == regex.has_value()) node.refuse("give one of String and Regex");
  const JsonNode& given = literal ? *literal : *regex;
  if (given.as_text().empty()) given.refuse("an empty pattern matches nothing; write one");
  if (literal) return Pattern::literal(literal->as_text());
  return Pattern::regex(regex->as_text(), regex->where());
}

void Growth::count(std::size_t bytes, const std::string& where) {
  if (bytes > left_) {
    config_error("{}: the steps up to here make more than {} bytes of a text; shorten what they add, or take steps out",
                 where, most_);
  }
  left_ -= bytes;
}

void check_steps(const JsonNode& node, std::size_t steps) {
  constexpr std::size_t kMostSteps = 100;
  if (steps >= kMostSteps)
    config_error("{}: more than {} steps come together; take some out", node.where(), kMostSteps);
}

Replacement::Replacement(const JsonNode& node)
    : pattern(read_pattern(node.at("pattern"))), content(node.text("content")), where(node.where()) {
  node.allow_only({"type", "pattern", "content"});
}

std::string Replacement::applied_to(std::string_view text, Growth& growth, RegexScratch& scratch) const {
  std::string made;
  std::size_t done = 0;
  const auto add = [&](std::string_view part) {
    growth.count(part.size(), where);
    made.append(part);
  };
  pattern.each_match(text, scratch, [&](Range match) {
    add(text.substr(done, match.begin - done));
    add(content);
    done = match.end;
  });
  add(text.substr(done));
  return made;
}

void Normalizer::add(const JsonNode& node) {
  const std::string type = node.type();
  check_steps(node, steps_.size());
  const auto add_step = [&](auto change) { steps_.push_back({std::move(change), node.where()}); };
  if (type == "Sequence") {
    node.allow_only({"type", "normalizers"});
    for (const JsonNode& step : node.at("normalizers").as_list()) add(step);
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    node.allow_only({"type"});
    add_step(type == "NFC" ? Form::kNfc : type == "NFD" ? Form::kNfd : type == "NFKC" ? Form::kNfkc : Form::kNfkd);
  } else if (type == "Lowercase") {
    node.allow_only({"type"});
    add_step(Lowercase{});
  } else if (type == "Prepend") {
    node.allow_only({"type", "prepend"});
    add_step(Prepend{node.text("prepend")});
  } else if (type == "Replace") {
    add_step(Replacement(node));
  } else if (type == "Strip") {
    node.allow_only({"type", "strip_left", "strip_right"});
    add_step(Strip{node.at("strip_left").as_flag(), node.at("strip_right").as_flag()});
  } else {
    node.at("type").refuse("use NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip or Sequence");
  }
}

std::string Normalizer::apply(std::string_view text, RegexScratch& scratch) const {
  Growth growth(text.size());
  std::string made(text);
  for (const Step& step : steps_) {
    made = std::visit(
        [&]<class Change>(const Change& change) {
          if constexpr (std::is_same_v<Change, Replacement>)
            return change.applied_to(made, growth, scratch);
          else
            return changed(change, std::move(made));
        },
        step.change);
    if (!std::holds_alternative<Replacement>(step.change)) growth.count(made.size(), step.where);
  }
  return made;
}

std::string Normalizer::changed(const Form& form, std::string text) {
  switch (form) {
    case Form::kNfc:
      return stays_in_nfc(text) ? std::move(text) : mapped(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    case Form::kNfd:
      return mapped(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    case Form::kNfkc:
      return mapped(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case Form::kNfkd:
      return mapped(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  }
  return text;
}

std::string Normalizer::changed(const Lowercase&, std::string text) {
  constexpr char32_t kCapitalIWithDot = 0x130;  // the one character whose lower case is two
  std::string made;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    at += character.bytes;
    if (character.code == kCapitalIWithDot) {
      made.append("i\xcc\x87");
    } else {
      append_character(made, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character.code))));
    }
  }
  return made;
}

std::string Normalizer::changed(const Prepend& step, std::string text) {
  return text.empty() ? text : step.text + text;
}

std::string Normalizer::changed(const Strip& step, std::string text) {
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (step.left && begin < end && is_white_space(character_at(text, begin).code)) {
    begin += character_at(text, begin).bytes;
  }
  while (step.right && end > begin && is_white_space(character_before(text, end).code)) {
    end -= character_before(text, end).bytes;
  }
  return text.substr(begin, end - begin);
}

}  // namespace loom::data
