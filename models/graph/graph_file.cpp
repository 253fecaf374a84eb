#include "models/graph/graph_file.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/gzip.h"
#include "engine/io/json_text.h"

namespace loom::models {
namespace {

using nlohmann::json;

constexpr std::size_t kMostText = std::size_t{256} << 20;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;  // sums over the tensors of an operator fit into 64 bits
constexpr std::size_t kMostTensors = 4096;                  // of an operator
constexpr std::string_view kFormat = "shardloom-graph";
constexpr int kNewestVersion = 1;

// A place in the file, for errors: "graph.json: events[12]".
struct GraphPlace {
  const std::string& file;
  std::string_view table;
  std::size_t index = 0;

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    config_error("{}: {}[{}]: {}; record the model again with tools/record_model.py", file, table, index,
                 fmt::format(format, std::forward<Args>(args)...));
  }
};

DType dtype_named(const std::string& name, const GraphPlace& where) {
  constexpr std::array<std::pair<std::string_view, DType>, 15> kNames{{{"float32", DType::kF32},
                                                                       {"bfloat16", DType::kBF16},
                                                                       {"float16", DType::kF16},
                                                                       {"float64", DType::kF64},
                                                                       {"int8", DType::kI8},
                                                                       {"int16", DType::kI16},
                                                                       {"int32", DType::kI32},
                                                                       {"int64", DType::kI64},
                                                                       {"uint8", DType::kU8},
                                                                       {"bool", DType::kBool},
                                                                       {"float8_e4m3fn", DType::kU8},
                                                                       {"float8_e5m2", DType::kU8},
                                                                       {"uint16", DType::kI16},
                                                                       {"uint32", DType::kI32},
                                                                       // 8 bytes with a gradient
                                                                       {"complex64", DType::kF64}}};
  const auto found = std::ranges::find(kNames, std::string_view(name), &std::pair<std::string_view, DType>::first);
  if (found == kNames.end()) where.refuse("unknown dtype '{}'", shown_text(name));
  return found->second;
}

// --- GraphForms: sums of products of the file's symbols, with rational coefficients.

// "BS2" is B S S.
std::vector<std::string> symbols_of(const std::string& product) {
  std::vector<std::string> symbols;
  if (product == "1") return symbols;
  for (const char letter : product) {
    const bool is_power = letter >= '2' && letter <= '9' && !symbols.empty();
    const std::string symbol = is_power ? symbols.back() : std::string(1, letter);
    symbols.insert(symbols.end(), is_power ? static_cast<std::size_t>(letter - '1') : 1, symbol);
  }
  return symbols;
}

class GraphForms {
 public:
  GraphForms(const json& root, const std::string& file, const GraphSizes& sizes) : file_(file) {
    if (!root.contains("forms")) return;
    std::vector<std::int64_t> basis;
    for (const json& product : root.at("basis")) {
      std::int64_t value = 1;
      for (const std::string& symbol : symbols_of(product.get<std::string>())) {
        const auto found = sizes.find(symbol);
        if (found == sizes.end()) config_error("{}: basis: unknown symbol '{}'", file, shown_text(symbol));
        value = product_of(value, found->second, "basis", basis.size());
      }
      basis.push_back(value);
    }
    for (const json& row : root.at("forms")) values_.push_back(value_of(row, basis));
  }

  std::int64_t number(const json& value, const GraphPlace& where) const {
    if (value.is_number_integer()) return value.get<std::int64_t>();
    if (!value.is_object() || !value.contains("f")) where.refuse("{} is not a whole number", shown_text(value.dump()));
    const auto form = value.at("f").get<std::int64_t>();
    if (form < 0 || form >= std::ssize(values_)) where.refuse("form {} of {}", form, values_.size());
    return values_[static_cast<std::size_t>(form)];
  }

 private:
  std::int64_t product_of(std::int64_t a, std::int64_t b, std::string_view table, std::size_t index) const {
    const auto product = checked_multiply(a, b);
    if (!product) GraphPlace{file_, table, index}.refuse("a number is larger than 64 bits at these sizes");
    return *product;
  }

  // sum of coefficient * basis: over one denominator each.
  std::int64_t value_of(const json& row, const std::vector<std::int64_t>& basis) const {
    const GraphPlace where{file_, "forms", values_.size()};
    if (row.size() > basis.size()) where.refuse("{} coefficients for {} products", row.size(), basis.size());
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const json& coefficient = row[i];
      const bool is_ratio = coefficient.is_array();
      const auto above = (is_ratio ? coefficient.at(0) : coefficient).get<std::int64_t>();
      const std::int64_t below = is_ratio ? coefficient.at(1).get<std::int64_t>() : 1;
      const std::int64_t product = product_of(above, basis[i], "forms", values_.size());
      if (below < 1 || product % below != 0) where.refuse("is no whole number at these sizes");
      if (__builtin_add_overflow(sum, product / below, &sum)) where.refuse("is larger than 64 bits at these sizes");
    }
    return sum;
  }

