// The texts around the turns and pictures of multimodal models. Private to engine/multimodal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loom::multimodal {

struct ChatForm {
  std::string_view name;
  std::string_view default_system;  // empty: no system block without one in the sample
  std::string_view observation_before;
  std::string_view observation_after;
  std::string_view picture_start;
  std::string_view image_pad;
  std::string_view video_pad;  // empty: videos are not built
  std::string_view picture_end;
  // InternVL: turns are encoded one by one, the header of an answer belongs to it, and the end of the sample is cut.
  bool is_internvl = false;
};

// ConfigError "WHERE is NAME; ..." for another name.
const ChatForm& chat_form(std::string_view name, std::string_view where);

inline constexpr std::string_view kSystemHeader = "<|im_start|>system\n";
inline constexpr std::string_view kUserHeader = "<|im_start|>user\n";
inline constexpr std::string_view kAnswerHeader = "<|im_start|>assistant\n";
inline constexpr std::string_view kTurnEnd = "<|im_end|>\n";
inline constexpr std::string_view kStop = "<|im_end|>";

// The text without white space at its ends, as Python's str.strip().
std::string_view stripped(std::string_view text);

}  // namespace loom::multimodal
