#include "engine/convert/dcp/dcp_output.h"

#include <system_error>
#include <utility>

#include "engine/checkpoint/verify.h"
#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/formats/dcp/dcp_folder.h"

namespace loom::checkpoint {
namespace {

void refuse_taken_folder(const std::string& flag, const CheckpointFolder& folder, const CheckpointId& id) {
  std::error_code error;
  for (const auto& path : {folder.path_of(id), folder.tracker_path()}) {
    if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) continue;
    config_error("{}: {} is there already; give a folder without checkpoints", flag, path.string());
  }
}

}  // namespace

DcpOutput::DcpOutput(const std::string& flag, const std::filesystem::path& folder, const CheckpointId& id)
    : id_(id), store_(folder), lock_(io::OutputLock::of_folder(flag, folder)) {
  refuse_taken_folder(flag, store_.folder(), id);
  directory_ = store_.begin(id);
  manifest_.id = id;
}

DcpOutput::~DcpOutput() {
  if (directory_.empty()) return;
  try {
    store_.abandon(id_);
  } catch (const Error& error) {
    logger().warn("{}; it is half of a checkpoint, and no longer needed", error.what());
  }
}

void DcpOutput::begin_file() {
  end_file();
  metadata_.files.push_back(io::dcp_file_name(static_cast<int>(metadata_.files.size())));
  file_.emplace(directory_ / metadata_.files.back());
}

void DcpOutput::end_file() {
  if (!file_) return;
  const io::FileSum sum = file_->finish();
  manifest_.files.push_back({metadata_.files.back(), static_cast<std::int64_t>(sum.size_bytes), sum.crc32c});
  file_.reset();
}

void DcpOutput::place(io::DcpItem& item, io::DcpPiece piece, const Offset& offset) {
  piece.offset = offset;
  piece.file = metadata_.files.size() - 1;
  item.pieces.push_back(std::move(piece));
}

void DcpOutput::tensor(io::DcpItem& item, const Offset& offset, const Shape& shape, const io::ByteProducer& content) {
  place(item, file_->tensor(item.dtype, shape, content), offset);
}

void DcpOutput::value(io::DcpItem& item, const io::PlainValue& value) { place(item, file_->value(value), {}); }

std::filesystem::path DcpOutput::commit() {
  end_file();
  const io::FileSum sum = io::write_dcp_metadata_file(directory_, metadata_);
  manifest_.files.push_back({std::string(io::kDcpMetadataFile), static_cast<std::int64_t>(sum.size_bytes), sum.crc32c});
  read_back(directory_, manifest_.files);
  io::DcpFolder(directory_).check_headers();
  store_.commit(manifest_);
  directory_.clear();
  return store_.folder().path_of(id_);
}

}  // namespace loom::checkpoint
