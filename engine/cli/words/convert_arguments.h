// What `shardloom convert`, `merge` and `inspect` are asked for.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/convert/convert.h"
#include "engine/convert/hf/merge.h"
#include "engine/convert/mcore/mcore.h"
#include "engine/convert/mm/mm.h"

namespace loom::cli {

// `shardloom convert`.
struct ConvertArguments {
  std::variant<checkpoint::HfToDcp, checkpoint::DcpToHf, checkpoint::DcpToDcp, checkpoint::HfToMcore,
               checkpoint::McoreToHf, checkpoint::HfToMm, checkpoint::MmToHf>
      conversion;
  std::vector<std::string> without_effect;  // flags of other converters that change nothing here
};

// `shardloom merge`.
struct MergeArguments {
  checkpoint::MergeAdapter merge;
};

// `shardloom inspect`.
struct InspectArguments {
  std::vector<std::filesystem::path> paths;  // one, or two with `diff`
  bool diff = false;
  std::string filter;
  bool boxes = false;
  std::optional<std::filesystem::path> json;  // "-": standard output, alone
};

}  // namespace loom::cli
