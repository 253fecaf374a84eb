// A tokenizer of bytes with a few special tokens, for tests of handlers: what is encoded can be read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/text/preprocess/handler.h"
#include "tests/support/files.h"
#include "tests/support/tokenizer_files.h"
#include "tests/text/preprocess/preprocess_files.h"

namespace loom::test {

// Without merges: every byte is an id.
inline data::Tokenizer byte_tokenizer() {
  Json json = byte_level_json();
  json["model"]["merges"] = Json::array();
  int id = 260;
  for (const char* token : {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<step>", "<good>", "<bad>"}) {
    json["added_tokens"].push_back(added_token(id++, token));
  }
  return tokenizer_of(json);
}

class HandlerWorld : public ::testing::Test {
 protected:
  // A file of templates, which flags name.
  void templates(const std::string& json) { options_.prompt_type_path = write_file(folder_ / "t.json", json); }

  const data::Handler& handler() {
    if (!handler_) handler_ = data::make_handler(options_, tokenizer_, ids_);
    return *handler_;
  }
  data::Converted convert(const std::string& json) { return handler().convert(record_of(json), encoder_); }
  data::SampleIds sample(const std::string& json) {
    const auto converted = convert(json);
    EXPECT_TRUE(converted.sample) << json;
    return converted.sample.value_or(data::SampleIds(handler().keys().size()));
  }
  std::optional<data::DropReason> dropped(const std::string& json) { return convert(json).dropped; }

  // The text of ids; '_' for a label that is not learnt.
  std::string shown(const std::vector<data::TokenId>& ids) const {
    std::string text;
    std::vector<data::TokenId> learnt;
    const auto add_learnt = [&] {
      text += tokenizer_.decode(learnt);
      learnt.clear();
    };
    for (const data::TokenId id : ids) {
      if (id >= 0) {
        learnt.push_back(id);
      } else {
        add_learnt();
        text += "_";
      }
    }
    add_learnt();
    return text;
  }
  std::string input(const std::string& json) { return shown(sample(json).at(0)); }

  std::string refusal() {
    return without_folder(message_of<ConfigError>([&] { handler(); }));
  }
  std::string refusal(const std::string& json) {
    return message_of<ConfigError>([&] { convert(json); });
  }
  // Files of a test are "t.json" here.
  std::string without_folder(std::string text) const {
    const std::string folder = folder_.string() + "/";
    for (auto at = text.find(folder); at != text.npos; at = text.find(folder)) text.erase(at, folder.size());
    return text;
  }

  std::filesystem::path folder_ = fresh_folder();
  data::Tokenizer tokenizer_ = byte_tokenizer();
  data::TokenEncoder encoder_{tokenizer_};
  data::SpecialIds ids_{260, 261, std::nullopt, std::nullopt, {}};
  data::HandlerOptions options_;
  std::unique_ptr<data::Handler> handler_;
};

}  // namespace loom::test
