// checkpoint_parity DIR: checkpoints that PyTorch wrote, read and written again.
//
// A case is a checkpoint of torch.distributed.checkpoint with its whole tensors beside it: DIR/NAME/ with
// NAME.model.safetensors and NAME.optim.safetensors, or DIR/NAME/checkpoint/ with model.safetensors and
// optim.safetensors. At worlds of 1, 2, 3 and 4 ranks, as threads, every rank reads its box of every tensor: cut by
// rows as FSDP2 cuts them, at 4 ranks also by rows and columns (2 x 2), and with each shard on two ranks. The boxes
// have to be those of the whole tensors bit for bit. Then the ranks save what they have, and what was written is read
// back whole: every tensor and every value has to be what it was. A folder with a curve alone is skipped:
// training_parity runs it.
//
// Beside a config.json the model itself takes the checkpoint up: sharded over the case's mesh, it loads and saves
// weights and moments, and every rank's file has to hold the boxes that PyTorch's has. (Of a box that several ranks
// hold, either of them writes it.) What it saved goes on from mesh to mesh, those where parts do not divide included:
// each mesh loads what the one before it saved, and on each of them every weight and moment has to keep all its bits.
#include <cstring>
#include <mutex>

#include "engine/checkpoint/loader.h"
#include "engine/checkpoint/saver.h"
#include "engine/device/device.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/optim/adamw.h"
#include "models/decoder/decoder.h"
#include "models/hf/hf_folder.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/full_parameters.h"
#include "tests/support/case_json.h"
#include "tests/support/parity_report.h"

namespace loom::checkpoint_parity {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string name;
  fs::path checkpoint;
  fs::path model;
  fs::path optimizer;
  fs::path description;  // case.json; it may be missing
  fs::path config;       // config.json; it may be missing
};

// How a tensor is cut: `rows` x `columns` boxes, each on `replicas` ranks.
struct Cut {
  int rows = 1;
  int columns = 1;
  int replicas = 1;

  int world() const { return rows * columns * replicas; }
  std::string text() const {
    std::string found = fmt::format("world {}", world());
    if (columns > 1) found += fmt::format(" ({} x {})", rows, columns);
    if (replicas > 1) found += fmt::format(" ({} replicas)", replicas);
    return found;
  }
};
constexpr Cut kCuts[] = {{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {4, 1, 1}, {2, 2, 1}, {2, 1, 2}};

// Part `index` of `count` of a dim, all but the last of the size ceil(size / count).
std::pair<std::int64_t, std::int64_t> part_of(std::int64_t size, int count, int index) {
  const std::int64_t chunk = (size + count - 1) / count;
  const std::int64_t begin = std::min(size, chunk * index);
  return {begin, std::min(size, begin + chunk) - begin};
}

nn::LocalTensor local_of(const io::DcpItem& item, const Cut& cut, int rank) {
  nn::ShardSpec spec = nn::ShardSpec::whole(item.shape);
  Shape shape = item.shape;
  const int place = rank / cut.replicas;
  if (shape.ndim() >= 1) std::tie(spec.offset[0], shape[0]) = part_of(shape[0], cut.rows, place / cut.columns);
  if (shape.ndim() >= 2) std::tie(spec.offset[1], shape[1]) = part_of(shape[1], cut.columns, place % cut.columns);
  return {Tensor::host(shape, item.dtype, "part"), spec};
}

// The whole tensors by the names of the checkpoint.
class Wholes {
 public:
  explicit Wholes(const Case& c) : model_(c.model), optimizer_(c.optimizer) {}

  const io::StoredTensor* find(const std::string& name) const {
    if (name.starts_with("model.")) return model_.find(name.substr(6));
    if (!name.starts_with("optimizer.state.")) return nullptr;
    const std::string rest = name.substr(16);
    const std::size_t dot = rest.rfind('.');
    return optimizer_.find(rest.substr(0, dot) + "::" + rest.substr(dot + 1));
  }
  std::size_t count() const { return model_.tensors().size() + optimizer_.tensors().size(); }

 private:
  const io::SafetensorsFile model_;
  const io::SafetensorsFile optimizer_;
};

std::vector<std::byte> whole_of(const io::DcpFolder& folder, const io::DcpItem& item) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(item.shape.numel() * element_bytes(item.dtype)));
  folder.read_box(item, Offset(static_cast<std::size_t>(item.shape.ndim()), 0), item.shape, bytes);
  return bytes;
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// What the box of `local` is in the whole tensor.
bool is_box_of(const nn::LocalTensor& local, const io::StoredTensor& whole) {
  std::vector<std::byte> expected(static_cast<std::size_t>(local.value.nbytes()));
  const Shape shape = whole.shape == local.shard.global_shape ? local.value.shape() : Shape{};
  if (whole.dtype != local.value.dtype() || whole.shape.numel() != local.shard.global_shape.numel()) return false;
  const Offset offset =
      shape.ndim() == 0 ? Offset(static_cast<std::size_t>(whole.shape.ndim()), 0) : local.shard.offset;
  whole.read_box(offset, shape.ndim() == 0 ? whole.shape : shape, expected);
  return same({static_cast<const std::byte*>(local.value.raw()), expected.size()}, expected);
}

