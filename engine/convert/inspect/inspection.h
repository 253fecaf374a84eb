// Inspection: the contents of a checkpoint and their integrity, for users and as JSON.
//
// Verdict   of each file: checked against size and CRC-32C if the checkpoint has a manifest (manifest.h); else, in a
//           checkpoint of torch.distributed.checkpoint, against the checksums of its zip archives. safetensors files
//           have no checksums: header and sizes are checked.
// Reading   every byte covered by a checksum, in blocks; never more than one block in memory.
// Damage    is no error here: the result holds it.
// Units     bytes; elements.
// Threads   one thread at a time.
// Errors    ConfigError for a path that is not a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/convert/inspect/opened_checkpoint.h"
#include "engine/formats/torch/plain_value.h"

namespace loom::checkpoint {

struct InspectedBox {
  Offset offset;
  Shape shape;
  std::string file;
};

struct InspectedTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<InspectedBox> boxes;

  std::uint64_t size_bytes() const;
};

struct InspectedFile {
  std::string name;
  std::uint64_t size_bytes = 0;
  bool damaged = false;
  std::string verdict;  // "whole, crc32c e3069283", "has 10 bytes, but ..."
};

struct Inspection {
  std::filesystem::path path;
  std::string kind;
  std::vector<InspectedTensor> tensors;
  std::vector<std::pair<std::string, io::PlainValue>> values;  // dicts are flattened: "args.lr"
  std::vector<InspectedFile> files;
  std::vector<std::string> problems;  // of no single file: .metadata that cannot be read

  bool damaged() const;
};

// `filter`: tensors and values whose name contains it, or matches it if it has a * or ?; all files are verified.
Inspection inspect(const std::filesystem::path& given, const std::string& filter = {});

// With `boxes`, a line for each box of a tensor.
std::string to_text(const Inspection& inspection, bool boxes);
nlohmann::ordered_json to_json(const Inspection& inspection);

bool matches(const std::string& name, const std::string& filter);

}  // namespace loom::checkpoint
