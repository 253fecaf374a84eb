#include "engine/multimodal/template_turns.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/core/error.h"
#include "engine/multimodal/chat_form.h"

namespace loom::multimodal {
namespace {

using Json = nlohmann::ordered_json;

Json content_of(std::string_view content) {
  Json parts = Json::array();
  bool has_picture = false;
  const auto add_text = [&](std::string_view text) {
    if (!text.empty()) parts.push_back({{"type", "text"}, {"text", std::string(text)}});
  };
  while (true) {
    const std::size_t image = content.find(kImagePlaceholder);
    const std::size_t video = content.find(kVideoPlaceholder);
    const std::size_t at = std::min(image, video);
    add_text(content.substr(0, at));
    if (at == content.npos) break;
    has_picture = true;
    parts.push_back({{"type", image < video ? "image" : "video"}});
    content.remove_prefix(at + (image < video ? kImagePlaceholder : kVideoPlaceholder).size());
  }
  if (has_picture) return parts;
  return parts.empty() ? Json("") : parts[0]["text"];
}

const char* name_of(Role role) {
  switch (role) {
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kObservation:
      return "tool";
  }
  return "";
}

class Rendering {
 public:
  Rendering(const data::ChatTemplate& chat_template, const Conversation& sample)
      : template_(chat_template), sample_(sample) {
    if (!sample.system.empty()) messages_.push_back({{"role", "system"}, {"content", sample.system}});
  }

  // What the text becomes longer by with one more message.
  std::string add(const Message& message, bool begins_answer) {
    messages_.push_back({{"role", name_of(message.role)}, {"content", content_of(stripped(message.content))}});
    std::string text = render(begins_answer);
    if (!text.starts_with(text_)) {
      config_error(
          "{}: the chat template changes earlier turns when message {} is added, so its answers cannot be told "
          "apart; give template: qwen2vl or qwen3_vl",
          sample_.place(), messages_.size());
    }
    std::string added = text.substr(text_.size());
    text_ = std::move(text);
    return added;
  }

 private:
  std::string render(bool begins_answer) const {
    try {
      return template_.render(messages_, {.add_generation_prompt = begins_answer});
    } catch (const ConfigError& error) {
      config_error("{}: {}", sample_.place(), error.what());
    }
  }

  const data::ChatTemplate& template_;
  const Conversation& sample_;
  Json messages_ = Json::array();
  std::string text_;
};

}  // namespace

std::vector<TurnTexts> turns_by_template(const data::ChatTemplate& chat_template, const Conversation& sample) {
  Rendering rendering(chat_template, sample);
  std::vector<TurnTexts> turns;
  for (std::size_t i = 0; i + 1 < sample.messages.size(); i += 2) {
    TurnTexts turn;
    turn.question = rendering.add(sample.messages[i], true);
    turn.answer = rendering.add(sample.messages[i + 1], false);
    turns.push_back(std::move(turn));
  }
  return turns;
}

}  // namespace loom::multimodal
