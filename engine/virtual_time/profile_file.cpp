#include "engine/virtual_time/profile_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fmt/ranges.h>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <yaml-cpp/yaml.h>

#include "engine/core/error.h"
#include "engine/core/spelling.h"

namespace loom::virtual_time {
namespace {

std::string place(const YAML::Mark& mark, std::string_view file) {
  return fmt::format("{}:{}:{}", file, mark.line + 1, mark.column + 1);
}

// A value as the user wrote it.
std::string shown(const YAML::Node& node) {
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  if (node.IsNull()) return "empty";
  return node.Tag() == "!" ? fmt::format("{:?}", node.Scalar()) : node.Scalar();
}

// What a number may be.
struct Range {
  double least = 0;
  bool may_be_least = true;
  double most = std::numeric_limits<double>::infinity();
  bool whole = false;
  std::string_view words;

  bool holds(double value) const {
    return std::isfinite(value) && value <= most && (may_be_least ? value >= least : value > least) &&
           (!whole || value == std::floor(value));
  }
};

constexpr Range kRate{.may_be_least = false, .words = "a number above 0"};
constexpr Range kSize{.words = "a number of at least 0"};
constexpr Range kShare{.may_be_least = false, .most = 1, .words = "a share above 0 and at most 1"};
constexpr Range kPart{.most = 1, .words = "a share from 0 to 1"};
constexpr Range kLoss{.most = 0.99, .words = "a share from 0 to 0.99"};
constexpr Range kRelative{.may_be_least = false, .most = 10, .words = "a factor above 0 and at most 10"};
// Whole numbers that a double holds exactly.
constexpr Range kWhole{.most = 9007199254740992, .whole = true, .words = "a whole number of at least 0"};
constexpr Range kCount{.least = 1, .most = 9007199254740992, .whole = true, .words = "a whole number of at least 1"};

// A value with what a message says of it.
class Value {
 public:
  Value(YAML::Node node, std::string path, YAML::Mark mark, std::string_view file)
      : node_(std::move(node)), path_(std::move(path)), mark_(mark), file_(file) {}

  [[noreturn]] void refuse(std::string_view allowed) const {
    if (node_.IsNull()) config_error("{}: {} is empty; use {}", place(mark_, file_), path_, allowed);
    config_error("{}: {} is {}; use {}", where(), path_, shown(node_), allowed);
  }

  double number(const Range& range) const {
    const auto value = plain_number();
    if (!value || !range.holds(*value)) refuse(range.words);
    return *value;
  }
  std::int64_t whole(const Range& range) const { return static_cast<std::int64_t>(number(range)); }

  std::string text() const {
    if (!node_.IsScalar() || node_.Scalar().empty()) refuse("a text");
    return node_.Scalar();
  }

  // One of `words`, by its position.
  std::size_t one_of(std::span<const std::string> words) const {
    const auto found = node_.IsScalar() ? std::ranges::find(words, node_.Scalar()) : words.end();
    if (found == words.end()) refuse(fmt::format("one of {}", fmt::join(words, ", ")));
    return static_cast<std::size_t>(found - words.begin());
  }

  std::vector<Value> list(std::string_view of) const {
    if (!node_.IsSequence() || node_.size() == 0) refuse(fmt::format("a list of {}", of));
    std::vector<Value> values;
    for (std::size_t i = 0; i < node_.size(); ++i) {
      values.emplace_back(node_[i], fmt::format("{}[{}]", path_, i), node_[i].Mark(), file_);
    }
    return values;
  }

  const YAML::Node& node() const { return node_; }
  const std::string& path() const { return path_; }
  std::string_view file() const { return file_; }
  const YAML::Mark& mark() const { return mark_; }
  // The parser marks an absent value at whatever follows it: then the key.
  std::string where() const { return place(node_.IsNull() ? mark_ : node_.Mark(), file_); }

 private:
  std::optional<double> plain_number() const {
    if (!node_.IsScalar() || node_.Tag() != "?") return std::nullopt;
    const std::string& text = node_.Scalar();
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
  }

