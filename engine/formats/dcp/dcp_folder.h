// DcpFolder: a checkpoint of torch.distributed.checkpoint, opened for reading.
//
// Files      `.metadata` and the files it names, each an archive of torch.save after another; or, without `.metadata`,
//            the safetensors files of HuggingFaceStorageWriter, whose headers name the box of a tensor that each holds
//            (DCP_SHARDING_INFO).
// Opening    reads `.metadata` and looks at the files' sizes. Tensors are read on request.
// Ties       names of one tensor may share its bytes: then dtype, shape and all boxes are equal. Any other overlap is
//            damage.
// Reading    any box of a tensor, whatever pieces it was saved in; other bytes are read only for a checksum.
// Checksums  a piece whose first element is in the box is read whole and its checksum compared: where ranks read
//            disjoint boxes, every piece is verified once. Safetensors files have none.
// Threads    one thread at a time; several objects may read one folder.
// Errors     ConfigError for a folder without a checkpoint; FileDamage with file, offset and item; Error where a file
//            changes while it is read. No symbolic link is followed out of the folder.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/formats/dcp/dcp_metadata.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/formats/torch/plain_value.h"
#include "engine/io/byte_source.h"

namespace loom::io {

inline constexpr std::string_view kDcpMetadataFile = ".metadata";

class DcpFolder {
 public:
  explicit DcpFolder(std::filesystem::path folder);
  ~DcpFolder();

  const std::filesystem::path& folder() const { return folder_; }
  const DcpMetadata& metadata() const { return metadata_; }
  // Null where there is none.
  const DcpItem* find(std::string_view name) const { return metadata_.find(name); }

  // The elements [offset[d], offset[d] + shape[d]) of a tensor, row-major, in its dtype. Precondition: a tensor of this
  // checkpoint, a box of it, and `to` as large as that.
  void read_box(const DcpItem& item, const Offset& offset, const Shape& shape, std::span<std::byte> to) const;
  // All bytes were held against checksums of whole files: from here on pieces are read without comparing their own.
  void set_verified() { verified_ = true; }
  // Reads how every part of every file begins. FileDamage where one is not the tensor or the value that `.metadata` has
  // there.
  void check_headers() const;
  // Precondition: an item that is not a tensor.
  PlainValue value(const DcpItem& item) const;

 private:
  struct OpenFile;

  void open_files();
  void check_part(const DcpItem& item, const DcpPiece& piece) const;
  void check_parts_differ() const;
  void read_safetensors();
  OpenFile& file_of(const DcpPiece& piece) const;
  void read_piece(const DcpItem& item, const DcpPiece& piece, const Offset& offset, const Shape& shape,
                  std::span<std::byte> to) const;
  void check_kind(const DcpItem& item, const DcpPiece& piece, DType dtype, const Shape& shape) const;

  const std::filesystem::path folder_;
  bool verified_ = false;
  DcpMetadata metadata_;
  std::vector<std::unique_ptr<OpenFile>> files_;  // as metadata_.files
  mutable const OpenFile* reading_ = nullptr;     // the one whose descriptor is open
};

}  // namespace loom::io
