#include <algorithm>

#include "engine/checkpoint/convert/convert.h"
#include "engine/checkpoint/convert/dcp_output.h"
#include "engine/checkpoint/convert/find_checkpoint.h"
#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/io/output_plan.h"

namespace loom::checkpoint {
namespace {

// One item of the new checkpoint, and where it is read.
struct Entry {
  const io::DcpItem* from = nullptr;
  const SourceTensor* tensor = nullptr;  // null: a value
  io::DcpItem item;
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
      entries_.push_back({&item, item.is_tensor ? list.find(item.name) : nullptr, std::move(copy)});
      if (item.is_tensor) {
        ++done_.tensors;
        done_.bytes += entries_.back().tensor->size_bytes();
      }
    }
    done_.files = world_;
  }

  Converted write(DcpOutput& output, const CopyWatcher& watcher) {
    TensorCopy copy(done_.bytes, watcher);
    for (int rank = 0; rank < world_; ++rank) {
      output.begin_file();
      for (std::size_t i = 0; i < entries_.size(); ++i) write_share(output, i, rank, copy);
    }
    for (Entry& entry : entries_) output.add(std::move(entry.item));
    done_.path = output.commit();
    return done_;
  }

 private:
  // What cannot be cut is written once; the ranks take turns.
  void write_share(DcpOutput& output, std::size_t number, int rank, TensorCopy& copy) {
    Entry& entry = entries_[number];
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
  std::vector<Entry> entries_;
  Converted done_;
};

}  // namespace

Converted convert(const DcpToDcp& options, const CopyWatcher& watcher) {
  const FoundCheckpoint found = find_checkpoint(options.load_dir, "--load-dir");
  const io::DcpFolder folder(found.path);
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

}  // namespace loom::checkpoint