struct Found {
  std::mutex mutex;
  std::vector<std::string> differences;
  std::size_t compared = 0;  // tensors that a whole one stands beside, on one rank

  void differ(const std::string& what) {
    const std::lock_guard lock(mutex);
    differences.push_back(what);
  }
};

// Reads this rank's boxes and saves them.
void read_and_save(const Case& c, const Cut& cut, const Wholes& wholes, const fs::path& to, comm::World& world,
                   Found& found) {
  const io::DcpFolder folder(c.checkpoint);
  checkpoint::State state;
  std::size_t compared = 0;
  for (const io::DcpItem& item : folder.metadata().items) {
    if (!item.is_tensor) {
      state.add(item.path, folder.value(item));
      continue;
    }
    const nn::LocalTensor local = local_of(item, cut, world.rank());
    checkpoint::read_tensor(folder, item, local);
    if (const io::StoredTensor* whole = wholes.find(item.name)) {
      ++compared;
      if (!is_box_of(local, *whole)) found.differ(fmt::format("'{}' on rank {}", item.name, world.rank()));
    }
    state.add(item.path, local);
  }
  if (world.rank() == 0) found.compared = compared;
  checkpoint::SaverOptions options;
  options.folder = to;
  options.async = cut.world() % 2 == 0;
  checkpoint::Saver saver(options, world.everyone(), [](const std::string&) {});
  saver.save(7, state);
  saver.finish();
}

void compare_written(const Case& c, const fs::path& written, Found& found) {
  const io::DcpFolder before(c.checkpoint);
  const io::DcpFolder after(written / "iter_0000007");
  if (before.metadata().items.size() != after.metadata().items.size()) found.differ("the number of items written");
  for (const io::DcpItem& item : before.metadata().items) {
    const io::DcpItem* again = after.find(item.name);
    const bool alike = again != nullptr && again->path == item.path && again->is_tensor == item.is_tensor &&
                       (!item.is_tensor || (again->dtype == item.dtype && again->shape == item.shape));
    if (!alike) {
      found.differ(fmt::format("'{}' as it was written", item.name));
    } else if (item.is_tensor ? !same(whole_of(before, item), whole_of(after, *again))
                              : before.value(item) != after.value(*again)) {
      found.differ(fmt::format("what was written of '{}'", item.name));
    }
  }
}

// Of the model's ranks: tp fastest, then the ranks that share sequences, then those that shard.
struct ModelMesh {
  int dp_replicate = 1;
  int dp_shard = 1;
  int ring = 1;
  int tp = 1;
  bool sequence_parallel = false;

  int world() const { return dp_replicate * dp_shard * ring * tp; }
  std::string yaml() const {
    return fmt::format(
        "sharding_size: {}\nsub_modules_to_wrap: [model.embed_tokens, 'model.layers.{{*}}', lm_head]\n"
        "tensor_parallel_size: {}\nring_attention_size: {}\nsequence_parallel: {}\n",
        dp_shard * ring, tp, ring, sequence_parallel);
  }
  std::string text() const {
    return fmt::format("dp_replicate {} x dp_shard {} x ring {} x tp {}{}", dp_replicate, dp_shard, ring, tp,
                       sequence_parallel ? " along the sequence" : "");
  }
};

ModelMesh mesh_of(const test::CaseJson& description) {
  ModelMesh mesh;
  for (const auto& [axis, ranks] : description.at("mesh").items()) {
    (axis == "tp" ? mesh.tp : axis == "dp_shard" ? mesh.dp_shard : mesh.dp_replicate) = ranks.get<int>();
    if (axis != "tp" && axis != "dp_shard") throw std::runtime_error(fmt::format("its mesh has the axis '{}'", axis));
  }
  return mesh;
}

