// PostProcessor: the ids that tokenizer.json adds around an encoded text. Private to engine/text.
//
// Read     ByteLevel (nothing), TemplateProcessing (`single`; `pair` is for two texts), Sequence, null.
// Errors   ConfigError with file and key for another type, or an id without a token.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/text/tokenizer/json_node.h"

namespace loom::data {

class PostProcessor {
 public:
  PostProcessor() = default;
  PostProcessor(const JsonNode& node, std::int32_t id_limit) { add(node, id_limit); }

  const std::vector<std::int32_t>& before() const { return before_; }
  const std::vector<std::int32_t>& behind() const { return behind_; }

 private:
  void add(const JsonNode& node, std::int32_t id_limit);
  void add_template(const JsonNode& node, std::int32_t id_limit);

  std::vector<std::int32_t> before_;
  std::vector<std::int32_t> behind_;
};

}  // namespace loom::data
