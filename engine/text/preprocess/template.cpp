#include "engine/text/preprocess/template.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/data/turn_cut.h"
#include "engine/text/preprocess/tool_text.h"

namespace loom::data {
namespace {

using Kind = Slot::Kind;
using Piece = FilledFormat::Piece;

constexpr std::string_view kThoughtBegin = "<think>\n";
constexpr std::string_view kThoughtEnd = "\n</think>\n\n";
constexpr FilledFormat::Names kContent = {"{{content}}", ""};
constexpr FilledFormat::Names kContentAndNumber = {"{{content}}", "{{idx}}"};
constexpr FilledFormat::Names kCall = {"{{name}}", "{{arguments}}"};

struct Placeholder {
  std::size_t at = std::string::npos;
  std::size_t value = 0;
};

Placeholder next_placeholder(std::string_view text, std::size_t from, const FilledFormat::Names& names) {
  Placeholder next;
  for (std::size_t value = 0; value < names.size(); ++value) {
    const std::size_t at = names[value].empty() ? text.npos : text.find(names[value], from);
    if (at < next.at) next = {at, value};
  }
  return next;
}

// For content and idx, only the first is a placeholder.
Piece piece_of_text(std::string_view text, FilledFormat::Names names) {
  Piece piece;
  std::size_t done = 0;
  const bool once = names != kCall;
  for (Placeholder next = next_placeholder(text, 0, names); next.at != text.npos;
       next = next_placeholder(text, done, names)) {
    piece.texts.emplace_back(text.substr(done, next.at - done));
    piece.values.push_back(next.value);
    done = next.at + names[next.value].size();
    if (once) names[next.value] = "";
  }
  piece.texts.emplace_back(text.substr(done));
  return piece;
}

// Makes the formats of a template with the ids of a tokenizer.
class FormatMaker {
 public:
  FormatMaker(const TemplateText& text, const Tokenizer& tokenizer, const SpecialIds& ids)
      : text_(text), tokenizer_(tokenizer), ids_(ids) {}

  FilledFormat make(const std::vector<Slot>& slots, const FilledFormat::Names& names) const {
    std::vector<Piece> pieces;
    for (const Slot& slot : slots) {
      if (slot.kind == Kind::kText) {
        pieces.push_back(piece_of_text(slot.text, names));
      } else if (const auto id = id_of(slot)) {
        pieces.push_back({.id = id});
      }
    }
    return FilledFormat(std::move(pieces));
  }

 private:
  // A tokenizer without bos begins its texts with nothing.
  std::optional<TokenId> id_of(const Slot& slot) const {
    if (slot.kind == Kind::kBos) return ids_.bos;
    if (slot.kind == Kind::kEos) {
      if (ids_.eos) return ids_.eos;
      config_error("{} ends answers with eos, and the tokenizer has none; write eos_token into tokenizer_config.json",
                   text_.where);
    }
    if (const auto id = tokenizer_.find(slot.text)) return id;
    config_error("{} has the slot {{\"token\": '{}'}}, which is no token of the tokenizer; use a template that fits it",
                 text_.where, shown_text(slot.text));
  }