// Each loads what the one before it saved; the first, the checkpoint of PyTorch.
std::vector<ModelMesh> meshes_after(const ModelMesh& own) {
  return {own,
          {.dp_shard = 1},
          {.dp_shard = 3},
          {.tp = 4},
          {.dp_shard = 3, .tp = 2},
          {.dp_shard = 1, .ring = 2, .tp = 2},
          {.dp_replicate = 2, .dp_shard = 2, .tp = 2, .sequence_parallel = true},
          {.dp_shard = 3, .tp = 4},
          {.dp_shard = 2},
          own};
}

// The model of the case on `mesh` loads `from` and saves it as iteration 7 into `to`.
void load_and_save(const Case& c, const ModelMesh& mesh, const fs::path& from, const fs::path& to) {
  launch::run_ranks(mesh.world(), {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
    device::Device::install(context, {});
    const auto model = models::build_decoder(models::load_decoder_config(c.config.parent_path()));
    models::fully_shard(*model, world, sharding::parse_fsdp2_config(mesh.yaml(), "mesh.yaml"), {});
    nn::AdamW optimizer(nn::make_parameter_groups(*model), nn::AdamWOptions{});
    const io::DcpFolder checkpoint(from);
    checkpoint::load_module(checkpoint, sharding::local_state_dict(*model), checkpoint::Strictness::kRaiseAll);
    optimizer.load_state_dict(checkpoint::read_optimizer(checkpoint, optimizer, checkpoint::Strictness::kRaiseAll));
    checkpoint::State state;
    checkpoint::add_module(state, sharding::local_state_dict(*model));
    checkpoint::add_optimizer(state, optimizer.state_dict());
    checkpoint::SaverOptions options;
    options.folder = to;
    checkpoint::Saver(options, world.everyone(), [](const std::string&) {}).save(7, state);
  });
}

// Every tensor of PyTorch's checkpoint, and no other one, bit for bit; how many they are.
std::size_t compare_tensors(const io::DcpFolder& before, const io::DcpFolder& after) {
  const auto tensors = [](const io::DcpFolder& folder) {
    return std::ranges::count_if(folder.metadata().items, [](const io::DcpItem& item) { return item.is_tensor; });
  };
  for (const io::DcpItem& item : before.metadata().items) {
    if (!item.is_tensor) continue;
    const io::DcpItem* again = after.find(item.name);
    if (again == nullptr || again->dtype != item.dtype || again->shape.numel() != item.shape.numel() ||
        !same(whole_of(before, item), whole_of(after, *again))) {
      throw std::runtime_error(fmt::format("'{}' is not what it was", item.name));
    }
  }
  if (tensors(before) != tensors(after)) throw std::runtime_error("other tensors than those that were read");
  return static_cast<std::size_t>(tensors(after));
}

// A box of a tensor, and the file that has it.
using FiledBox = std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::string>;

std::vector<FiledBox> boxes_of(const io::DcpFolder& folder, const io::DcpItem& item, bool with_files) {
  std::vector<FiledBox> boxes;
  for (const io::DcpPiece& piece : item.pieces) {
    boxes.emplace_back(piece.offset, piece.shape.sizes(), with_files ? folder.metadata().files[piece.file] : "");
  }
  std::ranges::sort(boxes);
  return boxes;
}

// Every tensor is in PyTorch's boxes; where each rank has a box of its own, in the same files.
void compare_boxes(const io::DcpFolder& before, const io::DcpFolder& after, const ModelMesh& mesh) {
  for (const io::DcpItem& item : before.metadata().items) {
    if (!item.is_tensor || item.shape.ndim() == 0) continue;
    const bool own_boxes = std::cmp_equal(item.pieces.size(), mesh.world());
    if (boxes_of(before, item, own_boxes) != boxes_of(after, *after.find(item.name), own_boxes)) {
      throw std::runtime_error(fmt::format("'{}' is in other boxes than PyTorch's", item.name));
    }
  }
}