  YAML::Node node_;
  std::string path_;
  YAML::Mark mark_;  // of the key
  std::string_view file_;
};

// A mapping whose keys are known. Unknown, repeated and missing ones are refused at once.
class Section {
 public:
  Section(const Value& value, std::span<const std::string_view> required,
          std::span<const std::string_view> optional = {})
      : path_(value.path()) {
    if (!value.node().IsMap()) value.refuse("a mapping of key: value lines");
    for (const auto& pair : value.node()) add(pair, value.file(), required, optional);
    for (const std::string_view key : required) {
      if (values_.contains(key)) continue;
      config_error("{}: {} has no {}; every figure is given, there are no defaults",
                   path_.empty() ? std::string(value.file()) : place(value.mark(), value.file()),
                   path_.empty() ? "the profile" : path_, key);
    }
  }

  const Value& operator[](std::string_view key) const { return values_.find(key)->second; }
  bool has(std::string_view key) const { return values_.contains(key); }

 private:
  using Pair = YAML::detail::iterator_value;

  void add(const Pair& pair, std::string_view file, std::span<const std::string_view> required,
           std::span<const std::string_view> optional) {
    const YAML::Mark mark = pair.first.Mark();
    if (!pair.first.IsScalar()) {
      config_error("{}: a key is {}; write key: value lines", place(mark, file), shown(pair.first));
    }
    const std::string& key = pair.first.Scalar();
    const std::string path = path_.empty() ? key : path_ + "." + key;
    if (std::ranges::find(required, key) == required.end() && std::ranges::find(optional, key) == optional.end()) {
      refuse_key(path, key, place(mark, file), required, optional);
    }
    const auto [first, fresh] = values_.emplace(key, Value(pair.second, path, mark, file));
    if (!fresh) {
      config_error("{}: {} is given again, first at line {}; keep one", place(mark, file), path,
                   first->second.mark().line + 1);
    }
  }

  [[noreturn]] void refuse_key(const std::string& path, const std::string& key, const std::string& where,
                               std::span<const std::string_view> required,
                               std::span<const std::string_view> optional) const {
    std::vector<std::string> names(required.begin(), required.end());
    names.insert(names.end(), optional.begin(), optional.end());
    if (const auto nearest = nearest_spelling(key, names)) {
      config_error("{}: unknown key '{}'; did you mean {}?", where, path, *nearest);
    }
    config_error("{}: unknown key '{}'; the keys here are {}", where, path, fmt::join(names, ", "));
  }

