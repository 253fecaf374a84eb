#include "engine/formats/dcp/dcp_file_writer.h"

#include <fmt/format.h>

#include "engine/formats/dcp/dcp_folder.h"
#include "engine/formats/torch/torch_file.h"

namespace loom::io {

ByteSink DcpFileWriter::sink() {
  return [this](std::span<const std::byte> bytes) { file_.append(bytes); };
}

DcpPiece DcpFileWriter::tensor(DType dtype, const Shape& shape, const ByteProducer& content) {
  DcpPiece piece;
  piece.shape = shape;
  piece.begin = file_.size();
  piece.length = write_torch_tensor(sink(), dtype, shape, content);
  return piece;
}

DcpPiece DcpFileWriter::value(const PlainValue& value) {
  DcpPiece piece;
  piece.begin = file_.size();
  piece.length = write_torch_value(sink(), value);
  return piece;
}

std::string dcp_file_name(int rank, int number) { return fmt::format("__{}_{}.distcp", rank, number); }

FileSum write_dcp_metadata_file(const std::filesystem::path& folder, const DcpMetadata& metadata) {
  SummedFile file(folder / kDcpMetadataFile);
  const std::string bytes = write_dcp_metadata(metadata);
  file.append(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return file.finish();
}

}  // namespace loom::io