// What was compared, in words.
std::string take_up(const Case& c) {
  const ModelMesh own = mesh_of(test::read_case(c.description));
  const io::DcpFolder before(c.checkpoint);
  const fs::path folder = fs::temp_directory_path() / fmt::format("checkpoint_parity_meshes_{}", ::getpid());
  fs::path from = c.checkpoint;
  std::size_t tensors = 0;
  const std::vector<ModelMesh> meshes = meshes_after(own);
  for (std::size_t i = 0; i < meshes.size(); ++i) {
    const fs::path to = folder / fmt::to_string(i);
    try {
      load_and_save(c, meshes[i], from, to);
      from = to / "iter_0000007";
      const io::DcpFolder after(from);
      tensors = compare_tensors(before, after);
      if (i == 0 || i + 1 == meshes.size()) compare_boxes(before, after, own);
    } catch (const std::exception& error) {
      fs::remove_all(folder);
      throw std::runtime_error(fmt::format("the model on {}: {}", meshes[i].text(), error.what()));
    }
  }
  fs::remove_all(folder);
  return fmt::format("; PyTorch's boxes and files, and {} tensors of the model on {} meshes", tensors, meshes.size());
}

// The pieces that the checkpoint has are those that its description lists.
void compare_chunks(const Case& c) {
  using Box = std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>;
  if (!fs::exists(c.description)) return;
  const test::CaseJson description = test::read_case(c.description);
  const io::DcpFolder folder(c.checkpoint);
  if (description.contains("model_chunks")) {
    for (const auto& [name, chunks] : description.at("model_chunks").items()) {
      std::vector<Box> listed = chunks.get<std::vector<Box>>(), found;
      const io::DcpItem* item = folder.find(name);
      if (item == nullptr) throw std::runtime_error(fmt::format("'{}' is listed, and is not in the checkpoint", name));
      for (const io::DcpPiece& piece : item->pieces) found.emplace_back(piece.offset, piece.shape.sizes());
      std::ranges::sort(listed);
      std::ranges::sort(found);
      if (found != listed) throw std::runtime_error(fmt::format("'{}' is in other pieces than those listed", name));
    }
  }
  // How it was made, in words and as PyTorch shows it.
  if (description.contains("mesh")) static_cast<void>(mesh_of(description));
  description.check_all_read({"beside", "chunk_form", "exact", "placements", "steps"});
}

void run_case(const Case& c, test::ParityReport& report) {
  compare_chunks(c);
  const Wholes wholes(c);
  std::string detail;
  for (const Cut& cut : kCuts) {
    const fs::path to = fs::temp_directory_path() / fmt::format("checkpoint_parity_{}_{}", c.name, ::getpid());
    Found found;
    launch::run_ranks(cut.world(), {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
      device::Device::install(context, {});
      read_and_save(c, cut, wholes, to, world, found);
    });
    compare_written(c, to, found);
    fs::remove_all(to);
    if (found.compared < wholes.count()) {
      found.differ(fmt::format("{} whole tensors, of which {} are in the checkpoint", wholes.count(), found.compared));
    }
    if (!found.differences.empty()) {
      return report.failed(c.name, fmt::format("{}: {} differences, the first: {}", cut.text(),
                                               found.differences.size(), found.differences.front()));
    }
    detail += fmt::format("{}{}", detail.empty() ? "" : ", ", cut.text());
  }
  if (fs::exists(c.config)) detail += take_up(c);
  report.passed(c.name, fmt::format("{} tensors bit for bit, read and written back: {}", wholes.count(), detail));
}

void run_folder(const std::string& name, const fs::path& path, test::ParityReport& report) {
  if (fs::exists(path / ".metadata")) {
    run_case({name, path, path.string() + ".model.safetensors", path.string() + ".optim.safetensors",
              path.string() + ".case.json", path.string() + ".config.json"},
             report);
  } else if (fs::exists(path / "checkpoint" / ".metadata")) {
    run_case({name, path / "checkpoint", path / "model.safetensors", path / "optim.safetensors", path / "case.json",
              path / "config.json"},
             report);
  } else if (fs::exists(path / "curve.json")) {
    report.skipped(name, "a curve, which training_parity runs");
  }
}

int run(const fs::path& folder) {
  test::ParityReport report;
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
  std::ranges::sort(entries);
  for (const fs::path& path : entries) {
    const std::string name = path.filename().string();
    if (!fs::is_directory(path)) continue;
    try {
      run_folder(name, path, report);
    } catch (const std::exception& error) {
      report.failed(name, error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::checkpoint_parity

int main_of_checkpoint_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "checkpoint_parity", loom::checkpoint_parity::run);
}
