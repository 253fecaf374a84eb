// Chat: the contents of a record in any format. Private to engine/text.
#pragma once

#include <string>
#include <vector>

namespace loom::data {

enum class Role : std::uint8_t { kUser, kAssistant, kObservation, kFunction, kSystem };

struct Message {
  Role role = Role::kUser;
  std::string content;
};

struct Chat {
  std::vector<Message> prompt;
  std::vector<Message> answers;  // one, or chosen and rejected
  std::string system;
  std::string tools;  // a JSON list
  std::string where;  // the record's place
};

}  // namespace loom::data