  std::string path_;
  std::map<std::string, Value, std::less<>> values_;
};

using Keys = std::vector<std::string_view>;

DType floating(const Value& value) {
  const std::string text = value.text();
  const auto dtype = parse_dtype(text);
  if (!dtype || !is_floating(*dtype)) {
    config_error("{}: {} is {}; use bf16, fp16, fp32 or fp64", value.where(), value.path(), text);
  }
  return *dtype;
}

MemoryProfile read_memory(const Value& value) {
  const Keys keys{"source",
                  "capacity_bytes",
                  "context_bytes",
                  "matrix_workspace_bytes",
                  "bandwidth_bytes_per_s",
                  "streaming_efficiency",
                  "half_rate_bytes"};
  const Section s(value, keys);
  s["source"].text();
  MemoryProfile memory{.capacity_bytes = s["capacity_bytes"].whole(kCount),
                       .context_bytes = s["context_bytes"].whole(kWhole),
                       .matrix_workspace_bytes = s["matrix_workspace_bytes"].whole(kWhole),
                       .bandwidth_bytes_per_s = s["bandwidth_bytes_per_s"].number(kRate),
                       .streaming_efficiency = s["streaming_efficiency"].number(kShare),
                       .half_rate_bytes = s["half_rate_bytes"].whole(kWhole)};
  if (memory.context_bytes >= memory.capacity_bytes) {
    config_error("{}: {} is {}; use less than memory.capacity_bytes, {}", s["context_bytes"].where(),
                 s["context_bytes"].path(), memory.context_bytes, memory.capacity_bytes);
  }
  return memory;
}

std::map<DType, double> read_peaks(const Value& value) {
  const Keys types{"bf16", "fp16", "fp32"};
  const Keys more{"fp64"};
  const Section s(value, types, more);
  std::map<DType, double> peaks;
  for (const Keys* keys : {&types, &more}) {
    for (const std::string_view type : *keys) {
      if (s.has(type)) peaks[*parse_dtype(type)] = s[type].number(kRate);
    }
  }
  return peaks;
}

MatrixTile read_tile(const Value& value) {
  const Keys keys{"m", "n"};
  const Section s(value, keys);
  return {s["m"].whole(kCount), s["n"].whole(kCount)};
}

MatrixProfile read_matrix(const Value& value) {
  const Keys keys{"source",
                  "peak_flops_per_s",
                  "cores",
                  "tiles",
                  "efficiency",
                  "half_rate_k",
                  "half_rate_tile",
                  "wave_quantisation",
                  "power_limit_share",
                  "power_limit_flops"};
  const Section s(value, keys);
  s["source"].text();
  MatrixProfile matrix{.peak_flops_per_s = read_peaks(s["peak_flops_per_s"]),
                       .cores = s["cores"].whole(kCount),
                       .efficiency = s["efficiency"].number(kShare),
                       .half_rate_k = s["half_rate_k"].number(kSize),
                       .half_rate_tile = s["half_rate_tile"].number(kSize),
                       .wave_quantisation = s["wave_quantisation"].number(kPart),
                       .power_limit_share = s["power_limit_share"].number(kLoss),
                       .power_limit_flops = s["power_limit_flops"].number(kSize)};
  for (const Value& tile : s["tiles"].list("tiles, as in - {m: 128, n: 128}")) matrix.tiles.push_back(read_tile(tile));
  return matrix;
}

AttentionCurve read_curve(const Value& value) {
  const Keys keys{"efficiency", "half_rate_seq", "half_rate_head_dim", "half_rate_heads"};
  const Section s(value, keys);
  return {.efficiency = s["efficiency"].number(kShare),
          .half_rate_seq = s["half_rate_seq"].number(kSize),
          .half_rate_head_dim = s["half_rate_head_dim"].number(kSize),
          .half_rate_heads = s["half_rate_heads"].number(kSize)};
}

AttentionProfile read_attention(const Value& value) {
  const Keys keys{"source", "forward", "backward"};
  const Section s(value, keys);
  s["source"].text();
  return {read_curve(s["forward"]), read_curve(s["backward"])};
}

ProductPoint read_product(const Value& value) {
  const Keys keys{"kernel", "dtype", "m", "n", "k", "time_ns"};
  const Section s(value, keys);
  return {.kernel = s["kernel"].text(),
          .dtype = floating(s["dtype"]),
          .m = s["m"].whole(kCount),
          .n = s["n"].whole(kCount),
          .k = s["k"].whole(kCount),
          .time_ns = s["time_ns"].number(kRate)};
}

AttentionPoint read_attention_point(const Value& value) {
  const Keys keys{"kernel", "dtype", "heads", "seq", "head_dim", "time_ns"};
  const Section s(value, keys);
  return {.kernel = s["kernel"].text(),
          .dtype = floating(s["dtype"]),
          .heads = s["heads"].whole(kCount),
          .seq = s["seq"].whole(kCount),
          .head_dim = s["head_dim"].whole(kCount),
          .time_ns = s["time_ns"].number(kRate)};
}

MeasuredProfile read_measured(const Value& value, const MatrixProfile& matrix) {
  const Keys keys{"source", "reach", "weight"};
  const Keys optional{"products", "attention"};
  const Section s(value, keys, optional);
  s["source"].text();
  MeasuredProfile measured{.reach = s["reach"].number(kRate), .weight = s["weight"].number(kRate)};
  const auto read = [&](std::string_view key, auto& points, auto read_point) {
    if (!s.has(key)) return;
    for (const Value& point : s[key].list("measured kernels")) {
      points.push_back(read_point(point));
      if (matrix.peak_flops_per_s.contains(points.back().dtype)) continue;
      config_error("{}: {} is of {}, and matrix.peak_flops_per_s has none; add it there", point.where(), point.path(),
                   name(points.back().dtype));
    }
  };
  read("products", measured.products, read_product);
  read("attention", measured.attention, read_attention_point);
  return measured;
}

VectorProfile read_vector(const Value& value) {
  const Keys keys{"source", "flops_per_s"};
  const Keys optional{"relative_rate"};
  const Section s(value, keys, optional);
  s["source"].text();
  VectorProfile vector{.flops_per_s = s["flops_per_s"].number(kRate)};
  if (!s.has("relative_rate")) return vector;
  const Value& rates = s["relative_rate"];
  if (!rates.node().IsMap()) rates.refuse("a mapping of kernel names and factors");
  for (const auto& pair : rates.node()) {
    const std::string kernel = pair.first.IsScalar() ? pair.first.Scalar() : "?";
    const Value rate(pair.second, rates.path() + "." + kernel, pair.first.Mark(), rates.file());
    if (vector.relative_rate.emplace(kernel, rate.number(kRelative)).second) continue;
    config_error("{}: {} is given again; keep one", place(rate.mark(), rate.file()), rate.path());
  }
  return vector;
}

LaunchProfile read_launch(const Value& value) {
  const Keys keys{"source", "kernel_launch_ns", "dispatch_ns", "library_ns", "collective_ns", "stream_wait_ns"};
  const Section s(value, keys);
  s["source"].text();
  return {.kernel_launch_ns = s["kernel_launch_ns"].whole(kWhole),
          .dispatch_ns = s["dispatch_ns"].whole(kWhole),
          .library_ns = s["library_ns"].whole(kWhole),
          .collective_ns = s["collective_ns"].whole(kWhole),
          .stream_wait_ns = s["stream_wait_ns"].whole(kWhole)};
}

// `inner`: the level before; null for the nearest.
LinkLevel read_level(const Value& value, const LinkLevel* inner, bool last) {
  static const std::vector<std::string> kTopologies{"switch", "full_mesh"};
  static const std::vector<std::string> kAlgorithms{"ring", "doubling", "direct"};
  Keys keys{"name",
            "topology",
            "algorithm",
            "latency_ns",
            "bandwidth_bytes_per_s",
            "efficiency",
            "half_rate_message_bytes",
            "compute_slowdown"};
  if (!last) keys.insert(keys.begin() + 1, "devices");
  const Section s(value, keys);
  LinkLevel level{.name = s["name"].text(),
                  .devices = last ? 0 : s["devices"].whole(kCount),
                  .topology = static_cast<Topology>(s["topology"].one_of(kTopologies)),
                  .algorithm = static_cast<Algorithm>(s["algorithm"].one_of(kAlgorithms)),
                  .latency_ns = s["latency_ns"].whole(kWhole),
                  .bandwidth_bytes_per_s = s["bandwidth_bytes_per_s"].number(kRate),
                  .efficiency = s["efficiency"].number(kShare),
                  .half_rate_message_bytes = s["half_rate_message_bytes"].whole(kWhole),
                  .compute_slowdown = s["compute_slowdown"].number(kLoss)};
  if (!last && inner != nullptr && (level.devices <= inner->devices || level.devices % inner->devices != 0)) {
    s["devices"].refuse(
        fmt::format("a multiple of the {} devices of {}, the level before", inner->devices, inner->name));
  }
  if (level.topology == Topology::kFullMesh && (last || level.devices / (inner ? inner->devices : 1) < 2)) {
    s["topology"].refuse("switch, or at least 2 devices a domain: a full mesh has as many links as peers");
  }
  if (level.algorithm == Algorithm::kDirect && level.topology != Topology::kFullMesh) {
    s["algorithm"].refuse("ring or doubling; direct needs topology: full_mesh");
  }
  return level;
}

LinkProfile read_links(const Value& value) {
  const Keys keys{"source", "levels", "launch_ns", "pipeline_chunks"};
  const Section s(value, keys);
  s["source"].text();
  LinkProfile links{.launch_ns = s["launch_ns"].whole(kWhole), .pipeline_chunks = s["pipeline_chunks"].whole(kCount)};
  const std::vector<Value> levels = s["levels"].list("levels of links, from the nearest to the farthest");
  if (levels.size() > 8) s["levels"].refuse("at most 8 levels");
  if (levels.size() < 2) s["levels"].refuse("at least 2 levels: inside a node, and between nodes");
  for (std::size_t l = 0; l < levels.size(); ++l) {
    const LinkLevel level = read_level(levels[l], l == 0 ? nullptr : &links.levels[l - 1], l + 1 == levels.size());
    links.levels.push_back(level);
  }
  return links;
}

HostLinkProfile read_host_link(const Value& value) {
  const Keys keys{"source",
                  "latency_ns",
                  "h2d_pinned_bytes_per_s",
                  "d2h_pinned_bytes_per_s",
                  "h2d_pageable_bytes_per_s",
                  "d2h_pageable_bytes_per_s"};
  const Section s(value, keys);
  s["source"].text();
  return {.latency_ns = s["latency_ns"].whole(kWhole),
          .h2d_pinned_bytes_per_s = s["h2d_pinned_bytes_per_s"].number(kRate),
          .d2h_pinned_bytes_per_s = s["d2h_pinned_bytes_per_s"].number(kRate),
          .h2d_pageable_bytes_per_s = s["h2d_pageable_bytes_per_s"].number(kRate),
          .d2h_pageable_bytes_per_s = s["d2h_pageable_bytes_per_s"].number(kRate)};
}

HostProfile read_host(const Value& value, const LinkProfile& links) {
  const Keys keys{"source", "memory_bandwidth_bytes_per_s", "flops_per_s", "kernel_ns", "numa_node_of_device"};
  const Section s(value, keys);
  s["source"].text();
  HostProfile host{.memory_bandwidth_bytes_per_s = s["memory_bandwidth_bytes_per_s"].number(kRate),
                   .flops_per_s = s["flops_per_s"].number(kRate),
                   .kernel_ns = s["kernel_ns"].whole(kWhole)};
  constexpr Range kNode{.most = 1023, .whole = true, .words = "the number of a NUMA node, 0 to 1023"};
  const Value& nodes = s["numa_node_of_device"];
  for (const Value& node : nodes.list("NUMA nodes, one for each device of a host")) {
    host.numa_node_of_device.push_back(static_cast<int>(node.whole(kNode)));
  }
  std::vector<std::int64_t> domains;
  for (const LinkLevel& level : links.levels) domains.push_back(level.devices);
  domains.pop_back();
  const auto devices = static_cast<std::int64_t>(host.numa_node_of_device.size());
  if (std::ranges::find(domains, devices) == domains.end()) {
    config_error("{}: {} has {} entries; use one for each device of a host, as many as a level of links joins: {}",
                 nodes.where(), nodes.path(), devices, fmt::join(domains, " or "));
  }
  return host;
}

HardwareProfile read_profile(const Value& document) {
  const Keys keys{"name", "source", "memory", "matrix", "attention", "vector", "launch", "links", "host_link", "host"};
  const Keys optional{"measured"};
  const Section s(document, keys, optional);
  s["source"].text();
  HardwareProfile profile{.name = s["name"].text(),
                          .memory = read_memory(s["memory"]),
                          .matrix = read_matrix(s["matrix"]),
                          .attention = read_attention(s["attention"]),
                          .vector = read_vector(s["vector"]),
                          .launch = read_launch(s["launch"]),
                          .links = read_links(s["links"]),
                          .host_link = read_host_link(s["host_link"])};
  if (s.has("measured")) profile.measured = read_measured(s["measured"], profile.matrix);
  profile.host = read_host(s["host"], profile.links);
  return profile;
}

YAML::Node load_document(const std::string& text, std::string_view file) {
  YAML::Node document;
  try {
    document.reset(YAML::Load(text));
  } catch (const YAML::Exception& error) {
    config_error("{}: not readable as YAML ({}); check indentation, colons and quotes here and in the line above",
                 place(error.mark, file), error.msg);
  }
  if (document.IsNull()) {
    config_error("{}: the file has no keys; begin with a copy of configs/devices/h200.yaml", file);
  }
  if (!document.IsMap()) {
    config_error("{}: the file is {}; write key: value lines", place(document.Mark(), file),
                 document.IsSequence() ? "a list" : "a single value");
  }
  return document;
}

}  // namespace

HardwareProfile load_profile(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    config_error("{}: is a folder; give the path of the YAML file itself", path.string());
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    config_error("{}: {}; give the path of an existing device profile, as configs/devices/h200.yaml", path.string(),
                 std::strerror(errno));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return parse_profile(text.str(), path.string());
}

HardwareProfile parse_profile(std::string_view text, std::string_view file_name) {
  // An end of line after the last value lets the parser mark the end of the file, not its beginning.
  const YAML::Node document = load_document(std::string(text) + "\n", file_name);
  return read_profile(Value(document, "", document.Mark(), file_name));
}

}  // namespace loom::virtual_time