  const TemplateText& text_;
  const Tokenizer& tokenizer_;
  const SpecialIds& ids_;
};

bool has_eos(const std::vector<Slot>& slots) {
  return std::ranges::find(slots, Kind::kEos, &Slot::kind) != slots.end();
}

// The id of a word that the tokenizer finds in a text as one token.
TokenId stop_id(const TemplateText& text, const std::string& word, const Tokenizer& tokenizer) {
  const auto ids = tokenizer.encode(word, {.add_special_tokens = false});
  const auto id = tokenizer.find(word);
  if (id && ids == std::vector<TokenId>{*id}) return *id;
  config_error(
      "{} has the stop word '{}', which is no token of the tokenizer; use a template that fits it, or add the word to "
      "added_tokens of tokenizer.json",
      text.where, shown_text(word));
}

SpecialIds special_ids_of(const TemplateText& text, const Tokenizer& tokenizer, SpecialIds ids) {
  for (const std::string& word : text.stop_words) {
    const TokenId id = stop_id(text, word, tokenizer);
    if (text.replace_eos && word == text.stop_words.front()) ids.eos = id;
  }
  if (text.efficient_eos && !ids.eos) {
    config_error(
        "{} ends samples with eos (efficient_eos), and the tokenizer has none; write eos_token into "
        "tokenizer_config.json",
        text.where);
  }
  if (!ids.pad) ids.pad = ids.eos;
  return ids;
}

std::string without_thoughts(std::string_view content) {
  std::string text;
  while (true) {
    const std::size_t begin = content.find(kThoughtBegin);
    const std::size_t end = begin == content.npos ? begin : content.find(kThoughtEnd, begin + kThoughtBegin.size());
    text += content.substr(0, end == content.npos ? content.size() : begin);
    if (end == content.npos) break;
    content.remove_prefix(end + kThoughtEnd.size());
  }
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

void append(std::vector<TokenId>& ids, const std::vector<TokenId>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

std::vector<Message> messages_of(const Chat& chat, const Message& answer) {
  std::vector<Message> messages = chat.prompt;
  messages.push_back(answer);
  return messages;
}

std::int64_t length(const std::vector<TokenId>& ids) { return static_cast<std::int64_t>(ids.size()); }

}  // namespace

void FilledFormat::encode(const Values& values, TokenEncoder& encoder, std::vector<TokenId>& ids) const {
  std::string text;
  for (const Piece& piece : pieces_) {
    if (piece.id) {
      ids.push_back(*piece.id);
      continue;
    }
    text = piece.texts.front();
    for (std::size_t i = 0; i < piece.values.size(); ++i) {
      text += values[piece.values[i]];
      text += piece.texts[i + 1];
    }
    if (!text.empty()) encoder.encode(text, ids, {.add_special_tokens = false});
  }
}

std::string FilledFormat::text(const Values& values) const {
  std::string text;
  for (const Piece& piece : pieces_) {
    for (std::size_t i = 0; i < piece.texts.size(); ++i) {
      if (i > 0) text += values[piece.values[i - 1]];
      text += piece.texts[i];
    }
  }
  return text;
}

Template::Template(TemplateText text, EnableThinking thinking, const Tokenizer& tokenizer, const SpecialIds& ids)
    : text_(std::move(text)), thinking_(thinking), ids_(special_ids_of(text_, tokenizer, ids)) {
  const FormatMaker maker(text_, tokenizer, ids_);
  const bool is_llama2 = text_.template_class == TemplateClass::kLlama2;
  user_ = maker.make(text_.user, is_llama2 ? kContent : kContentAndNumber);
  assistant_ = maker.make(text_.assistant, kContent);
  system_ = maker.make(text_.system, kContent);
  function_has_call_ = std::ranges::any_of(
      text_.function, [](const Slot& slot) { return slot.text.find("{{arguments}}") != std::string::npos; });
  if (ids_.eos || !has_eos(text_.function)) {
    function_ = maker.make(text_.function, function_has_call_ ? kCall : kContent);
  }
  observation_ = maker.make(text_.observation, kContent);
  if (text_.template_class != TemplateClass::kLFDefault) separator_ = maker.make(text_.separator, {});
  prefix_ = maker.make(text_.prefix, {});
  if (is_reasoning()) {
    empty_thought_ =
        tokenizer.encode(std::string(kThoughtBegin) + std::string(kThoughtEnd), {.add_special_tokens = false});
  } else if (thinking_ != EnableThinking::kNone) {
    config_error(
        "--enable-thinking is {}, and {} is of class {}; only a ReasoningTemplate has thoughts: take the flag "
        "out",
        thinking_ == EnableThinking::kTrue, text_.where, name_of(text_.template_class));
  }
}

std::string Template::system_text(const Chat& chat) const {
  std::string text = chat.system.empty() ? text_.default_system : chat.system;
  if (!chat.tools.empty()) text += tools_text(chat.tools, chat.where);
  return text;
}

void Template::encode_function(const Message& message, const std::string& where, TokenEncoder& encoder,
                               std::vector<TokenId>& ids) const {
  if (!function_) {
    config_error(
        "{}: a function call ends with eos, and the tokenizer has none; write eos_token into "
        "tokenizer_config.json",
        where);
  }
  if (!function_has_call_) return function_->encode({message.content, ""}, encoder, ids);
  const FunctionCall call = parse_function_call(message.content, where);
  function_->encode({call.name, call.arguments}, encoder, ids);
}

void Template::encode_message(const Message& message, std::size_t number, const std::string& before,
                              const std::string& where, TokenEncoder& encoder, std::vector<TokenId>& ids) const {
  switch (message.role) {
    case Role::kUser: {
      const std::string content = before + message.content;
      return user_.encode({content, std::to_string(number / 2)}, encoder, ids);
    }
    case Role::kAssistant:
      return assistant_.encode({message.content, ""}, encoder, ids);
    case Role::kObservation:
      return observation_.encode({message.content, ""}, encoder, ids);
    case Role::kFunction:
      return encode_function(message, where, encoder, ids);
    case Role::kSystem:
      require(false, "a system message occurs within a chat");
  }
}

std::vector<TokenId> Template::encode_with_opening(const Chat& chat, const Message& message, std::size_t number,
                                                   TokenEncoder& encoder) const {
  std::vector<TokenId> ids;
  std::string before;
  if (number == 0) {
    prefix_.encode({}, encoder, ids);
    if (!chat.system.empty() || !text_.default_system.empty() || !chat.tools.empty()) {
      const std::string system = system_text(chat);
      if (text_.template_class == TemplateClass::kLlama2) {
        before = system_.text({system, ""});
      } else {
        system_.encode({system, ""}, encoder, ids);
      }
    }
  } else if (number % 2 == 0) {
    separator_.encode({}, encoder, ids);
  }
  encode_message(message, number, before, chat.where, encoder, ids);
  return ids;
}

std::vector<Turn> Template::uncut_turns(const Chat& chat, std::span<const Message> messages,
                                        TokenEncoder& encoder) const {
  require(messages.size() % 2 == 0, "a chat of {} messages has no whole turns", messages.size());
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < messages.size(); i += 2) {
    turns.push_back({encode_with_opening(chat, messages[i], i, encoder),
                     encode_with_opening(chat, messages[i + 1], i + 1, encoder)});
  }
  return turns;
}

void Template::add_empty_thought(const Message& answer, Turn& turn) const {
  const std::string_view content = answer.content;
  if (content.find(kThoughtBegin) != content.npos || content.find(kThoughtEnd) != content.npos) return;
  if (thinking_ == EnableThinking::kTrue) {
    turn.answer.insert(turn.answer.begin(), empty_thought_.begin(), empty_thought_.end());
  } else {
    append(turn.prompt, empty_thought_);
  }
}

std::vector<Turn> Template::cut(std::vector<Turn> turns, std::int64_t cutoff) const {
  const bool by_b = is_reasoning() || text_.template_class == TemplateClass::kLFDefault;
  std::int64_t room = by_b ? cutoff - 1 : cutoff;
  std::size_t kept = 0;
  for (; kept < turns.size() && room > 0; ++kept) {
    Turn& turn = turns[kept];
    const TurnLengths whole{length(turn.prompt), length(turn.answer)};
    const TurnLengths rest = by_b ? cut_b(whole, room) : cut_a(whole, room);
    turn.prompt.resize(static_cast<std::size_t>(rest.prompt));
    turn.answer.resize(static_cast<std::size_t>(rest.answer));
    room -= rest.prompt + rest.answer;
  }
  turns.resize(kept);
  return turns;
}

std::vector<Turn> Template::turns(const Chat& chat, const Message& answer, std::int64_t cutoff,
                                  TokenEncoder& encoder) const {
  std::vector<Message> messages = messages_of(chat, answer);
  if (is_reasoning() && thinking_ == EnableThinking::kFalse) {
    for (std::size_t i = 1; i < messages.size(); i += 2) messages[i].content = without_thoughts(messages[i].content);
  }
  std::vector<Turn> turns = uncut_turns(chat, messages, encoder);
  if (is_reasoning()) {
    for (std::size_t i = 0; i < turns.size(); ++i) add_empty_thought(messages[2 * i + 1], turns[i]);
  }
  return cut(std::move(turns), cutoff);
}

Turn Template::one_turn(const Chat& chat, const Message& answer, TokenEncoder& encoder) const {
  std::vector<Message> messages = messages_of(chat, answer);
  if (is_reasoning()) {
    const bool all = thinking_ == EnableThinking::kFalse;
    for (std::size_t i = 1; i < messages.size(); i += 2) {
      if (all || i + 1 < messages.size()) messages[i].content = without_thoughts(messages[i].content);
    }
  }
  std::vector<Turn> turns = uncut_turns(chat, messages, encoder);
  Turn whole;
  for (const Turn& turn : turns) {
    append(whole.prompt, turn.prompt);
    if (&turn != &turns.back()) append(whole.prompt, turn.answer);
  }
  whole.answer = std::move(turns.back().answer);
  if (is_reasoning()) add_empty_thought(messages.back(), whole);
  return whole;
}

}  // namespace loom::data
