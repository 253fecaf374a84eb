#include "engine/multimodal/conversation_encoder.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/data/turn_cut.h"
#include "engine/multimodal/chat_form.h"
#include "engine/multimodal/template_turns.h"

namespace loom::multimodal {
namespace {

using data::TokenId;
using Ids = std::vector<TokenId>;

constexpr data::EncodeOptions kPlain{.add_special_tokens = false};

std::int64_t length(const Ids& ids) { return static_cast<std::int64_t>(ids.size()); }

void append(Ids& ids, const Ids& more) { ids.insert(ids.end(), more.begin(), more.end()); }

Ids ids_of(const std::string& text, data::TokenEncoder& encoder) {
  Ids ids;
  encoder.encode(text, ids, kPlain);
  return ids;
}

// The id of a word that the tokenizer finds in a text as one token.
TokenId id_of(std::string_view word, const EncoderOptions& options, const data::Tokenizer& tokenizer) {
  const auto id = tokenizer.find(word);
  if (id && tokenizer.encode(word, kPlain) == Ids{*id}) return *id;
  config_error(
      "{} is {}, and its '{}' is no token of the tokenizer; use the tokenizer of a multimodal model, or the "
      "template that fits it",
      options.where, shown_text(options.template_name), word);
}

}  // namespace

// Puts the tokens of pictures in the places of their placeholders, picture by picture.
class ConversationEncoder::Expansion {
 public:
  Expansion(const ChatForm& form, const PictureGrids& pictures, std::int64_t merge_size)
      : form_(form), pictures_(pictures), merge_size_(merge_size) {}

  std::string of(std::string_view content) {
    std::string text;
    while (true) {
      const std::size_t image = content.find(kImagePlaceholder);
      const std::size_t video = content.find(kVideoPlaceholder);
      const std::size_t at = std::min(image, video);
      text += content.substr(0, at);
      if (at == content.npos) return text;
      add(image < video ? form_.image_pad : form_.video_pad, next(image < video), text);
      content.remove_prefix(at + (image < video ? kImagePlaceholder : kVideoPlaceholder).size());
    }
  }
  // Of a text by a chat template, in which each picture has one pad. Nothing where it has more than there are pictures.
  std::optional<std::string> of_pads(std::string_view rendered) {
    std::string text;
    while (true) {
      const std::size_t image = rendered.find(form_.image_pad);
      const std::size_t video = rendered.find(form_.video_pad);
      const std::size_t at = std::min(image, video);
      text += rendered.substr(0, at);
      if (at == rendered.npos) return text;
      const bool is_image = image < video;
      const std::string_view pad = is_image ? form_.image_pad : form_.video_pad;
      if ((is_image ? images_ : videos_) == (is_image ? pictures_.images : pictures_.videos).size())
        return std::nullopt;
      add_pads(pad, next(is_image), text);
      rendered.remove_prefix(at + pad.size());
    }
  }

  bool is_done() const { return images_ == pictures_.images.size() && videos_ == pictures_.videos.size(); }

 private:
  const Grid& next(bool image) {
    const std::span<const Grid> grids = image ? pictures_.images : pictures_.videos;
    std::size_t& done = image ? images_ : videos_;
    require(done < grids.size(), "more placeholders than {} grids", grids.size());
    return grids[done++];
  }

  void add(std::string_view pad, const Grid& grid, std::string& text) const {
    text += form_.picture_start;
    add_pads(pad, grid, text);
    text += form_.picture_end;
  }
  void add_pads(std::string_view pad, const Grid& grid, std::string& text) const {
    for (std::int64_t i = token_count(grid, merge_size_); i > 0; --i) text += pad;
  }

