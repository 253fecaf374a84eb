#include "engine/convert/mcore/mcore_output.h"

#include <fmt/core.h>
#include <system_error>

#include "engine/checkpoint/directories.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/io/summed_file.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;

void make_directory(const fs::path& path) {
  std::error_code error;
  if (!fs::create_directory(path, error)) raise<Error>("{}: cannot create: {}", path.string(), error.message());
}

}  // namespace

std::string mcore_rank_name(int tensor_rank, std::optional<int> stage, std::optional<int> expert_rank) {
  std::string name = fmt::format("mp_rank_{:02}", tensor_rank);
  if (stage) name += fmt::format("_{:03}", *stage);
  if (expert_rank) name += fmt::format("_{:03}", *expert_rank);
  return name;
}

McoreOutput::McoreOutput(const std::string& flag, const fs::path& folder, CheckpointId id)
    : folder_(folder), id_(id), lock_(io::OutputLock::of_folder(flag, folder)) {
  std::error_code error;
  for (const fs::path& path : {folder_.path_of(id_), folder_.tracker_path()}) {
    if (!fs::exists(fs::symlink_status(path, error))) continue;
    config_error("{}: {} is there already; give a folder without checkpoints", flag, path.string());
  }
  const fs::path temporary = folder / temporary_name(id_.directory_name());
  make_directory(temporary);
  temporary_ = temporary;
}

McoreOutput::~McoreOutput() {
  if (temporary_.empty()) return;
  try {
    remove_directory(temporary_);
  } catch (const Error& error) {
    log_warning("{}; it is half of a checkpoint, and no longer needed", error.what());
  }
}

void McoreOutput::write(const std::string& rank_name, const std::vector<io::TorchEntry>& entries) {
  make_directory(temporary_ / rank_name);
  io::SummedFile file(temporary_ / rank_name / kMcoreFile);
  io::write_torch_mapping([&file](std::span<const std::byte> bytes) { file.append(bytes); }, entries);
  file.finish();
  flush_directory(temporary_ / rank_name);
}

fs::path McoreOutput::commit() {
  flush_directory(temporary_);
  rename_directory(temporary_, folder_.path_of(id_));
  temporary_.clear();
  flush_directory(folder_.path());
  write_text_durably(folder_.tracker_path(), id_.text());
  return folder_.path_of(id_);
}

}  // namespace loom::checkpoint
