// Small tokenizer.json files for tests: a byte-level one and one of characters, with parts put in by hand.
#pragma once

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/text/tokenizer/tokenizer.h"

namespace loom::test {

using Json = nlohmann::ordered_json;

inline constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwenRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The character that stands for a byte, in UTF-8.
inline std::string byte_character(int byte) {
  int code = byte;
  const auto itself = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  if (!itself(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += itself(b) ? 0 : 1;
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// Byte b has the id b; " a" is 256, "bc" 257, "abc" 258, " abc" 259.
inline Json byte_level_json() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_character(byte)] = byte;
  vocabulary["\u0120a"] = 256;
  vocabulary["bc"] = 257;
  vocabulary["abc"] = 258;
  vocabulary["\u0120abc"] = 259;
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"vocab", vocabulary},
            {"merges", Json::array({"b c", "a bc", "\u0120 a", "\u0120a bc"})}}}};
}

// Characters and byte fallback, as Llama 2: <unk> 0, <s> 1, </s> 2, <0x00>.. from 3, then single characters and words.
inline Json llama_json() {
  Json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  int id = 259;
  for (const char* token : {"\u2581", "h", "i", "\u00e9", "hi", "\u2581hi"}) vocabulary[token] = id++;
  const auto token = [](int id, const char* content) {
    return Json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  return {
      {"added_tokens", Json::array({token(0, "<unk>"), token(1, "<s>"), token(2, "</s>")})},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers", Json::array({{{"type", "Prepend"}, {"prepend", "\u2581"}},
                                     {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}})}}},
      {"pre_tokenizer", nullptr},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", Json::array({{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                                {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
        {"pair", Json::array()},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", Json::array({1})}, {"tokens", Json::array({"<s>"})}}}}}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders", Json::array({{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                                  {{"type", "ByteFallback"}},
                                  {{"type", "Fuse"}},
                                  {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocabulary},
        {"merges", Json::array({Json::array({"h", "i"}), Json::array({"\u2581", "hi"})})}}}};
}

inline Json added_token(int id, std::string_view content, Json more = Json::object()) {
  Json token = {{"id", id}, {"content", content}, {"normalized", false}, {"special", false}};
  token.update(more);
  return token;
}

inline data::Tokenizer tokenizer_of(const Json& json) { return data::Tokenizer::parse(json.dump(), "tokenizer.json"); }

// Every byte is an id; from 260 on the tokens of turns and pictures.
inline Json picture_tokenizer_json() {
  Json json = byte_level_json();
  json["model"]["merges"] = Json::array();
  int id = 260;
  for (const char* token : {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|vision_end|>",
                            "<|image_pad|>", "<|video_pad|>", "<img>", "</img>", "<IMG_CONTEXT>"}) {
    json["added_tokens"].push_back(added_token(id++, token, {{"special", true}}));
  }
  return json;
}

}  // namespace loom::test
