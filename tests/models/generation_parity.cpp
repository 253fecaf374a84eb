// generation_parity DIR: tokens, beams and distributions are those of transformers' generate().
//
// Every subfolder of DIR with a case.json is a case; config.json and model.safetensors are those of its `base`, a
// folder of DIR/../logits. Each case runs on 1 rank, and sharded over 2 and 4 ranks of threads: greedy with a cache
// and without, end tokens, repetition penalty, the batch of all prompts, beams, the distributions of sampling (1e-5),
// logits read with a cache in pieces against those of one call (1e-5), and a text that is drawn, which has to be the
// same on every number of ranks, with a cache and without.
#include <cmath>
#include <cstring>
#include <mutex>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "models/decoder/decoder.h"
#include "models/decoder/kv_cache.h"
#include "models/generation/session.h"
#include "models/hf/hf_folder.h"
#include "models/mixin/fsdp2_mixin.h"
#include "tests/support/case_json.h"
#include "tests/support/parity_report.h"
#include "tests/support/world.h"

namespace loom::generation_parity {
namespace {

using test::CaseJson;
using Tokens = std::vector<std::int32_t>;
using models::GenerationSession;

constexpr double kLogitsTolerance = 1e-5;

struct Case {
  std::filesystem::path folder, base;
  CaseJson json;
};

// What one rank found.
struct Findings {
  int equal = 0;
  int all = 0;
  double worst_probability = 0;
  double worst_logit = 0;
  double worst_score = 0;
  std::vector<Tokens> drawn;
  std::string first_wrong;

  void tokens(const std::string& what, const Tokens& actual, const Tokens& expected) {
    ++all;
    if (actual == expected) {
      ++equal;
    } else if (first_wrong.empty()) {
      const auto at = std::ranges::mismatch(actual, expected).in1 - actual.begin();
      first_wrong = fmt::format("; {} differs at token {} of {}", what, at, expected.size());
    }
  }
  static void worse(double& worst, double difference) {
    worst = difference <= worst ? worst : difference;  // NaN counts as worse
  }
};

std::vector<std::int32_t> ids_of(const CaseJson& json) {
  if (json.is_number()) return {json.get<std::int32_t>()};
  return json.get<std::vector<std::int32_t>>();
}

class Run {
 public:
  Run(nn::Module& model, const models::DecoderConfig& config, const Case& of)
      : model_(model), config_(config), case_(of), session_(model, config) {
    for (const std::int64_t id : config.eos_token_ids) ends_.push_back(static_cast<std::int32_t>(id));
  }

  Findings all() {
    greedy();
    stopping();
    penalty();
    batch();
    beams();
    distributions();
    logits();
    draws();
    return found_;
  }

 private:
  // The new tokens. From an empty cache.
  Tokens made(const Tokens& prompt, const models::DecodingOptions& options) {
    session_.clear();
    const Tokens whole = session_.generate({prompt}, options).front().tokens;
    return {whole.begin() + std::ssize(prompt), whole.end()};
  }

  models::DecodingOptions options(bool use_cache = true) const {
    return {.max_new_tokens = case_.json.at("max_new_tokens"), .end_token_ids = ends_, .use_cache = use_cache};
  }

  void greedy() {
    for (const CaseJson& one : case_.json.at("greedy").elements()) {
      const Tokens prompt = one.at("prompt");
      found_.tokens("greedy", made(prompt, options()), one.at("tokens"));
      found_.tokens("greedy without cache", made(prompt, options(false)), one.at("tokens"));
    }
  }

  void stopping() {
    for (const CaseJson& one : case_.json.at("stopping").elements()) {
      models::DecodingOptions stopping = options();
      stopping.end_token_ids = ids_of(one.at("eos_token_id"));
      found_.tokens("stopping", made(one.at("prompt"), stopping), one.at("tokens"));
    }
  }

  void penalty() {
    for (const CaseJson& one : case_.json.at("penalty").elements()) {
      models::DecodingOptions penalized = options();
      penalized.sampling.repetition_penalty = one.at("repetition_penalty");
      found_.tokens("penalty", made(one.at("prompt"), penalized), one.at("tokens"));
    }
  }

  // Once through the session, and once as a left-padded and a right-padded prompt of the model itself.
  void batch() {
    std::vector<Tokens> prompts, expected = case_.json.at("left_padded_batch").at("tokens");
    for (const CaseJson& one : case_.json.at("greedy").elements()) prompts.push_back(one.at("prompt"));
    session_.clear();
    const auto rows = session_.generate(prompts, options());
    for (std::size_t b = 0; b < rows.size(); ++b) {
      const Tokens& whole = rows[b].tokens;
      found_.tokens(fmt::format("row {} of the batch", b), {whole.begin() + std::ssize(prompts[b]), whole.end()},
                    expected[b]);
    }
    for (const bool left : {true, false}) {
      const std::vector<Tokens> padded = padded_greedy(prompts, left);
      for (std::size_t b = 0; b < rows.size(); ++b) {
        found_.tokens(fmt::format("row {} of the {}-padded batch", b, left ? "left" : "right"), padded[b], expected[b]);
      }
    }
  }

