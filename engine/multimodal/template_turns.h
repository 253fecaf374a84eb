// The turns of a conversation as texts, by a chat template. Private to engine/multimodal.
//
// Turn       question: what the template adds to the earlier turns, up to the begin of the answer; answer: what it adds
//            then. The texts of all turns, one behind another, are the template's text of the conversation.
// Pictures   are parts of a message: {"type": "image"}, {"type": "video"}; its texts are parts too, and a message
//            without pictures is a text. Contents have no white space at their ends.
// Errors     ConfigError with the sample's place: the template refuses it, or changes earlier turns when one is added,
//            as those do that remove thoughts.
#pragma once

#include <string>
#include <vector>

#include "engine/multimodal/conversation.h"
#include "engine/text/template/chat_template.h"

namespace loom::multimodal {

struct TurnTexts {
  std::string question;
  std::string answer;
};

std::vector<TurnTexts> turns_by_template(const data::ChatTemplate& chat_template, const Conversation& sample);

}  // namespace loom::multimodal
