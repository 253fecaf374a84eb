#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "engine/checkpoint/manifest_check.h"
#include "engine/convert/convert.h"
#include "engine/convert/dcp/dcp_output.h"
#include "engine/convert/find_checkpoint.h"
#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/io/output_plan.h"

namespace loom::checkpoint {
namespace {

// One item of the new checkpoint, and where it is read.
struct CopiedItem {
  const io::DcpItem* from = nullptr;
  const SourceTensor* tensor = nullptr;  // null: a value
  io::DcpItem item;
  std::optional<std::size_t> tied_to;  // an earlier entry, whose bytes it shares
};

// A rank's rows of dim 0, as torch.chunk cuts them: every rank the same number, the last ones fewer or none.
OutputTensor rows_of(const SourceTensor& tensor, int rank, int world) {
  OutputTensor output{tensor.name, tensor.dtype, tensor.shape, {}};
  Offset offset(static_cast<std::size_t>(tensor.shape.ndim()), 0);
  const std::int64_t each = ceil_div<std::int64_t>(tensor.shape[0], world);
  offset[0] = std::min(tensor.shape[0], each * rank);
  output.shape[0] = std::min(tensor.shape[0] - offset[0], each);
  output.parts.push_back({&tensor, offset, output.shape});
  return output;
}

bool is_optimizer(const io::DcpItem& item) {
  const auto* first = std::get_if<std::string>(&item.path.front());
  return item.name.starts_with("optimizer.") || (first != nullptr && *first == "optimizer");
}

bool is_cut(const SourceTensor& tensor) { return tensor.shape.ndim() > 0 && tensor.shape.numel() > 0; }

class Reshard {
 public:
  Reshard(const io::DcpFolder& folder, const TensorList& list, const DcpToDcp& options)
      : folder_(folder), world_(options.world_size) {
    for (const io::DcpItem& item : folder.metadata().items) {
      if (options.no_optim && is_optimizer(item)) {
        ++done_.left_out;
        continue;
      }
      io::DcpItem copy = item;
      copy.pieces.clear();
      const SourceTensor* tensor = item.is_tensor ? list.find(item.name) : nullptr;
      const auto tied_to = tensor == nullptr ? std::nullopt : earlier_name_of(item);
      entries_.push_back({&item, tensor, std::move(copy), tied_to});
      if (tensor == nullptr) continue;
      ++done_.tensors;
      if (!tied_to) done_.bytes += tensor->size_bytes();
    }
    done_.files = world_;
  }

  Converted write(DcpOutput& output, const CopyWatcher& watcher) {
    TensorCopy copy(done_.bytes, watcher);
    for (int rank = 0; rank < world_; ++rank) {
      output.begin_file();
      for (std::size_t i = 0; i < entries_.size(); ++i) write_share(output, i, rank, copy);
    }
    for (CopiedItem& entry : entries_) {
      if (entry.tied_to) entry.item.pieces = entries_[*entry.tied_to].item.pieces;
    }
    for (CopiedItem& entry : entries_) output.add(std::move(entry.item));
    done_.path = output.commit();
    return done_;
  }

 private:
  // Precondition: the entry of `item` is the next one.
  std::optional<std::size_t> earlier_name_of(const io::DcpItem& item) {
    if (item.pieces.empty()) return std::nullopt;
    const io::DcpPiece& first = item.pieces.front();
    const auto [found, is_new] = by_place_.emplace(std::pair(first.file, first.begin), entries_.size());
    if (is_new || !io::are_tied(*entries_[found->second].from, item)) return std::nullopt;
    return found->second;
  }

  // What cannot be cut is written once; the ranks take turns.
  void write_share(DcpOutput& output, std::size_t number, int rank, TensorCopy& copy) {
    CopiedItem& entry = entries_[number];
    if (entry.tied_to) return;
    const bool turn = static_cast<int>(number % static_cast<std::size_t>(world_)) == rank;
    if (entry.tensor == nullptr) {
      if (rank == 0) output.value(entry.item, folder_.value(*entry.from));
      return;
    }
    if (!is_cut(*entry.tensor)) {
      if (!turn) return;
      const OutputTensor all = whole(*entry.tensor, entry.tensor->name);
      return output.tensor(entry.item, all.parts.front().offset, all.shape, copy.producer(all));
    }
    const OutputTensor rows = rows_of(*entry.tensor, rank, world_);
    if (rows.shape[0] == 0) return;
    output.tensor(entry.item, rows.parts.front().offset, rows.shape, copy.producer(rows));
  }

  const io::DcpFolder& folder_;
  const int world_;
  std::vector<CopiedItem> entries_;
  std::map<std::pair<std::size_t, std::uint64_t>, std::size_t> by_place_;  // entries by file and begin of their bytes
  Converted done_;
};

Converted convert_found(const DcpToDcp& options, const FoundCheckpoint& found, const CopyWatcher& watcher) {
  io::DcpFolder folder(found.path);
  check_whole(folder);
  const TensorList list = tensors_of(folder);
  Reshard reshard(folder, list, options);
  io::OutputPlan plan;
  plan.reads("--load-dir", options.load_dir);
  plan.reads("--load-dir", found.path);
  plan.writes_folder("--save-dir", options.save_dir);
  plan.check();
  plan.prepare();
  DcpOutput output("--save-dir", options.save_dir, found.id);
  return reshard.write(output, watcher);
}

}  // namespace

Converted convert(const DcpToDcp& options, const CopyWatcher& watcher) {
  return read_found(options.load_dir, "--load-dir",
                    [&](const FoundCheckpoint& found) { return convert_found(options, found, watcher); });
}

}  // namespace loom::checkpoint