  std::vector<Tokens> padded_greedy(const std::vector<Tokens>& prompts, bool left) {
    const std::int64_t batch = std::ssize(prompts);
    std::int64_t width = 0;
    for (const Tokens& prompt : prompts) width = std::max<std::int64_t>(width, std::ssize(prompt));
    const std::int64_t steps = case_.json.at("max_new_tokens");
    models::KvCache cache(models::kv_cache_shape(config_), batch, width + steps);
    Tensor ids = Tensor::host({batch, width}, DType::kI32), mask = Tensor::host({batch, width}, DType::kI32);
    for (std::int64_t b = 0; b < batch; ++b) {
      const Tokens& prompt = prompts[static_cast<std::size_t>(b)];
      const std::int64_t first = left ? width - std::ssize(prompt) : 0;
      for (std::int64_t s = 0; s < width; ++s) {
        const bool is_token = s >= first && s < first + std::ssize(prompt);
        ids.data<std::int32_t>()[b * width + s] = is_token ? prompt[static_cast<std::size_t>(s - first)] : 0;
        mask.data<std::int32_t>()[b * width + s] = is_token ? 1 : 0;
      }
    }
    const autograd::NoGrad no_grad;
    std::vector<Tokens> made(static_cast<std::size_t>(batch));
    for (std::int64_t step = 0; step < steps; ++step) {
      nn::ValueDict named{{"past_key_values", cache.to_value()}, {"logits_to_keep", 1}};
      if (step == 0) named.emplace_back("attention_mask", mask);
      const Tensor logits = model_.call({{ids}, std::move(named)});
      ids = Tensor::host({batch, 1}, DType::kI32);
      for (std::int64_t b = 0; b < batch; ++b) {
        const std::vector<float> row = logits.view({batch, logits.shape()[-1]}).rows(b, 1).to_vector<float>();
        const std::int32_t token = models::choose_token(row, {}, 0, 0);
        made[static_cast<std::size_t>(b)].push_back(token);
        ids.data<std::int32_t>()[b] = token;
      }
    }
    return made;
  }

  void beams() {
    for (const CaseJson& one : case_.json.at("beam_search").elements()) {
      session_.clear();
      const Tokens prompt = one.at("prompt");
      const models::BeamResult result = session_.beam_search(prompt, {.beams = one.at("num_beams"),
                                                                      .length_penalty = one.at("length_penalty"),
                                                                      .max_new_tokens = one.at("max_new_tokens"),
                                                                      .end_token_ids = ids_of(one.at("eos_token_id"))});
      const Tokens& whole = result.generation.tokens;
      found_.tokens(fmt::format("{} beams", one.at("num_beams").get<int>()),
                    {whole.begin() + std::ssize(prompt), whole.end()}, one.at("tokens"));
      Findings::worse(found_.worst_score, std::abs(result.score - one.at("score").get<double>()));
    }
  }

  void distributions() {
    const io::SafetensorsFile file(case_.folder / "probabilities.safetensors");
    for (const CaseJson& one : case_.json.at("distributions").elements()) {
      const CaseJson set = one.at("settings");
      const models::SamplingOptions sampling{.temperature = set.value("temperature", 1.0),
                                             .top_k = set.value("top_k", std::int64_t{0}),
                                             .top_p = set.value("top_p", 1.0),
                                             .min_p = set.value("min_p", 0.0),
                                             .repetition_penalty = set.value("repetition_penalty", 1.0)};
      const io::StoredTensor& stored = file.at(one.at("probabilities").get<std::string>());
      std::vector<float> expected(static_cast<std::size_t>(stored.shape.numel()));
      std::memcpy(expected.data(), stored.bytes.data(), stored.bytes.size());
      Tokens row = one.at("prompt");
      models::KvCache cache(models::kv_cache_shape(config_), 1, std::ssize(row) + 8);
      Tokens unread = row;
      const autograd::NoGrad no_grad;
      std::size_t at = 0;
      Tokens kept;  // tokens with a probability, of each step
      for (const std::int32_t taken : one.at("tokens_taken").get<Tokens>()) {
        kept.push_back(0);
        const Tensor logits = model_.call({{Tensor::from(unread, {1, std::ssize(unread)})},
                                           {{"past_key_values", cache.to_value()}, {"logits_to_keep", 1}}});
        for (const double p : models::next_token_probabilities(logits.to_vector<float>(), sampling, row)) {
          const double q = expected.at(at++);
          kept.back() += p > 0 ? 1 : 0;
          Findings::worse(found_.worst_probability, q == 0 ? (p == 0 ? 0 : INFINITY) : std::abs(p - q));
        }
        row.push_back(taken);
        unread = {taken};
      }
      found_.tokens("the number of tokens kept", kept, one.at("kept"));
    }
  }

