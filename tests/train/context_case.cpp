#include "tests/train/context_case.h"

#include <cstring>
#include <map>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"

namespace loom::test {
namespace {

sharding::RotateMethod rotate_of(const CaseJson& curve) {
  if (curve.at("algorithm").get<std::string>() == "gather") return sharding::RotateMethod::kKvAllGather;
  const auto rotate = curve.value("rotate", std::string("all_to_all"));
  if (rotate == "all_to_all") return sharding::RotateMethod::kAllToAll;
  if (rotate == "all_gather") return sharding::RotateMethod::kAllGather;
  config_error("keys and values rotate by {}, which this program does not know", rotate);
}

// The algorithm's name says which of the two axes have ranks.
void check_algorithm(const CaseJson& curve, const dist::ContextDegrees& degrees) {
  const auto name = curve.at("algorithm").get<std::string>();
  const bool ring = degrees.ring > 1, ulysses = degrees.ulysses > 1;
  const bool fits = name == "ulysses" ? ulysses && !ring : name == "hybrid" ? ulysses && ring : ring && !ulysses;
  if (!fits) config_error("algorithm {} with ring {} x ulysses {}", name, degrees.ring, degrees.ulysses);
}

void check_ranges(const CaseJson& curve, const dist::ContextDegrees& degrees) {
  const auto all = curve.at("token_ranges").get<std::vector<std::vector<std::vector<std::int64_t>>>>();
  std::int64_t length = 0;
  for (const auto& ranges : all) {
    for (const auto& range : ranges) length = std::max(length, range.at(1));
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<dist::TokenRange> expected;
    for (const auto& range : all[rank]) expected.push_back({range.at(0), range.at(1)});
    if (dist::token_ranges(length, degrees, static_cast<int>(rank) % degrees.ranks()) == expected) continue;
    config_error("rank {} has other tokens than in token_ranges", rank);
  }
}

Tensor rows_of(const io::SafetensorsFile& file, const char* name, std::int64_t step, std::int64_t first,
               std::int64_t rows) {
  const io::StoredTensor& stored = file.at(name);
  const std::int64_t length = stored.shape[2];
  const Tensor part = Tensor::host({rows, length}, DType::kI32, name);
  const auto at = static_cast<std::size_t>((step * stored.shape[1] + first) * length) * sizeof(std::int32_t);
  std::memcpy(part.raw(), stored.bytes.data() + at, static_cast<std::size_t>(part.nbytes()));
  return part;
}

nn::Value ends_of(const Tensor& segments) {
  nn::ValueList ends;
  const std::int64_t length = segments.shape()[1];
  const auto* segment = segments.data<std::int32_t>();
  for (std::int64_t i = 1; i <= segments.numel(); ++i) {
    if (i % length == 0 || segment[i] != segment[i - 1]) ends.emplace_back(i);
  }
  return ends;
}

struct Calls {
  double calls = 0;
  double bytes = 0;  // of the tensors that this rank gives, its own part included
};

// By torch's names.
std::map<std::string, Calls> calls_of_first_layer(const device::Recording& recording, int ranks) {
  std::map<std::string, Calls> found;
  recording.visit(
      [&](const device::Entry& entry) {
        if (entry.group < 0 || !recording.text(entry.subject).starts_with("model.layers.0.self_attn")) return;
        const std::string& name = recording.text(entry.name);
        const bool gathers = name == "all_gather";
        const char* torch_name = gathers                    ? "all_gather_into_tensor"
                                 : name == "reduce_scatter" ? "reduce_scatter_tensor"
                                                            : "all_to_all";
        found[torch_name].calls += 1;
        found[torch_name].bytes += static_cast<double>(entry.bytes) / (gathers ? ranks : 1);
      },
      [](const device::Mark&) {});
  return found;
}

}  // namespace

ContextCase read_context(const std::filesystem::path& folder, const CaseJson& curve) {
  const CaseJson mesh = curve.at("mesh");
  ContextCase context;
  context.sequences = {{mesh.at("ring"), mesh.at("ulysses")}, rotate_of(curve)};
  const dist::ContextDegrees& degrees = context.sequences.degrees;
  const int cp = mesh.at("cp"), dp_shard = mesh.at("dp_shard"), world = curve.at("world");
  if (degrees.ranks() != cp || dp_shard * cp != world) {
    config_error("its axes dp_shard {}, cp {}, ring {} and ulysses {} are not those of {} ranks", dp_shard, cp,
                 degrees.ring, degrees.ulysses, world);
  }
  check_algorithm(curve, degrees);
  check_ranges(curve, degrees);
  context.collectives = curve.at("collectives_of_one_layer");
  if (curve.contains("batches")) context.packed = folder / curve.at("batches").get<std::string>();
  return context;
}

data::Batch packed_batch(const std::filesystem::path& path, std::int64_t step, int part, int parts) {
  const io::SafetensorsFile file(path);
  const std::int64_t rows = file.at("input_ids").shape[1] / parts, first = part * rows;
  data::Batch batch;
  for (const char* name : {"input_ids", "targets", "position_ids"}) {
    batch.values.emplace_back(name, rows_of(file, name, step, first, rows));
  }
  batch.values.emplace_back("actual_seq_len", ends_of(rows_of(file, "segments", step, first, rows)));
  return batch;
}

data::Batch plain_batch(const Tensor& inputs, const Tensor& targets) {
  return {{{"input_ids", inputs}, {"targets", targets}}};
}

std::string check_collectives(const device::Recording& recording, const CaseJson& expected, int ranks) {
  auto found = calls_of_first_layer(recording, ranks);
  std::string wrong;
  for (const auto& [name, value] : expected.items()) {
    const Calls actual = found[name];
    found.erase(name);
    if (actual.calls == value.at("calls").get<double>() && actual.bytes == value.at("bytes").get<double>()) continue;
    wrong += fmt::format("{}: {} calls of {} bytes, expected {} of {}; ", name, actual.calls, actual.bytes,
                         value.at("calls").get<double>(), value.at("bytes").get<double>());
  }
  for (const auto& [name, calls] : found) wrong += fmt::format("{} calls of {} too many; ", calls.calls, name);
  return wrong;
}

}  // namespace loom::test
