// ConversationEncoder: token ids and labels of a conversation with pictures.
//
// Templates  qwen2vl (also under the name qwen2_5_vl) and qwen3_vl: turns of <|im_start|>ROLE ... <|im_end|>, contents
//            without white space at their ends, a system block of the template or of the sample. internvl2_5: the same
//            turns with InternVL's system text; contents stay as they are. Or a chat template in Jinja, of a Qwen-VL
//            model: its text of the turns, each without white space at its ends.
// Pictures   <image> becomes the start, n pads and the end of a picture, n = t h w / merge^2 (token_count); <video>
//            alike with its own pad. InternVL has no videos.
// Labels     not shifted. qwen: answers with their <|im_end|> and end of line; with train_on_prompt all; with
//            mask_history the last answer alone. internvl2_5: answers with <|im_end|>, without the end of line.
// Cut        qwen: pairs of a question and its answer, in order (with mask_history from the last one on), each cut to
//            the room that is left (data::cut_b); pairs behind it are left out. internvl2_5: the end of the sample.
//            A sample whose cut takes a token of a picture gives nothing: the caller leaves it out and counts it. In
//            MindSpeed-MM the model fails on it.
// Threads    const functions are safe from any number of threads; each brings its own TokenEncoder.
// Errors     ConfigError at construction: an unknown template, a token that the tokenizer does not have. From check():
//            a content that has the text of a token of pictures. From encode(): a chat template that refuses the
//            sample, changes earlier turns, or has no place for its pictures.
// Source     mindspeed_mm/data/data_utils/func_utils/{template,mm_plugin,convert}.py, data_utils/utils.py.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/multimodal/conversation.h"
#include "engine/multimodal/picture_reader.h"
#include "engine/text/tokenizer/special_ids.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace loom::data {
class ChatTemplate;
}

namespace loom::multimodal {

inline constexpr data::TokenId kNotLearnt = -100;

struct EncoderOptions {
  std::string template_name = "qwen2vl";
  std::string where = "template";  // of the name, for messages
  // If set, instead of the named template, which gives the tokens of pictures.
  std::shared_ptr<const data::ChatTemplate> chat_template = {};
  std::int64_t cutoff_len = 1024;
  bool train_on_prompt = false;
  bool mask_history = false;
  std::int64_t merge_size = 2;
};

struct EncodedSample {
  std::vector<data::TokenId> ids;
  std::vector<data::TokenId> labels;  // kNotLearnt: none
};

// The pictures of a sample, in the order of their placeholders.
struct PictureGrids {
  std::span<const Grid> images;
  std::span<const Grid> videos;
};

struct ChatForm;

class ConversationEncoder {
 public:
  ConversationEncoder(const EncoderOptions& options, const data::Tokenizer& tokenizer, const data::SpecialIds& ids);

  // Whether encode() may refuse a sample without pictures too.
  bool may_refuse_texts() const { return options_.chat_template != nullptr; }
  // Refuses what can be refused without the pictures.
  void check(const Conversation& sample) const;
  // Nothing where tokens of pictures would be cut. Before: as many grids as placeholders, check() passed.
  std::optional<EncodedSample> encode(const Conversation& sample, const PictureGrids& pictures,
                                      data::TokenEncoder& encoder) const;

  // The tokens of a picture that no text has: start, pads, end.
  std::vector<data::TokenId> picture_ids(const Grid& grid) const;
  // Fills rows of a batch: the tokenizer's, else the stop token.
  data::TokenId pad() const { return pad_; }

 private:
  struct Turn {
    std::vector<data::TokenId> source;
    std::vector<data::TokenId> target;
  };
  class Expansion;

  std::vector<Turn> turns_of(const Conversation& sample, Expansion& pictures, data::TokenEncoder& encoder) const;
  std::vector<Turn> template_turns(const Conversation& sample, Expansion& pictures, data::TokenEncoder& encoder) const;
  EncodedSample cut_turns(std::vector<Turn> turns) const;
  EncodedSample encode_internvl(const Conversation& sample, Expansion& pictures, data::TokenEncoder& encoder) const;
  bool has_all(const EncodedSample& encoded, const PictureGrids& pictures) const;

  EncoderOptions options_;
  const ChatForm& form_;
  data::TokenId start_ = 0;
  data::TokenId image_ = 0;
  std::optional<data::TokenId> video_;
  data::TokenId end_ = 0;
  data::TokenId pad_ = 0;
};

}  // namespace loom::multimodal
