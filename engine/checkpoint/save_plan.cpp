#include "engine/checkpoint/save_plan.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <utility>

#include "engine/comm/exchange.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/formats/dcp/dcp_file_writer.h"
#include "engine/formats/torch/torch_file.h"
#include "engine/io/byte_source.h"

namespace loom::checkpoint {
namespace {

// One line a tensor: dtype, whole shape, offset, shape, names; numbers joined by ',', fields by tabs. Names are escaped
// so that none of them ends a field.
std::string line_of(const StateTensor& tensor) {
  std::string line =
      fmt::format("{}\t{}\t{}\t{}", static_cast<int>(tensor.local.value.dtype()),
                  fmt::join(tensor.local.shard.global_shape.sizes(), ","), fmt::join(tensor.local.shard.offset, ","),
                  fmt::join(tensor.local.value.shape().sizes(), ","));
  for (const ItemName& name : tensor.names) line += '\t' + escaped(name.name);
  return line;
}

std::string boxes_of(const State& state) {
  std::string text;
  for (const StateTensor& tensor : state.tensors) text += line_of(tensor) + '\n';
  return text;
}

struct Box {
  std::string key;  // what replicas have in common: the whole line
  std::string name;
  Shape global_shape;
  Offset offset;
  Shape shape;
  DType dtype = DType::kF32;
};

std::vector<std::int64_t> numbers(std::string_view text) {
  std::vector<std::int64_t> found;
  while (!text.empty()) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    require(error == std::errc{}, "a box of a peer is '{}'", text);
    found.push_back(number);
    text.remove_prefix(std::min<std::size_t>(text.size(), static_cast<std::size_t>(end - text.data()) + 1));
  }
  return found;
}

std::vector<std::string_view> cut(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

Box box_of(const std::string& line) {
  const std::vector<std::string_view> fields = cut(line, '\t');
  require(fields.size() >= 5, "a box of a peer is '{}'", line);
  return {line,
          std::string(fields[4]),
          Shape(numbers(fields[1])),
          numbers(fields[2]),
          Shape(numbers(fields[3])),
          static_cast<DType>(numbers(fields[0]).at(0))};
}

// The names of each tensor, by its first one as lines have it.
using Names = std::map<std::string, std::vector<ItemName>, std::less<>>;

constexpr char kKey = '\x1f';  // begins each key of a path: 's' for a text, 'i' for a number

// The names of own tensors, for ranks that have others: a line a tensor, its names apart by tabs.
std::string names_of(const State& state) {
  std::string text;
  for (const StateTensor& tensor : state.tensors) {
    for (const ItemName& name : tensor.names) {
      if (&name != &tensor.names.front()) text += '\t';
      for (const io::DcpKey& key : name.path) {
        const auto* number = std::get_if<std::int64_t>(&key);
        text += number != nullptr ? fmt::format("{}i{}", kKey, *number)
                                  : fmt::format("{}s{}", kKey, escaped(std::get<std::string>(key)));
      }
    }
    text += '\n';
  }
  return text;
}

ItemName name_in(std::string_view text) {
  std::vector<io::DcpKey> path;
  for (const std::string_view key : cut(text.substr(1), kKey)) {
    if (key.front() == 'i') {
      path.emplace_back(numbers(key.substr(1)).at(0));
    } else {
      path.emplace_back(std::string(key.substr(1)));
    }
  }
  return name_of(std::move(path));
}

// Of this rank's tensors, and of all ranks' where each may have others. Collective then.
Names known_names(const State& state, comm::ProcessGroup& everyone) {
  Names names;
  for (const StateTensor& tensor : state.tensors) names[escaped(tensor.name())] = tensor.names;
  if (!state.is_part) return names;
  for (const auto& lines : comm::exchange_lines(everyone, names_of(state), "names of a checkpoint")) {
    for (const std::string& line : lines) {
      std::vector<ItemName> of_tensor;
      for (const std::string_view text : cut(line, '\t')) of_tensor.push_back(name_in(text));
      names.try_emplace(escaped(of_tensor.front().name), std::move(of_tensor));
    }
  }
  return names;
}

// A box and the ranks that have it.
struct SharedBox {
  Box box;
  std::vector<int> ranks;
};

// One entry per tensor, in the order in which the ranks, one after another, first name it.
struct Tensors {
  std::vector<std::string> names;
  std::map<std::string, std::vector<SharedBox>, std::less<>> boxes;  // by name
};

Tensors collect(const std::vector<std::vector<std::string>>& lines) {
  Tensors tensors;
  std::map<std::string, SharedBox*, std::less<>> known;
  std::map<std::string, std::vector<std::unique_ptr<SharedBox>>, std::less<>> made;
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    for (const std::string& line : lines[rank]) {
      SharedBox*& shared = known[line];
      if (shared == nullptr) {
        Box box = box_of(line);
        auto& of_tensor = made[box.name];
        if (of_tensor.empty()) tensors.names.push_back(box.name);
        shared = of_tensor.emplace_back(new SharedBox{std::move(box), {}}).get();
      }
      shared->ranks.push_back(static_cast<int>(rank));
    }
  }
  for (auto& [name, boxes] : made) {
    for (auto& box : boxes) tensors.boxes[name].push_back(std::move(*box));
  }
  return tensors;
}

// The pieces of a tensor have to be one tensor.
void check(const std::string& name, const std::vector<SharedBox>& boxes) {
  io::DcpItem item{name, {}, true, boxes.front().box.dtype, boxes.front().box.global_shape, {}};
  for (const auto& [box, ranks] : boxes) {
    if (box.dtype != item.dtype || box.global_shape != item.shape) {
      config_error("saving a checkpoint: '{}' is {} {} on rank {} and {} {} on rank {}; give every rank the same model",
                   name, loom::name(item.dtype), to_string(item.shape), boxes.front().ranks.front(),
                   loom::name(box.dtype), to_string(box.global_shape), ranks.front());
    }
    if (box.shape.numel() == 0) continue;
    io::DcpPiece piece;
    piece.offset = box.offset;
    piece.shape = box.shape;
    item.pieces.push_back(std::move(piece));
  }
  io::check_pieces(item, "saving a checkpoint");
}

}  // namespace

