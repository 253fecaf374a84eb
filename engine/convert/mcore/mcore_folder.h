// McoreFolder: the tensors of a Megatron-core checkpoint, by rank, stage and chunk, as its files hold them.
// Private to engine/convert.
//
// Sizes    come from the directories' names; a single number behind the tensor rank is a stage, unless all files
//          hold the embedding: then it is an expert rank.
// Ranks    every combination exists, or only the ranks that count tensor and expert ranks at once (experts that
//          are whole on each tensor rank).
// Reading  boxes of tensors; the storage of a tensor is read whole once, for its checksum, with its first box. At
//          most 64 files are open.
// Safety   files are described by pickles, from which nothing is called or constructed.
// Threads  one thread at a time.
// Errors   ConfigError for an invalid folder, and for missing files; io::FileDamage.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/convert/tensor_source.h"
#include "engine/formats/torch/torch_file.h"

namespace loom::checkpoint {

struct McoreRank {
  int tensor = 0;
  int stage = 0;
  int expert = 0;

  auto operator<=>(const McoreRank&) const = default;
};

struct McoreFile {
  McoreRank rank;
  std::string name;  // of its directory: "mp_rank_00_001"
  std::filesystem::path path;
  std::vector<TensorList> chunks;
};

class McoreFolder {
 public:
  // A checkpoint, or a folder of checkpoints; `flag` begins the messages.
  McoreFolder(const std::string& flag, const std::filesystem::path& given);
  ~McoreFolder();

  const std::filesystem::path& path() const { return path_; }
  int tensor_size() const { return tensor_size_; }
  int stages() const { return stages_; }
  int expert_size() const { return expert_size_; }
  int chunks() const { return chunks_; }

  // Sorted by stage, expert rank and tensor rank.
  const std::vector<McoreFile>& files() const { return files_; }
  // Null if such a rank has no file.
  const McoreFile* file(const McoreRank& rank) const;
  // The first file of a tensor rank of a stage: of its lowest expert rank.
  const McoreFile& first_of(int stage, int tensor) const;
  // The first file of an expert rank of a stage.
  const McoreFile& first_of_expert(int stage, int expert) const;
  // A tensor of a list of this folder, in another shape of as many elements; valid as long as this object. ConfigError
  // if its elements are not row-major.
  const SourceTensor& reshaped(const SourceTensor& tensor, const Shape& shape);

 private:
  class Readers;
  class OpenFile;

  void name_ranks(const std::string& flag);
  void read_file(McoreFile& file);
  void settle_single_number();
  void check_ranks() const;
  [[noreturn]] void refuse_missing(const McoreRank& rank) const;
  SourceTensor source(OpenFile& file, const std::string& name, const io::TorchTensor& tensor);

  std::filesystem::path path_;
  int tensor_size_ = 1;
  int stages_ = 1;
  int expert_size_ = 1;
  int chunks_ = 1;
  int numbers_ = 0;  // behind the tensor rank, in the directories' names
  std::vector<McoreFile> files_;
  std::unique_ptr<Readers> readers_;
  std::vector<std::unique_ptr<OpenFile>> open_files_;
  std::map<const SourceTensor*, std::pair<OpenFile*, io::TorchTensor>> stored_;
  std::vector<std::unique_ptr<SourceTensor>> reshaped_;
};

}  // namespace loom::checkpoint
