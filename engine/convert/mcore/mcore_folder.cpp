#include "engine/convert/mcore/mcore_folder.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <list>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <system_error>
#include <utility>

#include "engine/checkpoint/directories.h"
#include "engine/convert/find_checkpoint.h"
#include "engine/convert/mcore/mcore_output.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/mapped_file.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRankPrefix = "mp_rank_";
constexpr std::size_t kMostOpenFiles = 64;
constexpr int kMostRank = 99'999;
constexpr const char* kEmbeddingName = "embedding.word_embeddings.weight";

// The numbers of "mp_rank_01_002_003"; nothing for another name.
std::optional<std::vector<int>> rank_numbers(std::string_view name) {
  std::vector<int> numbers;
  for (std::string_view rest = name.substr(kRankPrefix.size());;) {
    const std::size_t end = std::min(rest.find('_'), rest.size());
    int number = 0;
    const auto [last, error] = std::from_chars(rest.data(), rest.data() + end, number);
    const bool is_number = error == std::errc{} && last == rest.data() + end && end >= 2 && rest[0] != '-';
    if (!is_number || number > kMostRank || numbers.size() == 3) return std::nullopt;
    numbers.push_back(number);
    if (end == rest.size()) return numbers;
    rest.remove_prefix(end + 1);
  }
}

bool has_ranks(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  return std::ranges::any_of(names_in(folder), [](const std::string& name) { return name.starts_with(kRankPrefix); });
}

fs::path find_mcore(const std::string& flag, const fs::path& given) {
  if (has_ranks(given)) return given;
  const fs::path found = find_checkpoint(given, flag).path;
  if (has_ranks(found)) return found;
  config_error(
      "{}: {} has no {}NN: it is no checkpoint of Megatron's ranks; one of torch.distributed.checkpoint is read by "
      "shardloom convert dcp-to-hf",
      flag, found.string(), kRankPrefix);
}

int most_of(const std::vector<McoreFile>& files, int McoreRank::*number) {
  int most = 0;
  for (const McoreFile& file : files) most = std::max(most, file.rank.*number);
  return most;
}

}  // namespace

// The files that are open, the one that was read last in front.
class McoreFolder::Readers {
 public:
  const io::FileReader& of(const io::MappedFile& file) {
    const auto found = std::ranges::find(open_, &file, &Open::file);
    if (found != open_.end()) {
      open_.splice(open_.begin(), open_, found);
    } else {
      if (open_.size() == kMostOpenFiles) open_.pop_back();
      open_.emplace_front(file);
    }
    return open_.front().reader;
  }

 private:
  struct Open {
    explicit Open(const io::MappedFile& opened) : file(&opened), reader(opened) {}

    const io::MappedFile* file;
    io::FileReader reader;
  };
  std::list<Open> open_;
};

class McoreFolder::OpenFile final : public io::ByteSource {
 public:
  OpenFile(const fs::path& path, Readers& readers) : file_(path), readers_(readers) {}

  std::uint64_t size() const override { return file_.bytes().size(); }
  std::string where(std::uint64_t at) const override { return fmt::format("{}: offset {}", path(), at); }
  std::string path() const { return escaped(file_.path().string()); }
  // True once for each storage.
  bool is_first_read(std::uint64_t storage) { return read_.insert(storage).second; }

 protected:
  void read_inside(std::uint64_t at, std::span<std::byte> to) const override {
    readers_.of(file_).read(static_cast<std::size_t>(at), to);
  }

 private:
  const io::MappedFile file_;
  Readers& readers_;
  std::set<std::uint64_t> read_;
};

McoreFolder::McoreFolder(const std::string& flag, const fs::path& given)
    : path_(find_mcore(flag, given)), readers_(std::make_unique<Readers>()) {
  name_ranks(flag);
  for (McoreFile& file : files_) read_file(file);
  settle_single_number();
  std::ranges::sort(files_, {}, [](const McoreFile& file) {
    return std::tuple(file.rank.stage, file.rank.expert, file.rank.tensor);
  });
  tensor_size_ = most_of(files_, &McoreRank::tensor) + 1;
  stages_ = most_of(files_, &McoreRank::stage) + 1;
  expert_size_ = most_of(files_, &McoreRank::expert) + 1;
  check_ranks();
}

McoreFolder::~McoreFolder() = default;

void McoreFolder::name_ranks(const std::string& flag) {
  for (const std::string& name : names_in(path_)) {
    if (!name.starts_with(kRankPrefix)) continue;
    const auto numbers = rank_numbers(name);
    if (!numbers) {
      config_error(
          "{}: {} is no directory of a rank, such as mp_rank_00, mp_rank_00_001 or mp_rank_00_001_002; move it away",
          flag, shown_text((path_ / name).string()));
    }
    const int more = static_cast<int>(numbers->size()) - 1;
    if (!files_.empty() && more != numbers_) {
      config_error(
          "{}: {} has directories of ranks with different counts of numbers, '{}' and '{}'; give a folder with those "
          "of one checkpoint",
          flag, path_.string(), files_.front().name, name);
    }
    numbers_ = more;
    McoreFile file{.rank = {}, .name = name, .path = path_ / name / kMcoreFile, .chunks = {}};
    file.rank.tensor = numbers->front();
    if (more > 0) file.rank.stage = (*numbers)[1];
    if (more > 1) file.rank.expert = (*numbers)[2];
    std::error_code error;
    if (!fs::exists(file.path, error)) {
      config_error("{}: {} is missing; give a checkpoint with the files of all ranks", flag, file.path.string());
    }
    files_.push_back(std::move(file));
  }
}

