// DcpOutput: a checkpoint of torch.distributed.checkpoint in a folder of checkpoints, written file by file through the
// store: it appears whole, with its manifest, and then the tracker names it. Private to engine/convert.
//
// Refused  a folder that already has a tracker or a checkpoint of that name.
// Threads  one thread at a time.
// Errors   ConfigError for the folder; Error if writing fails. An object destroyed before commit() removes
//          its files.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/formats/dcp/dcp_file_writer.h"
#include "engine/formats/dcp/dcp_folder.h"
#include "engine/io/output_lock.h"

namespace loom::checkpoint {

class DcpOutput {
 public:
  DcpOutput(const std::string& flag, const std::filesystem::path& folder, const CheckpointId& id);
  ~DcpOutput();
  DcpOutput(const DcpOutput&) = delete;
  DcpOutput& operator=(const DcpOutput&) = delete;

  // Files come one after another; the items are the items of the metadata.
  void begin_file();
  // Adds a piece to an item, in the latest file.
  void tensor(io::DcpItem& item, const Offset& offset, const Shape& shape, const io::ByteProducer& content);
  void value(io::DcpItem& item, const io::PlainValue& value);
  void add(io::DcpItem item) { metadata_.items.push_back(std::move(item)); }

  // The path of the checkpoint.
  std::filesystem::path commit();

 private:
  void end_file();
  void place(io::DcpItem& item, io::DcpPiece piece, const Offset& offset);

  const CheckpointId id_;
  CheckpointStore store_;
  io::OutputLock lock_;
  std::filesystem::path directory_;
  io::DcpMetadata metadata_;
  Manifest manifest_;
  std::optional<io::DcpFileWriter> file_;
};

}  // namespace loom::checkpoint
