// operator_parity DIR: in 16 bits, operators of the grain "pytorch" round where PyTorch's eager operators do.
//
// Every subfolder of DIR with a case.json is a case, made by tests/reference/generate/operators.py: the operator runs
// on the tensors `in.*` and `const.*` of tensors.safetensors; its result and the gradients of `in.*` are compared with
// `out*` and `grad.*`, element by element.
//
// Agreement  Differences are counted in units: one unit in the last place of the reference's element, or, where that
//            is larger, of a value at 1/64 of the tensor's largest: elements that nearly cancel have the noise of
//            sums. Where each element is a chain of roundings, all bits are equal. Where PyTorch has an order of sums
//            or exponentials of its own, one element or 0.5 % of them may differ, by two units.
// Fused      The operators of the grain "fast" are compared beside it and shown, without a verdict: they round once.
#include <cmath>
#include <cstring>
#include <map>

#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/functional.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/composed.h"
#include "models/decoder/rotary_embedding.h"
#include "tests/support/case_json.h"
#include "tests/support/one_rank.h"
#include "tests/support/parity_report.h"

namespace loom::operator_parity {
namespace {

namespace functional = nn::functional;
struct Case {
  test::CaseJson words;
  std::map<std::string, Tensor> tensors;  // by name

  const Tensor& at(const std::string& name) const {
    const auto found = tensors.find(name);
    require(found != tensors.end(), "the case has no tensor '{}'", name);
    return found->second;
  }
  Tensor in(const std::string& name) const { return at("in." + name); }
  Tensor in_or_none(const std::string& name) const { return tensors.contains("in." + name) ? in(name) : Tensor{}; }
  double number(const char* name) const { return words.at(name).get<double>(); }
  std::string operation() const { return words.at("operator").get<std::string>(); }
};

using Results = std::map<std::string, Tensor>;  // by the reference's name
using Operator = std::function<Tensor(const Case&)>;

Tensor residual(const Case& c) {
  const Tensor normed = functional::rms_norm(c.in("x"), c.in("weight"), c.number("eps"));
  return ops::add(c.in("x"), ops::linear(normed, c.in("projection")));
}

Tensor fan_out(const Case& c) {
  const Tensor first = ops::linear(c.in("x"), c.in("a"));
  const Tensor second = ops::linear(c.in("x"), c.in("b"));
  const Tensor third = ops::linear(c.in("x"), c.in("c"));
  return ops::add(ops::add(first, second), third);
}

const std::map<std::string, Operator>& operators() {
  static const std::map<std::string, Operator> table{
      {"linear", [](const Case& c) { return ops::linear(c.in("x"), c.in("weight"), c.in_or_none("bias")); }},
      {"linear_kn", [](const Case& c) { return ops::linear_kn(c.in("x"), c.in("weight"), c.in("bias")); }},
      {"embedding", [](const Case& c) { return functional::embedding(c.at("const.ids"), c.in("table")); }},
      {"rms_norm", [](const Case& c) { return functional::rms_norm(c.in("x"), c.in("weight"), c.number("eps")); }},
      {"layer_norm",
       [](const Case& c) { return functional::layer_norm(c.in("x"), c.in("weight"), c.in("bias"), c.number("eps")); }},
      {"rope", [](const Case& c) { return functional::rope(c.in("x"), c.at("const.cos"), c.at("const.sin")); }},
      {"softmax", [](const Case& c) { return ops::softmax(c.in("x")); }},
      {"attention",
       [](const Case& c) { return functional::attention(c.in("q"), c.in("k"), c.in("v"), c.number("scale")); }},
      {"plain_attention",
       [](const Case& c) {
         return functional::plain_attention(c.in("q"), c.in("k"), c.in("v"), c.number("scale"), /*causal=*/true);
       }},
      {"flash_attention",
       [](const Case& c) { return ops::attention(c.in("q"), c.in("k"), c.in("v"), c.number("scale")); }},
      {"silu", [](const Case& c) { return ops::silu(c.in("x")); }},
      {"swiglu", [](const Case& c) { return functional::swiglu(c.in("gate"), c.in("up")); }},
      {"gelu_tanh", [](const Case& c) { return functional::gelu(c.in("x"), ops::Gelu::kTanh); }},
      {"gelu_erf", [](const Case& c) { return functional::gelu(c.in("x"), ops::Gelu::kErf); }},
      {"residual", residual},
      {"fan_out", fan_out},
      {"cross_entropy",
       [](const Case& c) { return functional::cross_entropy(c.in("logits"), c.at("const.targets")); }}};
  return table;
}

Results rotary_tables(const Case& c) {
  const Shape& shape = c.at("out.cos").shape();
  models::RotaryEmbedding rotary(
      "RotaryEmbedding",
      {.head_dim = shape[1], .max_position_embeddings = shape[0], .theta = c.number("theta"), .scaling = {}});
  const nn::Value tables = rotary(Tensor::zeros({1, shape[0], 1}, c.at("out.cos").dtype()));
  const auto rounded = [&](std::size_t i) { return ops::cast(tables.list()[i].tensor(), c.at("out.cos").dtype()); };
  return {{"out.cos", rounded(0)}, {"out.sin", rounded(1)}};  // those of fused operators are fp32
}

Results run_operator(Case c) {
  const std::string name = c.operation();
  if (name == "rotary_tables") return rotary_tables(c);
  for (auto& [path, tensor] : c.tensors) {
    if (path.starts_with("in.")) tensor.set_requires_grad(true);
  }
  const Tensor out = operators().at(name)(c);
  Results results{{"out", out.detach()}};
  autograd::backward(out, c.at("grad_out"));
  for (const auto& [path, tensor] : c.tensors) {
    if (path.starts_with("in.")) results["grad." + path.substr(3)] = tensor.grad();
  }
  return results;
}

struct Difference {
  std::int64_t elements = 0;
  std::int64_t all = 0;
  double units = 0;