void McoreFolder::read_file(McoreFile& file) {
  open_files_.push_back(std::make_unique<OpenFile>(file.path, *readers_));
  OpenFile& opened = *open_files_.back();
  const io::TorchMapping mapping(opened);
  std::vector<std::string> keys;
  for (int chunk = 0; mapping.has(fmt::format("model{}", chunk)); ++chunk)
    keys.push_back(fmt::format("model{}", chunk));
  if (keys.empty()) keys.emplace_back("model");
  for (const std::string& key : keys) {
    std::vector<SourceTensor> tensors;
    for (const auto& [name, tensor] : mapping.tensors(key)) tensors.push_back(source(opened, name, tensor));
    file.chunks.emplace_back(std::move(tensors));
    for (const SourceTensor& tensor : file.chunks.back().tensors()) {
      stored_.emplace(&tensor, std::pair(&opened, mapping.tensors(key).find(tensor.name)->second));
    }
  }
  if (&file != &files_.front() && file.chunks.size() != static_cast<std::size_t>(chunks_)) {
    throw io::FileDamage(
        fmt::format("{}: it holds {} chunks of its stage, but {} holds {}; they are no ranks of one checkpoint",
                    escaped(file.path.string()), file.chunks.size(), escaped(files_.front().path.string()), chunks_));
  }
  chunks_ = static_cast<int>(file.chunks.size());
}

// A number that is no stage, because every file has what only the first stage has.
void McoreFolder::settle_single_number() {
  if (numbers_ != 1) return;
  const bool all_first = std::ranges::all_of(
      files_, [](const McoreFile& file) { return file.chunks.front().find(kEmbeddingName) != nullptr; });
  if (!all_first) return;
  for (McoreFile& file : files_) std::swap(file.rank.stage, file.rank.expert);
}

void McoreFolder::check_ranks() const {
  std::set<McoreRank> there;
  for (const McoreFile& file : files_) {
    if (there.insert(file.rank).second) continue;
    config_error("{}: two directories are of the rank of {}; give a checkpoint of one run", path_.string(), file.name);
  }
  const std::int64_t together = std::lcm(tensor_size_, expert_size_);
  const auto count = static_cast<std::int64_t>(there.size());
  if (count == std::int64_t{tensor_size_} * stages_ * expert_size_) return;
  const auto has_counted = [&](std::int64_t i) {
    return there.contains({static_cast<int>(i / stages_ % tensor_size_), static_cast<int>(i % stages_),
                           static_cast<int>(i / stages_ % expert_size_)});
  };
  if (count == together * stages_ && std::ranges::all_of(std::views::iota(std::int64_t{0}, count), has_counted)) return;
  for (int stage = 0; stage < stages_; ++stage) {
    for (int tensor = 0; tensor < tensor_size_; ++tensor) {
      for (int expert = 0; expert < expert_size_; ++expert) {
        if (!there.contains({tensor, stage, expert})) refuse_missing({tensor, stage, expert});
      }
    }
  }
}

void McoreFolder::refuse_missing(const McoreRank& rank) const {
  const bool one_is_stage = numbers_ == 1 && stages_ > 1;
  const auto stage = numbers_ == 2 || one_is_stage ? std::optional(rank.stage) : std::nullopt;
  const auto expert = numbers_ == 2 || (numbers_ == 1 && !one_is_stage) ? std::optional(rank.expert) : std::nullopt;
  throw io::FileDamage(
      fmt::format("{}: {} is missing: its {} directories are of {} tensor ranks, {} stages and {} expert ranks; give a "
                  "checkpoint with the files of all ranks",
                  escaped(path_.string()), mcore_rank_name(rank.tensor, stage, expert), files_.size(), tensor_size_,
                  stages_, expert_size_));
}

SourceTensor McoreFolder::source(OpenFile& file, const std::string& name, const io::TorchTensor& tensor) {
  return {name, tensor.dtype(), tensor.shape(), file.path(),
          [&file, tensor](const Offset& offset, const Shape& box, std::span<std::byte> to) {
            tensor.read_box(offset, box, to, file.is_first_read(tensor.storage_begin()));
          }};
}

const McoreFile* McoreFolder::file(const McoreRank& rank) const {
  const auto found = std::ranges::find(files_, rank, &McoreFile::rank);
  return found == files_.end() ? nullptr : &*found;
}

const McoreFile& McoreFolder::first_of(int stage, int tensor) const {
  const auto found = std::ranges::find_if(
      files_, [&](const McoreFile& file) { return file.rank.stage == stage && file.rank.tensor == tensor; });
  require(found != files_.end(), "no file of tensor rank {} of stage {}", tensor, stage);
  return *found;
}

const McoreFile& McoreFolder::first_of_expert(int stage, int expert) const {
  const auto found = std::ranges::find_if(
      files_, [&](const McoreFile& file) { return file.rank.stage == stage && file.rank.expert == expert; });
  require(found != files_.end(), "no file of expert rank {} of stage {}", expert, stage);
  return *found;
}

const SourceTensor& McoreFolder::reshaped(const SourceTensor& tensor, const Shape& shape) {
  const auto& [file, stored] = stored_.at(&tensor);
  const auto other = stored.reshaped(shape);
  if (!other) {
    config_error("{}: '{}' {} does not lie row-major in its storage, and cannot be taken as {}; save it contiguous",
                 tensor.file, shown_text(tensor.name), to_string(tensor.shape), to_string(shape));
  }
  reshaped_.push_back(std::make_unique<SourceTensor>(source(*file, tensor.name, *other)));
  return *reshaped_.back();
}

}  // namespace loom::checkpoint
