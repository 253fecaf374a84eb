// DcpMetadata: the items of a checkpoint of torch.distributed.checkpoint and their places: the content of `.metadata`.
//
// Item     a tensor, cut into pieces, or a value without tensors. Its name is flat ("optimizer.state.w.exp_avg"); its
//          path is its place in the nested state ("optimizer", "state", "w", "exp_avg"; a list's place is a
//          number).
// Piece    a box of the tensor, in one part of one file: an archive of torch.save. A value has one piece without box.
// Reading  strict: the pickle may name the classes of this format alone (pickle_reader.h); sizes, boxes and file names
//          are checked, and the pieces of a tensor cover it without overlap.
// Units    elements and bytes.
// Threads  a value; safe to read from any number of threads.
// Errors   FileDamage with file and offset, or file and item.
// Source   PyTorch 2.11, torch/distributed/checkpoint/{metadata,filesystem,default_planner}.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/core/box.h"
#include "engine/core/dtype.h"
#include "engine/core/shape.h"

namespace loom::io {

using DcpKey = std::variant<std::string, std::int64_t>;

struct DcpPiece {
  Offset offset;  // of the box in the tensor; a value has neither
  Shape shape;
  std::size_t file = 0;  // in DcpMetadata::files
  std::uint64_t begin = 0;
  std::uint64_t length = 0;

  bool operator==(const DcpPiece&) const = default;
};

struct DcpItem {
  std::string name;
  std::vector<DcpKey> path;
  bool is_tensor = false;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<DcpPiece> pieces;
};

// Whether two items are names of one tensor, whose bytes are stored once.
bool are_tied(const DcpItem& item, const DcpItem& other);

struct DcpMetadata {
  std::vector<std::string> files;  // names in the checkpoint's folder
  std::vector<DcpItem> items;      // in the order of the file

  // The place of an item by its name; built once by index().
  const DcpItem* find(std::string_view name) const;
  void index();

 private:
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

// `file` appears in messages.
DcpMetadata read_dcp_metadata(std::span<const std::byte> bytes, const std::string& file);

// The bytes of `.metadata`. Precondition: pieces of every tensor cover it without overlap.
std::string write_dcp_metadata(const DcpMetadata& metadata);

// Throws FileDamage "FILE: 'NAME': ..." unless the pieces are boxes of the tensor, cover it and do not overlap.
void check_pieces(const DcpItem& item, const std::string& file);

}  // namespace loom::io
