// templates.json, and records that become samples: the input is the file, then a zero byte, then a record.
#include "engine/text/preprocess/handler.h"
#include "engine/text/preprocess/template_file.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace loom;

const data::Tokenizer& tokenizer() {
  static const auto read = data::Tokenizer::from_file(LOOM_SOURCE_DIR "/tests/reference/sft/tokenizers/qwen2");
  return read;
}

const std::vector<std::unique_ptr<data::Handler>>& handlers() {
  static const auto made = [] {
    std::vector<std::unique_ptr<data::Handler>> list;
    for (const std::string& name : data::handler_names()) {
      if (name == "LlamaFactoryInstructionHandler") continue;
      data::HandlerOptions options{.handler_name = name, .placeholder_token = "x", .seq_length = 40};
      const bool is_alpaca = name.find("Alpaca") != name.npos;
      if (name.find("Pretrain") == name.npos && name.find("Reward") == name.npos) {
        options.prompt_type = is_alpaca ? "qwen" : "qwen3";
        options.map_keys =
            is_alpaca ? R"({"history":"history","system":"system"})" : R"({"system":"system","tools":"tools"})";
      }
      list.push_back(data::make_handler(options, tokenizer(), {}));
    }
    return list;
  }();
  return made;
}

void convert(const data::Record& record) {
  static data::TokenEncoder encoder(tokenizer());
  for (const auto& handler : handlers()) {
    fuzz::answered_or_refused([&] {
      const data::Converted converted = handler->convert(record, encoder);
      if (converted.sample.has_value() == converted.dropped.has_value()) fuzz::found("neither sample nor reason", "");
      if (converted.sample && converted.sample->size() != handler->keys().size()) fuzz::found("keys are missing", "");
    });
  }
}

}  // namespace

LOOM_FUZZ_TARGET(template_file) {
  const std::string_view input = fuzz::text_of(data, size);
  const std::size_t end = std::min(input.find('\0'), input.size());
  fuzz::answered_or_refused([&] { data::parse_templates(input.substr(0, end), "templates.json"); });
  const std::string_view text = input.substr(std::min(end + 1, input.size()));
  const auto shallow = [](int depth, nlohmann::ordered_json::parse_event_t, nlohmann::ordered_json&) {
    return depth < 64;
  };
  auto json = nlohmann::ordered_json::parse(text, shallow, false);
  if (json.is_object()) convert({std::move(json), "a.jsonl:1"});
  return 0;
}