  const std::string& file_;
  std::vector<std::int64_t> values_;
};

// --- Symbols

using GraphSymbols = std::map<std::string, GraphSymbol>;

std::string sizes_text(const GraphSymbols& symbols) {
  std::vector<std::string> texts;
  for (const auto& [name, symbol] : symbols) {
    texts.push_back(symbol.least == symbol.most ? fmt::format("{} = {}", name, symbol.recorded)
                                                : fmt::format("{} from {} on", name, symbol.least));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

// A file without symbols holds the sizes of its inputs: rows are those of input_ids, or else of the first input with
// rows; tokens are those of input_ids, or else of an input of whole numbers in rows.
json fixed_symbols(const json& inputs) {
  json symbols = json::object();
  const auto set = [&](const char* name, const json& value) {
    if (!symbols.contains(name)) symbols[name] = {{"values", {value}}, {"fixed", true}};
  };
  const auto add = [&](const json& row) {
    const json& shape = row.at(0);
    if (shape.size() < 2) return;
    if (shape.size() == 2 && row.at(1).get<std::string>().starts_with("int")) set("S", shape.at(1));
    set("B", shape.at(0));
  };
  if (inputs.contains("input_ids")) add(inputs.at("input_ids"));
  for (const auto& [name, row] : inputs.items()) add(row);
  return symbols;
}

GraphSymbols symbols_of_file(const json& root) {
  GraphSymbols symbols;
  const json table = root.contains("symbols") ? root.at("symbols") : fixed_symbols(root.at("inputs_meta"));
  for (const auto& [name, facts] : table.items()) {
    GraphSymbol& symbol = symbols[name];
    symbol.recorded = facts.at("values").at(0).get<std::int64_t>();
    symbol.least = facts.value("min", std::int64_t{1});
    if (facts.at("fixed").get<bool>()) symbol.least = symbol.most = symbol.recorded;
  }
  return symbols;
}

GraphSizes sizes_of(const GraphSymbols& symbols, const std::string& file, const GraphSizes& requested) {
  GraphSizes sizes;
  for (const auto& [name, symbol] : symbols) {
    const auto found = requested.find(name);
    const std::int64_t value = found == requested.end() ? symbol.recorded : found->second;
    if (!symbol.has(value)) {
      config_error(
          "{}: {} is {}, but the recording holds {} (B: rows of a micro-batch, S: tokens of a row); use one of these "
          "sizes, or record the model at yours with tools/record_model.py",
          file, name, value, sizes_text(symbols));
    }
    sizes[name] = value;
  }
  return sizes;
}

// --- Tables

class GraphReader {
 public:
  GraphReader(const json& root, const std::string& file, const GraphSizes& sizes)
      : root_(root), file_(file), forms_(root, file, sizes) {
    graph_.file = file;
  }

  ModelGraph read() {
    graph_.type = root_.at("class").get<std::string>();
    graph_.compute_dtype =
        dtype_named(root_.at("compute_dtype").get<std::string>(), GraphPlace{file_, "compute_dtype", 0});
    graph_.attention_is_a_node = root_.value("attention", "native") == "node";
    read_modules();
    read_storages();
    read_tensors();
    read_parameters();
    for (const json& op : root_.at("ops")) graph_.ops.push_back(op.get<std::string>());
    const json& events = root_.at("events");
    graph_.events.reserve(events.size());
    for (std::size_t i = 0; i < events.size(); ++i) read_event(events[i], {file_, "events", i});
    if (graph_.events.empty() || graph_.events.back().kind != EventKind::kEnd) {
      config_error("{}: the events do not end with 'end'; record the model again with tools/record_model.py", file_);
    }
    return std::move(graph_);
  }

 private:
  template <class Table>
  int id(const json& value, const Table& table, std::string_view name, const GraphPlace& where) const {
    const std::int64_t id = forms_.number(value, where);
    if (id < 0 || id >= std::ssize(table)) where.refuse("{} {} of {}", name, id, table.size());
    return static_cast<int>(id);
  }
  int tensor(const json& value, const GraphPlace& where) const { return id(value, graph_.tensors, "tensor", where); }
  std::vector<int> tensors(const json& values, const GraphPlace& where) const {
    std::vector<int> ids;
    ids.reserve(values.size());
    for (const json& value : values) ids.push_back(tensor(value, where));
    return ids;
  }

  void read_modules() {
    for (const json& module : root_.at("modules")) {
      graph_.modules.push_back({module.at(0).get<std::string>(), module.at(1).get<std::string>()});
    }
    if (graph_.modules.empty() || !graph_.modules.front().path.empty()) {
      config_error("{}: modules[0] is not the root, whose path is empty", file_);
    }
  }

  void read_storages() {
    const json& storages = root_.at("storages");
    for (std::size_t i = 0; i < storages.size(); ++i) {
      const GraphPlace where{file_, "storages", i};
      const std::int64_t bytes = forms_.number(storages[i].at(0), where);
      if (bytes < 0 || bytes > kMostBytes) where.refuse("{} bytes", bytes);
      graph_.storages.push_back({bytes, kind_of(storages[i].at(1).get<std::string>(), where)});
    }
  }

  static StorageKind kind_of(const std::string& word, const GraphPlace& where) {
    if (word == "parameter") return StorageKind::kParameter;
    if (word == "buffer") return StorageKind::kBuffer;
    if (word == "input") return StorageKind::kInput;
    if (word == "temporary") return StorageKind::kTemporary;
    where.refuse("unknown kind of storage '{}'", shown_text(word));
  }

  void read_tensors() {
    const json& tensors = root_.at("tensors");
    graph_.tensors.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const GraphPlace where{file_, "tensors", i};
      const json& row = tensors[i];
      GraphTensor tensor;
      tensor.storage = id(row.at(0), graph_.storages, "storage", where);
      tensor.dtype = dtype_named(row.at(1).get<std::string>(), where);
      std::vector<std::int64_t> sizes;
      std::int64_t bytes = element_bytes(tensor.dtype);
      for (const json& size : row.at(2)) {
        sizes.push_back(forms_.number(size, where));
        const std::int64_t factor = std::max<std::int64_t>(sizes.back(), 1);  // products of some sizes fit too
        const auto product = sizes.back() < 0 ? std::nullopt : checked_multiply(bytes, factor);
        if (!product || *product > kMostBytes) where.refuse("size {}", sizes.back());
        bytes = *product;
      }
      tensor.shape = Shape(std::move(sizes));
      graph_.tensors.push_back(std::move(tensor));
    }
  }

  void read_parameters() {
    const json& parameters = root_.at("parameters");
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const json& row = parameters[i];
      graph_.parameters.push_back(
          {row.at(0).get<std::string>(), tensor(row.at(1), {file_, "parameters", i}), row.at(2).get<bool>()});
    }
    const json ties = root_.value("tied", json::object());
    for (const auto& [name, of] : ties.items()) {
      graph_.ties.push_back({name, of.get<std::string>()});
    }
    const json aliases = root_.value("aliases", json::object());
    for (const auto& [alias, path] : aliases.items()) {
      graph_.aliases.push_back({alias, path.get<std::string>()});
    }
    const json buffers = root_.value("buffers", json::array());
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      graph_.buffers.push_back({buffers[i].at(0).get<std::string>(), tensor(buffers[i].at(1), {file_, "buffers", i})});
    }
    for (const auto& [name, value] : root_.at("inputs").items()) {
      if (value.is_object() && value.contains("value")) continue;
      graph_.inputs.push_back({name, tensor(value, {file_, "inputs", graph_.inputs.size()})});
    }
  }

  void read_event(const json& row, const GraphPlace& where) {
    const auto word = row.at(0).get<std::string>();
    GraphEvent event;
    if (word == "op") {
      event.kind = EventKind::kOp;
      event.op = static_cast<int>(graph_.operators.size());
      graph_.operators.push_back(read_operator(row, where));
    } else if (word == "enter" || word == "exit") {
      const bool enters = word == "enter";
      event.kind = enters ? EventKind::kEnter : EventKind::kExit;
      event.id = id(row.at(1), graph_.modules, "module", where);
      if (enters) event.number = forms_.number(row.at(2), where);
      event.ids = tensors(row.at(enters ? 3 : 2), where);
    } else if (word == "free") {
      event.kind = EventKind::kFree;
      event.id = id(row.at(1), graph_.storages, "storage", where);
    } else if (word == "save") {
      event.kind = EventKind::kSave;
      event.id = static_cast<int>(forms_.number(row.at(1), where));
      event.ids = {tensor(row.at(2), where)};
      event.number = row.at(3).is_null() ? -1 : forms_.number(row.at(3), where);
    } else if (word == "unpack" || word == "drop") {
      event.kind = word == "drop" ? EventKind::kDrop : EventKind::kUnpack;
      event.id = static_cast<int>(forms_.number(row.at(1), where));
    } else if (word == "loss") {
      event.kind = EventKind::kLoss;
      event.ids = {tensor(row.at(1), where)};
    } else if (word == "backward") {
      event.kind = EventKind::kBackward;
    } else if (word == "node") {
      event.kind = EventKind::kNode;
      event.number = sequence_of(row.at(1), where);
    } else if (word == "grad") {
      event.kind = EventKind::kGrad;
      event.ids = {tensor(row.at(2), where)};
    } else if (word != "end") {
      where.refuse("unknown event '{}'", shown_text(word));
    }
    graph_.events.push_back(std::move(event));
  }

  // -1: none; PyTorch's AccumulateGrad has 2^64 - 1.
  std::int64_t sequence_of(const json& value, const GraphPlace& where) const {
    if (value.is_null() || (value.is_number_unsigned() &&
                            value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})) {
      return -1;
    }
    return forms_.number(value, where);
  }

  GraphOp read_operator(const json& row, const GraphPlace& where) const {
    GraphOp op;
    op.name = id(row.at(1), graph_.ops, "operator", where);
    op.ins = tensors(row.at(2), where);
    op.outs = tensors(row.at(3), where);
    if (op.ins.size() + op.outs.size() > kMostTensors) {
      where.refuse("{} tensors, and an operator has at most {}", op.ins.size() + op.outs.size(), kMostTensors);
    }
    op.is_causal = is_causal(row.at(4));
    op.flops =
        row.at(5).is_number_float() ? row.at(5).get<double>() : static_cast<double>(forms_.number(row.at(5), where));
    op.sequence = sequence_of(row.at(6), where);
    if (!row.at(7).is_null()) op.node = row.at(7).get<std::string>();
    op.module = row.at(8).is_null() ? 0 : id(row.at(8), graph_.modules, "module", where);
    if (row.size() > 9 && row.at(9).contains("writes")) {
      for (const json& argument : row.at(9).at("writes")) op.writes.push_back(argument.get<int>());
    }
    return op;
  }

  // Attention kernels have no other flag that is on.
  static bool is_causal(const json& args) {
    return std::ranges::any_of(args, [](const json& arg) { return arg.is_boolean() && arg.get<bool>(); });
  }

  const json& root_;
  const std::string& file_;
  const GraphForms forms_;
  ModelGraph graph_;
};