  const ChatForm& form_;
  const PictureGrids& pictures_;
  const std::int64_t merge_size_;
  std::size_t images_ = 0;
  std::size_t videos_ = 0;
};

ConversationEncoder::ConversationEncoder(const EncoderOptions& options, const data::Tokenizer& tokenizer,
                                         const data::SpecialIds& ids)
    : options_(options), form_(chat_form(options.template_name, options.where)) {
  require(options.cutoff_len > 0 && options.merge_size > 0, "a cut-off of {}", options.cutoff_len);
  id_of("<|im_start|>", options, tokenizer);
  start_ = id_of(form_.picture_start, options, tokenizer);
  image_ = id_of(form_.image_pad, options, tokenizer);
  if (!form_.video_pad.empty()) video_ = id_of(form_.video_pad, options, tokenizer);
  end_ = id_of(form_.picture_end, options, tokenizer);
  pad_ = ids.pad.value_or(id_of(kStop, options, tokenizer));
}

void ConversationEncoder::check(const Conversation& sample) const {
  const auto check_text = [&](const std::string& text) {
    for (const std::string_view word : {form_.picture_start, form_.image_pad, form_.video_pad, form_.picture_end}) {
      if (word.empty() || text.find(word) == text.npos) continue;
      config_error("{} has '{}' in a message, which stands for a picture there; write {} and name the file",
                   sample.place(), word, kImagePlaceholder);
    }
  };
  check_text(sample.system);
  for (const Message& message : sample.messages) {
    check_text(message.content);
    if (form_.is_internvl && message.role == Role::kObservation) {
      config_error("{} has a result of a tool, which is not built for {}; leave the sample out", sample.place(),
                   form_.name);
    }
  }
  if (!video_ && !sample.videos.empty()) {
    config_error("{} has a video, which is not built for {}; leave the sample out", sample.place(), form_.name);
  }
}

std::vector<ConversationEncoder::Turn> ConversationEncoder::turns_of(const Conversation& sample, Expansion& pictures,
                                                                     data::TokenEncoder& encoder) const {
  std::vector<Turn> turns(sample.messages.size() / 2);
  const std::string system = sample.system.empty() ? std::string(form_.default_system) : sample.system;
  if (!system.empty()) turns.front().source = ids_of(fmt::format("{}{}{}", kSystemHeader, system, kTurnEnd), encoder);
  for (std::size_t i = 0; i < sample.messages.size(); ++i) {
    const Message& message = sample.messages[i];
    const std::string content = pictures.of(stripped(message.content));
    Turn& turn = turns[i / 2];
    if (message.role == Role::kAssistant) {
      turn.target = ids_of(fmt::format("{}{}", content, kTurnEnd), encoder);
    } else {
      const bool user = message.role == Role::kUser;
      append(turn.source,
             ids_of(fmt::format("{}{}{}{}{}", user ? kUserHeader : form_.observation_before, content,
                                user ? std::string_view() : form_.observation_after, kTurnEnd, kAnswerHeader),
                    encoder));
    }
  }
  return turns;
}

std::vector<ConversationEncoder::Turn> ConversationEncoder::template_turns(const Conversation& sample,
                                                                           Expansion& pictures,
                                                                           data::TokenEncoder& encoder) const {
  const auto check_count = [&](bool same) {
    if (same) return;
    config_error(
        "{}: the chat template gives another number of {} and {} than the sample has pictures; use the template of a "
        "model that reads pictures",
        sample.place(), form_.image_pad, form_.video_pad);
  };
  std::vector<Turn> turns;
  for (const TurnTexts& texts : turns_by_template(*options_.chat_template, sample)) {
    const auto question = pictures.of_pads(texts.question), answer = pictures.of_pads(texts.answer);
    check_count(question && answer);
    turns.push_back({ids_of(*question, encoder), ids_of(*answer, encoder)});
  }
  check_count(pictures.is_done());
  return turns;
}

EncodedSample ConversationEncoder::cut_turns(std::vector<Turn> turns) const {
  if (options_.mask_history) std::ranges::reverse(turns);
  std::int64_t room = options_.cutoff_len;
  std::size_t kept = 0;
  for (; kept < turns.size() && room > 0; ++kept) {
    Turn& turn = turns[kept];
    const data::TurnLengths rest = data::cut_b({length(turn.source), length(turn.target)}, room);
    turn.source.resize(static_cast<std::size_t>(rest.prompt));
    turn.target.resize(static_cast<std::size_t>(rest.answer));
    room -= rest.prompt + rest.answer;
  }
  turns.resize(kept);
  if (options_.mask_history) std::ranges::reverse(turns);
  EncodedSample sample;
  for (const Turn& turn : turns) {
    append(sample.ids, turn.source);
    append(sample.ids, turn.target);
    append(sample.labels, options_.train_on_prompt ? turn.source : Ids(turn.source.size(), kNotLearnt));
    const bool learnt = !options_.mask_history || &turn == &turns.back();
    append(sample.labels, learnt ? turn.target : Ids(turn.target.size(), kNotLearnt));
  }
  return sample;
}

EncodedSample ConversationEncoder::encode_internvl(const Conversation& sample, Expansion& pictures,
                                                   data::TokenEncoder& encoder) const {
  const std::string system = sample.system.empty() ? std::string(form_.default_system) : sample.system;
  const std::size_t header = ids_of(std::string(kAnswerHeader), encoder).size();
  EncodedSample encoded;
  encoded.ids = ids_of(fmt::format("{}{}{}", kSystemHeader, system, kTurnEnd), encoder);
  encoded.labels.assign(encoded.ids.size(), kNotLearnt);
  for (const Message& message : sample.messages) {
    const bool answer = message.role == Role::kAssistant;
    const Ids ids = ids_of(
        fmt::format("{}{}{}", answer ? kAnswerHeader : kUserHeader, pictures.of(message.content), kTurnEnd), encoder);
    Ids labels(ids.size(), kNotLearnt);
    if (answer)
      std::copy(ids.begin() + static_cast<std::ptrdiff_t>(header), ids.end() - 1,
                labels.begin() + static_cast<std::ptrdiff_t>(header));
    append(encoded.ids, ids);
    append(encoded.labels, labels);
  }
  const auto most = static_cast<std::size_t>(options_.cutoff_len);
  encoded.ids.resize(std::min(encoded.ids.size(), most));
  encoded.labels.resize(encoded.ids.size());
  return encoded;
}

bool ConversationEncoder::has_all(const EncodedSample& encoded, const PictureGrids& pictures) const {
  const auto tokens = [&](std::span<const Grid> grids) {
    std::int64_t count = 0;
    for (const Grid& grid : grids) count += token_count(grid, options_.merge_size);
    return count;
  };
  const auto all = static_cast<std::int64_t>(pictures.images.size() + pictures.videos.size());
  return std::ranges::count(encoded.ids, start_) == all && std::ranges::count(encoded.ids, end_) == all &&
         std::ranges::count(encoded.ids, image_) == tokens(pictures.images) &&
         (!video_ || std::ranges::count(encoded.ids, *video_) == tokens(pictures.videos));
}

std::optional<EncodedSample> ConversationEncoder::encode(const Conversation& sample, const PictureGrids& pictures,
                                                         data::TokenEncoder& encoder) const {
  Expansion expansion(form_, pictures, options_.merge_size);
  EncodedSample encoded = form_.is_internvl        ? encode_internvl(sample, expansion, encoder)
                          : options_.chat_template ? cut_turns(template_turns(sample, expansion, encoder))
                                                   : cut_turns(turns_of(sample, expansion, encoder));
  require(expansion.is_done(), "{}: fewer placeholders than grids", sample.place());
  if (!has_all(encoded, pictures)) return std::nullopt;
  return encoded;
}

std::vector<TokenId> ConversationEncoder::picture_ids(const Grid& grid) const {
  Ids ids(static_cast<std::size_t>(token_count(grid, options_.merge_size)) + 2, image_);
  ids.front() = start_;
  ids.back() = end_;
  return ids;
}

}  // namespace loom::multimodal
