#include "engine/text/tokenizer/post_processor.h"

#include "engine/core/shown_text.h"

namespace loom::data {
namespace {

// The ids of {"SpecialToken": {"id": NAME}}, from special_tokens.
std::vector<std::int32_t> special_ids(const JsonNode& special, const JsonNode& tokens, std::int32_t id_limit) {
  special.allow_only({"id", "type_id"});
  const JsonNode token = tokens.at(special.text("id"));
  token.allow_only({"id", "ids", "tokens"});
  std::vector<std::int32_t> ids;
  for (const JsonNode& id : token.at("ids").as_list()) {
    ids.push_back(static_cast<std::int32_t>(id.as_integer(0, id_limit - 1)));
  }
  return ids;
}

}  // namespace

void PostProcessor::add(const JsonNode& node, std::int32_t id_limit) {
  const std::string type = node.type();
  if (type == "Sequence") {
    node.allow_only({"type", "processors"});
    for (const JsonNode& step : node.at("processors").as_list()) add(step, id_limit);
  } else if (type == "ByteLevel") {
    node.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  } else if (type == "TemplateProcessing") {
    add_template(node, id_limit);
  } else {
    node.at("type").refuse("use ByteLevel, TemplateProcessing or Sequence");
  }
}

void PostProcessor::add_template(const JsonNode& node, std::int32_t id_limit) {
  node.allow_only({"type", "single", "pair", "special_tokens"});
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> behind;
  int texts = 0;
  const JsonNode single = node.at("single");
  for (const JsonNode& part : single.as_list()) {
    part.allow_only({"SpecialToken", "Sequence"});
    if (const auto special = part.find("SpecialToken")) {
      const auto ids = special_ids(*special, node.at("special_tokens"), id_limit);
      auto& side = texts == 0 ? before : behind;
      side.insert(side.end(), ids.begin(), ids.end());
    } else {
      const JsonNode sequence = part.at("Sequence");
      if (sequence.text("id") != "A") sequence.at("id").refuse("one text is encoded; use A");
      ++texts;
    }
  }
  if (texts != 1) single.refuse("it has the text (Sequence A) {} times; write it once", texts);
  before_.insert(before_.begin(), before.begin(), before.end());
  behind_.insert(behind_.end(), behind.begin(), behind.end());
}

}  // namespace loom::data
