// convert_llava: LLaVA's instruction file (llava_instruct_150k.json) in MLLM demo format.
//
// Input      a list of {"image": name, "conversations": [{"from": "human" | "gpt", "value"}]}.
// Output     a list of {"images": ["./train2017/name"], "messages": [{"role", "content"}]}, an object a line, text in
//            UTF-8. A sample without image has none; one whose picture is not in COCO_PATH/train2017 is left out and
//            counted.
// File       its folders are made; it appears whole or not at all, readable by its owner alone. A file that is there
//            is refused before any work; MindSpeed-MM refuses it after the work.
// Memory     a few hundred KiB, however large the input.
// Threads    one.
// Errors     ConfigError with flag, or file and line: another role, a malformed sample, an output that exists.
// Source     mindspeed_mm's llava_instruct_2_mllm_demo_format.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace loom::multimodal {

struct LlavaConversion {
  std::filesystem::path coco_path = "./data/COCO2017";
  std::filesystem::path llava_json_path = "./data/llava_instruct_150k.json";
  std::filesystem::path output_json_path = "./data/mllm_format_llava_instruct_data.json";
};

struct LlavaSummary {
  std::int64_t written = 0;
  std::int64_t without_image = 0;          // of these
  std::int64_t skipped = 0;                // their picture is not there
  std::vector<std::string> first_skipped;  // paths of pictures, at most three
};

// `between` is called now and then; its exceptions end the conversion, and nothing is written.
LlavaSummary convert_llava(const LlavaConversion& options, const std::function<void()>& between = {});

}  // namespace loom::multimodal
