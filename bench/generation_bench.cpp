// Decoding at batch 1 as a share of the memory's speed, and reading a prompt as a share of the multiply-add peak.
//
// Model    Qwen2 architecture of 160 M parameters in fp32: d 1024, 14 layers, 16 query heads over 4 key/value heads.
// Decode   bytes of a token: the weights that a forward reads and the cache, once each, over STREAM triad (384 MiB
//          arrays) measured in turn with it; the best of each counts, as neighbours on the machine slow both.
// Prefill  FLOPs of the matrix products of 512 tokens (attention's left out), over the peak beside them; and the same
//          share of a forward and a backward of these tokens, in turn with it: what training gets out of the machine.
// Check    before timing, logits of the cached path against those of one call without a cache (1e-4).

#include <benchmark/benchmark.h>
#include <cmath>

#include "bench/limits.h"
#include "bench/timing.h"
#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/decoding.h"
#include "models/decoder/decoder.h"
#include "models/decoder/kv_cache.h"

namespace loom::bench {
namespace {

constexpr std::int64_t kContext = 512;
constexpr std::size_t kTriadBytes = std::size_t{384} << 20;

models::DecoderConfig decoder() {
  models::DecoderConfig config;
  config.family = models::DecoderFamily::kQwen2;
  config.vocab_size = 2048;
  config.hidden_size = 1024;
  config.intermediate_size = 2816;
  config.num_hidden_layers = 14;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.max_position_embeddings = 2048;
  config.qkv_bias = true;
  return config;
}

// A rank with a model whose cache has read kContext tokens.
struct Decoder {
  explicit Decoder(int threads) {
    device::Device::install(context, {});
    context.slot<ComputePool>().resize(threads);
    nn::materialize(*model);
    nn::init_weights(*model, 1);
  }

  Tensor ids(std::int64_t count) const {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(37 * i % config.vocab_size));
    return Tensor::from(ids, {1, count});
  }
  std::vector<float> read(models::KvCache& cache, const Tensor& tokens) const {
    const autograd::NoGrad no_grad;
    const ops::DecodingScope decoding;
    return model->call({{tokens}, {{"past_key_values", cache.to_value()}, {"logits_to_keep", 1}}})
        .tensor()
        .to_vector<float>();
  }
  models::KvCache filled() const {
    models::KvCache cache(models::kv_cache_shape(config), 1, 2 * kContext);
    read(cache, ids(kContext));
    return cache;
  }

  void check() const {
    const autograd::NoGrad no_grad;
    models::KvCache cache(models::kv_cache_shape(config), 1, 64);
    std::vector<std::int32_t> tokens;
    std::vector<float> last;
    for (std::int32_t i = 0; i < 20; ++i) {
      tokens.push_back(53 * i % 2048);
      last = read(cache, Tensor::from(std::vector<std::int32_t>{tokens.back()}, {1, 1}));
    }
    const Tensor whole = (*model)(Tensor::from(tokens, {1, 20}));
    const std::vector<float> expected = whole.view({20, config.vocab_size}).rows(19, 1).to_vector<float>();
    for (std::size_t i = 0; i < last.size(); ++i) {
      require(std::abs(last[i] - expected[i]) < 1e-4F, "logit {} is {} with a cache, {} without", i, last[i],
              expected[i]);
    }
  }

  // What a token reads: every weight but the embedding's other rows.
  double weight_bytes() const {
    return 4.0 * static_cast<double>(model->parameter_count() - config.vocab_size * config.hidden_size);
  }
  static double matrix_elems(const models::DecoderConfig& c) {
    const double attention =
        static_cast<double>(c.hidden_size * c.head_dim * (2 * c.num_attention_heads + 2 * c.num_key_value_heads));
    const double mlp = 3.0 * static_cast<double>(c.hidden_size * c.intermediate_size);
    return static_cast<double>(c.num_hidden_layers) * (attention + mlp);
  }

  RankContext context{0, 1};
  RankScope scope{context};
  models::DecoderConfig config = decoder();
  std::shared_ptr<nn::Module> model = models::build_decoder(config);
};

void decode(benchmark::State& state, int threads) {
  constexpr int kTokensOfARound = 16;
  const Decoder decoder(threads);
  decoder.check();
  models::KvCache cache = decoder.filled();
  const Tensor token = decoder.ids(1);
  double limit = 0, best = 1e300;
  for (auto _ : state) {
    state.PauseTiming();
    limit = std::max(limit, triad_bytes_per_second(threads, kTriadBytes));
    state.ResumeTiming();
    for (int i = 0; i < kTokensOfARound; ++i) {
      cache.truncate(0, kContext);
      const double begin = work_seconds(threads);
      decoder.read(cache, token);
      best = std::min(best, work_seconds(threads) - begin);
    }
  }
  const models::KvCacheShape shape = models::kv_cache_shape(decoder.config);
  const double cache_bytes = 8.0 * static_cast<double>(shape.layers * shape.kv_heads * shape.head_dim * (kContext + 1));
  state.counters["tokens/s"] = 1 / best;
  state.counters["GB/s"] = 1e-9 * (decoder.weight_bytes() + cache_bytes) / best;
  state.counters["%stream"] = 100 * (decoder.weight_bytes() + cache_bytes) / best / limit;
}

void train(const Decoder& decoder, const Tensor& tokens) {
  autograd::backward(nn::functional::cross_entropy((*decoder.model)(tokens), tokens));
  for (const Tensor& parameter : decoder.model->parameters()) parameter.set_grad({});
}

void prefill(benchmark::State& state, int threads) {
  const Decoder decoder(threads);
  decoder.check();
  const Tensor tokens = decoder.ids(kContext);
  const double matrices = Decoder::matrix_elems(decoder.config);
  const auto head = static_cast<double>(decoder.config.vocab_size * decoder.config.hidden_size);
  for (const Tensor& parameter : decoder.model->parameters()) parameter.set_requires_grad(true);
  PeakShare reading(DType::kF32, threads), training(DType::kF32, threads);
  train(decoder, tokens);
  for (auto _ : state) {
    models::KvCache cache(models::kv_cache_shape(decoder.config), 1, kContext);
    reading.time([&] { decoder.read(cache, tokens); });
    state.PauseTiming();
    training.time([&] { train(decoder, tokens); });
    state.ResumeTiming();
  }
  const double read = reading.percent(2.0 * kContext * matrices);
  const double trained = training.percent(6.0 * kContext * (matrices + head));
  state.counters["%peak"] = read;
  state.counters["training_%peak"] = trained;
  state.counters["%training"] = 100 * read / trained;
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  using namespace loom::bench;
  for (const int threads : thread_counts()) {
    const std::string suffix = "/threads" + std::to_string(threads);
    benchmark::RegisterBenchmark(("generation/decode/B1/context512" + suffix).c_str(),
                                 [=](benchmark::State& state) { decode(state, threads); })
        ->Unit(benchmark::kMillisecond)
        ->Iterations(24);
    benchmark::RegisterBenchmark(("generation/prefill/512" + suffix).c_str(),
                                 [=](benchmark::State& state) { prefill(state, threads); })
        ->Unit(benchmark::kMillisecond)
        ->Iterations(9);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
