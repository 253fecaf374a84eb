// DcpFileWriter: one file of a checkpoint of torch.distributed.checkpoint ("__0_0.distcp"): tensors and values, each an
// archive of torch.save, one behind another.
//
// Places   tensor() and value() return the place of the piece, for the `.metadata` of the checkpoint
//          (dcp_metadata.h); the caller fills in its offset and file.
// Threads  one thread at a time.
// Errors   as SummedFile.
#pragma once

#include <filesystem>

#include "engine/formats/dcp/dcp_metadata.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/formats/torch/plain_value.h"
#include "engine/io/summed_file.h"

namespace loom::io {

class DcpFileWriter {
 public:
  explicit DcpFileWriter(std::filesystem::path path) : file_(std::move(path)) {}

  // `content` gives the elements of the box, row-major.
  DcpPiece tensor(DType dtype, const Shape& shape, const ByteProducer& content);
  DcpPiece value(const PlainValue& value);
  FileSum finish() { return file_.finish(); }

 private:
  ByteSink sink();

  SummedFile file_;
};

// "__3_0.distcp": the file of a rank.
std::string dcp_file_name(int rank, int number = 0);

// Writes `.metadata` into a folder that has its files.
FileSum write_dcp_metadata_file(const std::filesystem::path& folder, const DcpMetadata& metadata);

}  // namespace loom::io