json parsed_graph(const std::filesystem::path& path) {
  const std::string file = path.string();
  json root = io::parse_json(io::text_of_file(path, kMostText), file);
  if (!root.is_object() || root.value("format", json()) != kFormat) {
    config_error("{}: is not a recorded model: its format is not \"{}\"; make one with tools/record_model.py", file,
                 kFormat);
  }
  const json version = root.value("version", json());
  if (!version.is_number_integer() || version.get<std::int64_t>() < 0 || version.get<std::int64_t>() > kNewestVersion) {
    config_error("{}: version {}; this program reads versions 0 to {}", file, shown_text(version.dump()),
                 kNewestVersion);
  }
  return root;
}

// What the file's author got wrong in the shape of the JSON has one text.
template <class Read>
auto reading_graph(const std::string& file, Read read) {
  try {
    return read();
  } catch (const json::exception& error) {
    config_error("{}: is not a recorded model: {}; record the model again with tools/record_model.py", file,
                 shown_text(error.what()));
  }
}

}  // namespace

struct GraphFile::Parsed {
  std::string file;
  json root;
  GraphSymbols symbols;
};

GraphFile::GraphFile(const std::filesystem::path& path)
    : parsed_(reading_graph(path.string(), [&] {
        json root = parsed_graph(path);
        GraphSymbols symbols = symbols_of_file(root);
        return std::make_shared<const Parsed>(Parsed{path.string(), std::move(root), std::move(symbols)});
      })) {}

const std::map<std::string, GraphSymbol>& GraphFile::symbols() const { return parsed_->symbols; }

ModelGraph GraphFile::at(const GraphSizes& sizes) const {
  const auto& [file, root, symbols] = *parsed_;
  return reading_graph(file, [&, &file = file, &root = root, &symbols = symbols] {
    return GraphReader(root, file, sizes_of(symbols, file, sizes)).read();
  });
}

}  // namespace loom::models