  // Of a prompt and its text, read in pieces of 1 to 7 tokens, against one call without a cache.
  void logits() {
    const CaseJson one = case_.json.at("greedy").at(0);
    Tokens row = one.at("prompt");
    for (const std::int32_t token : one.at("tokens").get<Tokens>()) row.push_back(token);
    const autograd::NoGrad no_grad;
    const auto length = std::ssize(row);
    const std::vector<float> whole = model_(Tensor::from(row, {1, length})).tensor().to_vector<float>();
    models::KvCache cache(models::kv_cache_shape(config_), 1, length);
    std::size_t at = 0;
    for (std::int64_t first = 0, size = 1; first < length; first += size, size = first % 7 + 1) {
      const std::int64_t count = std::min(size, length - first);
      const Tokens piece(row.begin() + first, row.begin() + first + count);
      const Tensor logits = model_.call({{Tensor::from(piece, {1, count})}, {{"past_key_values", cache.to_value()}}});
      for (const float value : logits.to_vector<float>()) {
        Findings::worse(found_.worst_logit, std::abs(static_cast<double>(value) - static_cast<double>(whole.at(at++))));
      }
    }
    if (at != whole.size()) found_.worst_logit = INFINITY;
  }

  void draws() {
    for (const bool use_cache : {true, false}) {
      models::DecodingOptions sampled = options(use_cache);
      sampled.sampling = {.temperature = 0.9, .top_k = 40, .top_p = 0.95};
      sampled.seed = 7;
      sampled.max_new_tokens = 24;
      found_.drawn.push_back(made(case_.json.at("greedy").at(0).at("prompt"), sampled));
    }
  }

  nn::Module& model_;
  const models::DecoderConfig& config_;
  const Case& case_;
  GenerationSession session_;
  std::vector<std::int32_t> ends_;
  Findings found_;
};

constexpr const char* kRotaryYaml =
    "sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n";
constexpr const char* kGpt2Yaml = "sharding_size: auto\nsub_modules_to_wrap: [\"transformer.h.{*}\"]\n";

Findings run_on_rank(const Case& of, comm::World& world) {
  const models::DecoderConfig config = models::load_decoder_config(of.base);
  const io::HfWeights weights(of.base);
  const auto model = models::build_decoder(config);
  if (world.size() == 1) {
    nn::materialize(*model);
    models::load_weights(*model, weights);
  } else {
    const bool gpt2 = config.family == models::DecoderFamily::kGpt2;
    models::fully_shard(*model, world, sharding::parse_fsdp2_config(gpt2 ? kGpt2Yaml : kRotaryYaml, "parity.yaml"),
                        {.weights = {.load = [&](nn::Module& sharded) { models::load_weights(sharded, weights); }}});
  }
  return Run(*model, config, of).all();
}

// What the rows of the batch are, and how safe an equality is.
const test::Commentary kCommentary{"rows", "row_equals_single", "smallest_gap_of_best_two_logits",
                                   "smallest_distance_to_top_p"};

void run_case(const Case& of, test::ParityReport& report) {
  std::vector<Tokens> drawn;
  const CaseJson tolerance = of.json.at("tolerance");
  if (!(tolerance.at("tokens") == "equal")) config_error("the tolerance of tokens is not 'equal'");
  for (const int ranks : {1, 2, 4}) {
    const std::string name =
        fmt::format("{} on {} rank{}", of.folder.filename().string(), ranks, ranks == 1 ? "" : "s");
    try {
      const std::vector<Findings> of_ranks =
          test::of_each_rank(ranks, [&](RankContext&, comm::World& world) { return run_on_rank(of, world); });
      const Findings& found = of_ranks.front();
      if (drawn.empty()) drawn = {found.drawn.front(), found.drawn.front()};
      bool same_draws = true;
      for (const Findings& rank : of_ranks) same_draws = same_draws && rank.drawn == drawn;
      const bool agrees = found.all > 0 && found.equal == found.all && same_draws &&
                          found.worst_probability <= tolerance.at("probabilities").get<double>() &&
                          found.worst_logit <= kLogitsTolerance &&
                          found.worst_score <= tolerance.at("beam_score").get<double>();
      const std::string detail = fmt::format(
          "{} of {} texts equal, worst probability {:.1e}, beam score {:.1e}, logits with cache {:.1e}, drawn text "
          "{}{}",
          found.equal, found.all, found.worst_probability, found.worst_score, found.worst_logit,
          same_draws ? "the same" : "DIFFERS", found.first_wrong);
      of.json.check_all_read(kCommentary);
      agrees ? report.passed(name, detail) : report.failed(name, detail);
    } catch (const std::exception& error) {
      report.failed(name, error.what());
    }
  }
}

int run(const std::filesystem::path& folder) {
  test::ParityReport report;
  for (const auto& case_folder : test::case_folders(folder, "case.json")) {
    try {
      const CaseJson file = test::read_case(case_folder / "case.json");
      const std::filesystem::path base = file.at("base").get<std::string>();
      run_case({case_folder, folder / ".." / "logits" / base.filename(), file}, report);
    } catch (const std::exception& error) {
      report.failed(case_folder.filename().string(), error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::generation_parity

int main_of_generation_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "generation_parity", loom::generation_parity::run);
}
