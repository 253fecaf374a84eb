#include "engine/multimodal/chat_form.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::multimodal {
namespace {

constexpr ChatForm kQwen2{.name = "qwen2vl",
                          .default_system = "You are a helpful assistant.",
                          .observation_before = "<|im_start|>tool\n",
                          .observation_after = "",
                          .picture_start = "<|vision_start|>",
                          .image_pad = "<|image_pad|>",
                          .video_pad = "<|video_pad|>",
                          .picture_end = "<|vision_end|>"};

constexpr ChatForm qwen3() {
  ChatForm form = kQwen2;
  form.name = "qwen3_vl";
  form.default_system = "";
  form.observation_before = "<|im_start|>user\n<tool_response>\n";
  form.observation_after = "\n</tool_response>";
  return form;
}

// Qwen3's without thoughts: the same turns.
constexpr ChatForm qwen3_nothink() {
  ChatForm form = qwen3();
  form.name = "qwen3_vl_nothink";
  return form;
}

constexpr ChatForm qwen2_5() {
  ChatForm form = kQwen2;
  form.name = "qwen2_5_vl";
  return form;
}

// InternVL 2.5's own.
constexpr std::string_view kInternvlSystem =
    "你是书生·万象，英文名是InternVL，"
    "是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。";

constexpr ChatForm kInternvl{.name = "internvl2_5",
                             .default_system = kInternvlSystem,
                             .observation_before = "",
                             .observation_after = "",
                             .picture_start = "<img>",
                             .image_pad = "<IMG_CONTEXT>",
                             .video_pad = "",
                             .picture_end = "</img>",
                             .is_internvl = true};

constexpr std::array<ChatForm, 5> kForms{kQwen2, qwen2_5(), qwen3(), qwen3_nothink(), kInternvl};

// White space beyond ASCII, as UTF-8.
constexpr std::array<std::string_view, 19> kWideSpaces{
    "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
    "\u2007", "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};

bool is_space(char c) { return (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= ' '); }

}  // namespace

const ChatForm& chat_form(std::string_view name, std::string_view where) {
  std::vector<std::string> names;
  for (const ChatForm& form : kForms) {
    if (form.name == name) return form;
    names.emplace_back(form.name);
  }
  const auto nearest = nearest_spelling(name, names);
  config_error("{} is {}, which is not built; {}the templates are {}", where, shown_text(name),
               nearest ? fmt::format("did you mean {}? ", *nearest) : "", fmt::join(names, ", "));
}

std::string_view stripped(std::string_view text) {
  const auto front = [&]() -> std::size_t {
    if (!text.empty() && is_space(text.front())) return 1;
    const auto wide =
        std::ranges::find_if(kWideSpaces, [&](std::string_view space) { return text.starts_with(space); });
    return wide == kWideSpaces.end() ? 0 : wide->size();
  };
  const auto back = [&]() -> std::size_t {
    if (!text.empty() && is_space(text.back())) return 1;
    const auto wide = std::ranges::find_if(kWideSpaces, [&](std::string_view space) { return text.ends_with(space); });
    return wide == kWideSpaces.end() ? 0 : wide->size();
  };
  while (const std::size_t size = front()) text.remove_prefix(size);
  while (const std::size_t size = back()) text.remove_suffix(size);
  return text;
}

}  // namespace loom::multimodal
