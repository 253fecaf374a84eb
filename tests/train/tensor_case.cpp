#include "tests/train/tensor_case.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <map>
#include <regex>

#include "engine/core/error.h"

namespace loom::test {
namespace {

struct Calls {
  double calls = 0;
  double bytes = 0;  // of the tensors that this rank gives
};

// Of the compute stream, by torch's names. A gather's bytes are of all parts.
std::map<std::string, Calls> calls_of(const device::Recording& recording) {
  std::map<std::string, Calls> found;
  recording.visit(
      [&](const device::Entry& entry) {
        if (entry.group < 0 || entry.stream != device::StreamId::kCompute) return;
        const std::string& subject = recording.text(entry.subject);
        if (subject.ends_with(" largest") || subject.ends_with(" sums")) return;
        const std::string& name = recording.text(entry.name);
        const bool gathers = name == "all_gather";
        const std::string torch_name = gathers                    ? "all_gather_into_tensor"
                                       : name == "reduce_scatter" ? "reduce_scatter_tensor"
                                                                  : name;
        found[torch_name].calls += 1;
        const auto others = static_cast<double>(entry.cost.link_bytes);
        found[torch_name].bytes +=
            gathers ? static_cast<double>(entry.bytes) - others : static_cast<double>(entry.bytes);
      },
      [](const device::Mark&) {});
  return found;
}

// Names of `patterns` without their containers, sorted.
std::vector<std::string> last_names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) names.push_back(path.substr(path.rfind('.') + 1));
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

TensorCase read_tensor(const CaseJson& curve) {
  TensorCase c;
  c.sequence_parallel = curve.value("sequence_parallel", false);
  c.loss_parallel = curve.value("loss_parallel", false);
  c.compares = curve.contains("collectives_of_step_2");
  if (c.compares) c.collectives = curve.at("collectives_of_step_2");
  if (curve.contains("steps") && !(curve.at("steps") == curve.at("curve").size())) {
    config_error("steps is {}, which is not the length of the curve", curve.at("steps").dump());
  }
  const CaseJson plan = curve.at("tensor_parallel");
  const auto columns = plan.at("columns").get<std::vector<std::string>>();
  const auto rows = plan.at("rows").get<std::vector<std::string>>();
  if (columns != std::vector<std::string>{"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head"} ||
      rows != std::vector<std::string>{"o_proj", "down_proj", "embed_tokens (vocabulary)"}) {
    config_error("its plan is columns {}, rows {}, which is not ours", fmt::join(columns, " "), fmt::join(rows, " "));
  }
  return c;
}

sharding::SharedMatrices matrices_of(nn::Module& model, const TensorCase& c, int ranks) {
  sharding::Fsdp2Config config;
  config.tensor_parallel_size = ranks;
  config.sequence_parallel = c.sequence_parallel;
  config.loss_parallel = c.loss_parallel;
  sharding::SharedMatrices matrices = sharding::shared_matrices(model, config);
  if (c.compares) {
    if (last_names(matrices.colwise) !=
            std::vector<std::string>{"gate_proj", "k_proj", "q_proj", "up_proj", "v_proj"} ||
        last_names(matrices.rowwise) != std::vector<std::string>{"down_proj", "o_proj"}) {
      config_error("the model's plan is columns {}, rows {}", fmt::join(matrices.colwise, " "),
                   fmt::join(matrices.rowwise, " "));
    }
  }
  return matrices;
}

std::vector<std::string> read_placements(const CaseJson& value) {
  if (!value.is_string()) return value.get<std::vector<std::string>>();
  static const std::regex word(R"(_StridedShard\(dim=(\d+), sf=(\d+)\)|Shard\(dim=(\d+)\)|Replicate\(\))");
  const std::string text = value.get<std::string>();
  std::vector<std::string> words;
  for (std::sregex_iterator at(text.begin(), text.end(), word), end; at != end; ++at) {
    const std::smatch& match = *at;
    words.push_back(match[1].matched   ? fmt::format("_S({}, {})", match[1].str(), match[2].str())
                    : match[3].matched ? fmt::format("S({})", match[3].str())
                                       : "R");
  }
  return words;
}

std::vector<std::string> tensor_placements(const nn::ShardSpec& box, const Shape& shape, int shard_dim, int ranks,
                                           bool sequence_parallel) {
  int cut = -1;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if (shape[dim] < box.global_shape[dim]) cut = dim;
  }
  const std::string own =
      cut == shard_dim ? fmt::format("_S({}, {})", shard_dim, ranks) : fmt::format("S({})", shard_dim);
  if (cut >= 0) return {own, fmt::format("S({})", cut)};
  // Torch's norms are on both axes with sequence parallelism alone.
  return sequence_parallel ? std::vector<std::string>{own, "R"} : std::vector<std::string>{own};
}

std::string check_tensor_collectives(const device::Recording& recording, const CaseJson& expected, const TensorRun& run,
                                     const std::string& direction) {
  const bool forward = direction == "forward";
  std::map<std::string, Calls> found = calls_of(recording);
  const bool reduces_once = !forward && !expected.at("backward").contains("all_gather_into_tensor");
  std::string wrong;
  for (const auto& [name, value] : expected.at(direction).items()) {
    const bool norms = !forward && name == "all_reduce";
    const double torch_calls = value.at("calls"), torch_bytes = value.at("bytes");
    const double calls = norms ? 1.0 : torch_calls, bytes = torch_bytes / (norms ? run.dp_shard : 1);
    const Calls actual = found[name];
    found.erase(name);
    if (reduces_once || (run.copies && name != "all_reduce") || (norms && run.offloads)) continue;
    if (actual.calls == calls && actual.bytes == bytes) continue;
    wrong += fmt::format("{}: {}: {} calls of {} bytes, expected {} of {}; ", direction, name, actual.calls,
                         actual.bytes, calls, bytes);
  }
  for (const auto& [name, calls] : found) {
    wrong += fmt::format("{}: {} calls of {} too many; ", direction, calls.calls, name);
  }
  return wrong;
}

}  // namespace loom::test