  double share() const { return static_cast<double>(elements) / static_cast<double>(all); }
};

Difference compare(const Tensor& reference, const Tensor& ours) {
  const std::vector<double> expected = reference.to_vector<double>(), actual = ours.to_vector<double>();
  Difference d{.all = reference.numel()};
  if (ours.shape() != reference.shape() || ours.dtype() != reference.dtype()) return {d.all, d.all, INFINITY};
  const int digits = reference.dtype() == DType::kF32 ? 24 : 8;
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    const double size = std::max(std::abs(expected[i]), largest / 64);
    const double units = std::abs(actual[i] - expected[i]) / std::exp2(std::floor(std::log2(size)) - (digits - 1));
    ++d.elements;
    d.units = units <= d.units ? d.units : units;  // NaN counts as worse
  }
  return d;
}

// How far a tensor may be from the reference.
struct Allowed {
  double share;
  double units;
};

Allowed allowed(const std::string& operation) {
  static const std::map<std::string, Allowed> table{
      {"embedding", {0, 0}},
      {"rope", {0, 0}},
      {"rotary_tables", {0, 0}},
      {"gelu_erf", {0.02, 1}},          // an approximation of erf for 16 bits
      {"flash_attention", {0.6, 32}}};  // SDPA on CPUs rounds weights of each block; ours as the processor has it
  constexpr Allowed kOrderOfSums{0.005, 2};
  const auto found = table.find(operation);
  return found == table.end() ? kOrderOfSums : found->second;
}

// PyTorch's LayerNorm on CPUs adds the rows of these gradients in 16 bits, in as many parts as it has threads.
bool depends_on_threads(const std::string& operation, const std::string& tensor) {
  return operation == "layer_norm" && (tensor == "grad.weight" || tensor == "grad.bias");
}

struct Verdict {
  bool agrees = true;
  std::string text;
};

Verdict compare(const Case& c, const Results& ours) {
  const std::string operation = c.operation();
  const Allowed limit = allowed(operation);
  Verdict verdict;
  for (const auto& [name, tensor] : c.tensors) {
    if (!name.starts_with("out") && !name.starts_with("grad.")) continue;
    const auto found = ours.find(name);
    if (found == ours.end()) return {false, name + " is missing"};
    const Difference d = compare(tensor, found->second);
    const bool few = limit.share > 0 && d.elements <= 1;
    const bool near = (few || d.share() <= limit.share) && d.units <= limit.units;
    const bool counts = !depends_on_threads(operation, name);
    verdict.agrees = verdict.agrees && (near || !counts);
    if (!verdict.text.empty()) verdict.text += ", ";
    verdict.text += d.elements == 0 ? name + " equal"
                                    : fmt::format("{} {} of {} by {:.2g} units{}", name, d.elements, d.all, d.units,
                                                  counts ? "" : " (depends on PyTorch's threads)");
  }
  return verdict;
}

Case read_case(const std::filesystem::path& folder) {
  Case c;
  c.words = test::read_case(folder / "case.json");
  const io::SafetensorsFile file(folder / "tensors.safetensors");
  for (const io::StoredTensor& stored : file.tensors()) {
    const Tensor host = Tensor::host(stored.shape, stored.dtype, stored.name);
    std::memcpy(host.raw(), stored.bytes.data(), stored.bytes.size());
    const Tensor tensor = Tensor::empty(stored.shape, stored.dtype);
    tensor.copy_from(host);
    c.tensors[stored.name] = tensor;
  }
  return c;
}

Verdict run_case(const std::filesystem::path& folder, const nn::KernelOptions& kernels) {
  test::OneRank rank;
  rank.context().slot<nn::KernelOptions>() = kernels;
  const Case c = read_case(folder);
  const Verdict verdict = compare(c, run_operator(c));
  c.words.check_all_read();
  return verdict;
}

int run(const std::filesystem::path& folder) {
  test::ParityReport report;
  for (const auto& case_folder : test::case_folders(folder, "case.json")) {
    const std::string name = case_folder.filename().string();
    try {
      const Verdict pytorch = run_case(case_folder, nn::KernelOptions::pytorch());
      const Verdict fast = run_case(case_folder, nn::KernelOptions::fast());
      const bool same = pytorch.text == fast.text;
      const std::string text = same ? pytorch.text : fmt::format("{}; fast: {}", pytorch.text, fast.text);
      pytorch.agrees ? report.passed(name, text) : report.failed(name, text);
    } catch (const std::exception& error) {
      report.failed(name, error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::operator_parity

int main_of_operator_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "operator_parity", loom::operator_parity::run);
}
