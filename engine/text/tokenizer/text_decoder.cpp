#include "engine/text/tokenizer/text_decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/core/shown_text.h"
#include "engine/text/tokenizer/byte_characters.h"
#include "engine/text/tokenizer/utf8.h"

namespace loom::data {
namespace {

constexpr std::int64_t kMostStripped = 1'000'000;

std::optional<int> hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return std::nullopt;
}

// The byte of "<0xHH>".
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  const auto low = hex_digit(token[4]);
  if (token[3] == '+' && low) return static_cast<char>(*low);  // Rust's numbers may have a sign
  const auto high = hex_digit(token[3]);
  if (!high || !low) return std::nullopt;
  return static_cast<char>(*high * 16 + *low);
}

std::string_view stripped(std::string_view token, const TextDecoder::Strip& step) {
  for (std::size_t i = 0; i < step.start && token.starts_with(step.content); ++i) {
    token.remove_prefix(step.content.size());
  }
  for (std::size_t i = 0; i < step.stop && token.ends_with(step.content); ++i) {
    token.remove_suffix(step.content.size());
  }
  return token;
}

bool joins(const TextDecoder::Step& step) {
  return std::holds_alternative<TextDecoder::Fuse>(step) || std::holds_alternative<TextDecoder::ByteLevel>(step);
}

}  // namespace

TextDecoder::TextDecoder(const JsonNode& node) {
  add(node);
  for (std::size_t i = 1; i < steps_.size(); ++i) {
    const bool early = std::ranges::any_of(steps_.begin(), steps_.begin() + static_cast<std::ptrdiff_t>(i), joins);
    if (std::holds_alternative<ByteLevel>(steps_[i]) && early) node.refuse("ByteLevel after Fuse is not read");
  }
}

void TextDecoder::add(const JsonNode& node) {
  const std::string type = node.type();
  check_steps(node, steps_.size());
  if (type == "Sequence") {
    node.allow_only({"type", "decoders"});
    for (const JsonNode& step : node.at("decoders").as_list()) add(step);
  } else if (type == "ByteLevel") {
    node.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    steps_.emplace_back(ByteLevel{});
  } else if (type == "Replace") {
    steps_.emplace_back(Replacement(node));
  } else if (type == "ByteFallback") {
    node.allow_only({"type"});
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Fuse") {
    node.allow_only({"type"});
    steps_.emplace_back(Fuse{});
  } else if (type == "Strip") {
    node.allow_only({"type", "content", "start", "stop"});
    const Strip strip{node.text("content"), static_cast<std::size_t>(node.at("start").as_integer(0, kMostStripped)),
                      static_cast<std::size_t>(node.at("stop").as_integer(0, kMostStripped))};
    if (strip.content.empty() || character_at(strip.content, 0).bytes != strip.content.size())
      node.at("content").refuse("use one character");
    steps_.emplace_back(strip);
  } else if (type == "Metaspace") {
    steps_.emplace_back(Metaspace(node));
  } else {
    node.at("type").refuse("use ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or Sequence");
  }
}

DecodeRun::DecodeRun(const TextDecoder& decoder) : decoder_(decoder), states_(decoder.steps().size()) {}

std::string DecodeRun::push(std::string_view token) {
  pushed_ += token.size();
  push(0, token);
  return std::exchange(text_, {});
}

std::string DecodeRun::finish() {
  finish(0);
  return std::exchange(text_, {});
}

void DecodeRun::push(std::size_t step, std::string_view token) {
  if (step == states_.size()) {
    text_.append(token);
    return;
  }
  std::visit([&](const auto& each) { take(each, step, token); }, decoder_.steps()[step]);
}

// What the step holds goes on, then the steps behind it end.
void DecodeRun::finish(std::size_t step) {
  if (step == states_.size()) return;
  const TextDecoder::Step& kind = decoder_.steps()[step];
  if (std::holds_alternative<TextDecoder::ByteFallback>(kind)) {
    end_bytes(step);
  } else if (joins(kind) && !(states_[step].held.empty() && states_[step].begun)) {
    std::string text;
    append_repaired(text, std::exchange(states_[step].held, {}));
    push(step + 1, text);
  }
  finish(step + 1);
}

void DecodeRun::take(const TextDecoder::Spaced&, std::size_t index, std::string_view token) {
  if (std::exchange(states_[index].begun, true)) push(index + 1, " ");
  push(index + 1, token);
}

void DecodeRun::take(const TextDecoder::ByteLevel&, std::size_t index, std::string_view token) {
  State& state = states_[index];
  const auto bytes = bytes_of_token(token);
  state.held.append(bytes ? std::string_view(*bytes) : token);
  if (index + 1 != states_.size()) return;
  const std::size_t certain = state.held.size() - unfinished_bytes(state.held);
  if (certain == 0) return;
  state.begun = true;
  append_repaired(text_, std::string_view(state.held).substr(0, certain));
  state.held.erase(0, certain);
}

void DecodeRun::take(const Replacement& step, std::size_t index, std::string_view token) {
  push(index + 1, token.empty() ? std::string() : step.applied_to(token, most_bytes_made_of(pushed_), scratch_));
}

void DecodeRun::end_bytes(std::size_t index) {
  const std::string bytes = std::exchange(states_[index].held, {});
  if (bytes.empty()) return;
  if (!invalid_utf8(bytes)) return push(index + 1, bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) push(index + 1, "\xef\xbf\xbd");
}

void DecodeRun::take(const TextDecoder::ByteFallback&, std::size_t index, std::string_view token) {
  if (const auto byte = fallback_byte(token)) {
    states_[index].held.push_back(*byte);
    return;
  }
  end_bytes(index);
  push(index + 1, token);
}

// Certain at once where nothing follows, or only the strip of the beginning.
void DecodeRun::take(const TextDecoder::Fuse&, std::size_t index, std::string_view token) {
  State& state = states_[index];
  std::size_t start = 0;
  std::string_view content;
  bool at_once = index + 1 == states_.size();
  if (index + 2 == states_.size()) {
    if (const auto* strip = std::get_if<TextDecoder::Strip>(&decoder_.steps()[index + 1])) {
      at_once = strip->stop == 0;
      start = strip->start;
      content = strip->content;
    }
  }
  state.held.append(token);
  if (!at_once) return;
  if (!state.begun) {
    // Until the beginning is known to be stripped.
    std::string_view rest = state.held;
    std::size_t cut = 0;
    while (cut < start && rest.starts_with(content)) {
      rest.remove_prefix(content.size());
      ++cut;
    }
    const bool open = cut < start && content.starts_with(rest);
    if (open) return;
    push(index + 1, std::exchange(state.held, {}));
    state.begun = true;
    return;
  }
  text_.append(std::exchange(state.held, {}));
}

void DecodeRun::take(const TextDecoder::Strip& step, std::size_t index, std::string_view token) {
  push(index + 1, stripped(token, step));
}

void DecodeRun::take(const Metaspace& step, std::size_t index, std::string_view token) {
  const bool first = !std::exchange(states_[index].begun, true);
  std::string made;
  for (std::size_t at = 0; at < token.size();) {
    const bool space = token.substr(at).starts_with(step.replacement);
    if (!space) {
      made.push_back(token[at++]);
      continue;
    }
    if (!first || step.prepend == Metaspace::Prepend::kNever) made.push_back(' ');
    at += step.replacement.size();
  }
  push(index + 1, made);
}

}  // namespace loom::data
