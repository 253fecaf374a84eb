// The files that Shardloom ships beside its programs: configs/devices, configs/fsdp2, configs/models, examples.
//
// Looked up  in this order, the first folder that has configs/ in it: $SHARDLOOM_SHARE; share/shardloom beside the bin/
//            that holds this program; the folders of ShareFolder objects; the source tree of this build.
// Errors     ConfigError that names the flag, the value, the existing presets, and SHARDLOOM_SHARE if there is no
//            such folder.
// Threads    ShareFolder: before main begins. The functions: any thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loom::config {

// None when no folder of the list above exists. ConfigError when $SHARDLOOM_SHARE is set and has no configs/.
std::optional<std::filesystem::path> share_folder();

// A further place to look; the installed package puts one into the programs that are built against it.
struct ShareFolder {
  explicit ShareFolder(std::filesystem::path folder);
};

// Names of the files configs/KIND/NAME.yaml, sorted; none without a share folder.
std::vector<std::string> preset_names(std::string_view kind);

// The file that `value` of `flag` means: a file or folder of that name, else the preset configs/KIND/VALUE.yaml. A
// value written as a path (with '/', .yaml, .yml or .json) is returned unchanged, whether or not the file exists.
std::filesystem::path find_preset(const std::string& value, std::string_view kind, std::string_view flag);

}  // namespace loom::config