// Lays out the boxes of all ranks: items, pieces, and the rank that writes each piece.
class SavePlan::Builder {
 public:
  Builder(const State& state, comm::ProcessGroup& everyone, SavePlan& plan)
      : everyone_(everyone),
        plan_(plan),
        written_(static_cast<std::size_t>(everyone.size()), 0),
        names_(known_names(state, everyone)) {
    for (std::size_t i = 0; i < state.tensors.size(); ++i) places_[line_of(state.tensors[i])] = i;
  }

  void add(const std::string& name, const std::vector<SharedBox>& boxes) {
    check(name, boxes);
    const std::size_t item = add_item(name, boxes.front());
    for (const SharedBox& box : boxes) {
      if (box.box.shape.numel() > 0) add_piece(item, box);
    }
  }

 private:
  // The item under its first name; the items of the other names follow it and share its pieces.
  std::size_t add_item(const std::string& name, const SharedBox& first) {
    const auto own = names_.find(name);
    if (own == names_.end()) {
      config_error("saving a checkpoint: rank {} has '{}', and rank {} has not; give every rank the same model",
                   first.ranks.front(), name, everyone_.ranks()[static_cast<std::size_t>(everyone_.rank())]);
    }
    const std::size_t item = plan_.items_.size();
    for (const ItemName& tied : own->second) {
      plan_.shares_with_.push_back(item);
      plan_.items_.push_back({tied.name, tied.path, true, first.box.dtype, first.box.global_shape, {}});
    }
    return item;
  }

  void add_piece(std::size_t item, const SharedBox& shared) {
    const auto bytes_of = [&](int rank) { return written_[static_cast<std::size_t>(rank)]; };
    const int writer = *std::ranges::min_element(shared.ranks, {}, bytes_of);
    written_[static_cast<std::size_t>(writer)] += shared.box.shape.numel() * element_bytes(shared.box.dtype);
    plan_.pieces_.push_back({item, writer, shared.box.offset, shared.box.shape});
    if (writer == everyone_.rank()) plan_.own_.push_back(places_.at(shared.box.key));
  }

  const comm::ProcessGroup& everyone_;
  SavePlan& plan_;
  std::vector<std::int64_t> written_;                       // bytes, by rank
  std::map<std::string, std::size_t, std::less<>> places_;  // of own tensors in the state, by line
  const Names names_;
};

SavePlan SavePlan::make(const State& state, comm::ProcessGroup& everyone) {
  SavePlan plan;
  plan.boxes_ = boxes_of(state);
  const Tensors tensors = collect(comm::exchange_lines(everyone, plan.boxes_, "boxes of a checkpoint"));
  Builder builder(state, everyone, plan);
  for (const std::string& name : tensors.names) builder.add(name, tensors.boxes.at(name));
  return plan;
}

bool SavePlan::fits(const State& state) const { return boxes_ == boxes_of(state); }

io::DcpMetadata SavePlan::metadata(std::uint64_t rank_0_begins) const {
  io::DcpMetadata made;
  made.items = items_;
  std::map<int, std::size_t> files;
  std::map<int, std::uint64_t> ends;
  if (rank_0_begins > 0) {
    files[0] = 0;
    made.files.push_back(io::dcp_file_name(0));
    ends[0] = rank_0_begins;
  }
  for (const Piece& piece : pieces_) {
    const auto [file, is_new] = files.emplace(piece.writer, made.files.size());
    if (is_new) made.files.push_back(io::dcp_file_name(piece.writer));
    io::DcpPiece place;
    place.offset = piece.offset;
    place.shape = piece.shape;
    place.file = file->second;
    place.begin = ends[piece.writer];
    place.length = io::torch_tensor_bytes(items_[piece.item].dtype, piece.shape);
    ends[piece.writer] += place.length;
    made.items[piece.item].pieces.push_back(place);
  }
  for (std::size_t item = 0; item < shares_with_.size(); ++item) {
    made.items[item].pieces = made.items[shares_with_[item]].pieces;
  }
  return made;
}

}  // namespace loom::checkpoint
