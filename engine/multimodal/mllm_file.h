// Files of conversations with pictures: MLLM demo format and other rows of ShareGPT's kind.
//
// Files      .json (one list of objects, or an object a line), .jsonl, .parquet. MLLM demo format is {"images": [path],
//            "videos": [path], "messages": [{"role", "content"}]}; DatasetAttr names other columns and roles.
// Rows       the first max_samples of all files together. A row whose roles do not alternate is counted as dropped;
//            a row with another number of placeholders than files is an error.
// Pictures   FOLDER/path where that is there, else `path` unchanged, which is counted; each must be there. A video is a
//            folder of frames, or a list of pictures.
// Tags       a role or tag that is switched off (null) matches nothing. In MindSpeed-MM null is then a role.
// Memory     the texts of all rows.
// Threads    pure functions.
// Errors     ConfigError with file and line, and the sample's number: malformed rows, audio, calls of functions, tools,
//            another number of placeholders than files, a file that is not there.
// Source     mindspeed_mm/data/data_utils/func_utils/convert.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/multimodal/conversation.h"

namespace loom::multimodal {

// The columns of rows, and the tags of their messages; none: switched off.
struct DatasetAttr {
  using Name = std::optional<std::string>;
  Name system = {};
  Name images = {};
  Name videos = {};
  Name audios = {};
  Name tools = {};
  std::string messages = "conversations";
  std::string role_tag = "from";
  std::string content_tag = "value";
  Name user_tag = "human";
  Name assistant_tag = "gpt";
  Name observation_tag = "observation";
  Name function_tag = "function_call";
  Name system_tag = "system";
};

// Of MLLM demo format.
DatasetAttr mllm_demo_attr();

// The files of `names`, separated by commas: DIR/name where that is there, else `name`. `where` begins messages:
// "data.json: dataset".
std::vector<std::filesystem::path> data_files(const std::string& names, const std::filesystem::path& dir,
                                              const std::string& where);

struct ConversationFiles {
  std::vector<std::filesystem::path> files;
  std::filesystem::path picture_folder;
  std::optional<std::int64_t> max_samples = {};
  DatasetAttr attr = {};
  bool adds_image = false;  // a sample of one picture and without <image> gets "<image>\n" in front of its first turn
};

struct Conversations {
  std::vector<Conversation> samples;
  DropCounter drops;
  std::int64_t rows = 0;      // that were read, dropped ones too
  std::int64_t outside = 0;   // paths that are not in the picture folder
  std::string first_outside;  // the first of them
};

Conversations read_conversations(const ConversationFiles& files);

}  // namespace loom::multimodal
