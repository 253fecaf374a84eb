// logits_parity DIR: the models' arithmetic is Hugging Face's.
//
// Every subfolder of DIR with a logits.safetensors is a case: config.json and model.safetensors are loaded, the logits
// of `input_ids` must agree within 2e-5 and the 24 tokens chosen greedily after the first 16 must be equal, in both
// kernel grains. A model_type that is not built is a skip.
#include <cmath>
#include <cstring>

#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "models/decoder/decoder.h"
#include "models/generation/generation.h"
#include "models/generation/sampling.h"
#include "models/hf/hf_folder.h"
#include "tests/support/case_json.h"
#include "tests/support/parity_report.h"

namespace loom::logits_parity {
namespace {

constexpr double kLogitsTolerance = 2e-5;
constexpr std::size_t kNewTokens = 24;

struct Grain {
  const char* name;
  nn::KernelOptions options;
};
const Grain kGrains[] = {{"fast", nn::KernelOptions::fast()}, {"pytorch", nn::KernelOptions::pytorch()}};

Tensor to_host(const io::StoredTensor& stored) {
  const Tensor tensor = Tensor::host(stored.shape, stored.dtype, stored.name);
  std::memcpy(tensor.raw(), stored.bytes.data(), stored.bytes.size());
  return tensor;
}

struct Reference {
  Tensor input_ids;
  std::vector<float> logits;
  std::size_t prompt_tokens = 0;
  std::vector<std::vector<std::int32_t>> greedy;  // prompt and continuation
};

// Later references have the continuations alone; their prompts are the first tokens of input_ids.
void add_prompts(Reference& reference) {
  const std::int64_t width = reference.input_ids.shape()[1];
  const auto* ids = reference.input_ids.data<std::int32_t>();
  for (auto& tokens : reference.greedy) {
    if (tokens.size() == kNewTokens) tokens.insert(tokens.begin(), ids, ids + reference.prompt_tokens);
    ids += width;
  }
}

Reference read_reference(const std::filesystem::path& folder) {
  const io::SafetensorsFile file(folder / "logits.safetensors");
  const test::CaseJson greedy = test::read_case(folder / "greedy.json");
  Reference reference{to_host(file.at("input_ids")), to_host(file.at("logits")).to_vector<float>(),
                      greedy.at("prompt_tokens").get<std::size_t>(),
                      greedy.at("greedy").get<std::vector<std::vector<std::int32_t>>>()};
  greedy.check_all_read();
  add_prompts(reference);
  return reference;
}

double worst_difference(nn::Module& model, const Reference& reference) {
  const autograd::NoGrad no_grad;
  const Tensor logits = model(reference.input_ids);
  const std::vector<float> actual = logits.to_vector<float>();
  if (actual.size() != reference.logits.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(static_cast<double>(actual[i]) - static_cast<double>(reference.logits[i]));
    worst = difference <= worst ? worst : difference;  // NaN counts as worse
  }
  return worst;
}

struct TokenCount {
  std::size_t equal = 0;
  std::size_t all = 0;
};

TokenCount compare_greedy(nn::Module& model, const models::DecoderConfig& config, const Reference& reference) {
  const auto greedy = [](std::span<const float> logits, std::int64_t) {
    return models::choose_token(logits, {}, 0, 0);
  };
  TokenCount count;
  for (const auto& expected : reference.greedy) {
    const std::span prompt(expected.data(), reference.prompt_tokens);
    const std::size_t new_tokens = expected.size() - reference.prompt_tokens;
    const auto made = models::generate(model, prompt,
                                       {.max_new_tokens = static_cast<std::int64_t>(new_tokens),
                                        .max_positions = config.max_position_embeddings,
                                        .end_token_ids = {}},
                                       greedy);
    count.all += new_tokens;
    for (std::size_t i = reference.prompt_tokens; i < std::min(expected.size(), made.tokens.size()); ++i) {
      count.equal += made.tokens[i] == expected[i] ? 1 : 0;
    }
  }
  return count;
}

void run_case(const std::filesystem::path& folder, RankContext& context, test::ParityReport& report) {
  const std::string name = folder.filename().string();
  models::DecoderConfig config;
  try {
    config = models::load_decoder_config(folder);
  } catch (const ConfigError& error) {
    report.skipped(name, error.what());
    return;
  }
  const Reference reference = read_reference(folder);
  const auto model = models::build_decoder(config);
  const io::HfWeights weights(folder);
  models::check_weights(*model, weights);
  nn::materialize(*model);
  models::load_weights(*model, weights);

  bool agrees = !reference.greedy.empty();
  std::string detail;
  for (const Grain& grain : kGrains) {
    context.slot<nn::KernelOptions>() = grain.options;
    const double worst = worst_difference(*model, reference);
    const TokenCount tokens = compare_greedy(*model, config, reference);
    agrees = agrees && worst <= kLogitsTolerance && tokens.all > 0 && tokens.equal == tokens.all;
    detail += fmt::format("{}{}: worst logit difference {:.1e}, {} of {} greedy tokens equal",
                          detail.empty() ? "" : "; ", grain.name, worst, tokens.equal, tokens.all);
  }
  agrees ? report.passed(name, detail) : report.failed(name, detail);
}

int run(const std::filesystem::path& folder) {
  test::ParityReport report;
  for (const auto& case_folder : test::case_folders(folder, "logits.safetensors")) {
    RankContext context(0, 1);
    const RankScope scope(context);
    device::Device::install(context, {});
    try {
      run_case(case_folder, context, report);
    } catch (const std::exception& error) {
      report.failed(case_folder.filename().string(), error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::logits_parity

int main_of_logits_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "logits_parity", loom::logits_parity::run);
}
