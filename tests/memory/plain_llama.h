// PlainLlama: the Llama whose steps the MX rows measured; torchtitan's block, which differs from this engine's own
// decoder.
//
// Block     RMSNorm in one kernel; RoPE as a product of complex fp32 numbers (q and k are cast to fp32 and back);
//           key/value heads repeated to full size; flash attention on the repeated heads; SiLU and product apart.
// Compiled  the block as torch.compile leaves it: SwiGLU one kernel that keeps gate and up, RoPE one kernel.
// Call      model(input_ids [B,S]) -> logits [B,S,V]. Children: tok_embeddings, layers.N, norm, output.
// Tables    complex64 [2 S, D/2], made once: as Llama's own code does for twice the sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/nn/module.h"

namespace loom::test {

struct PlainLlamaConfig {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t intermediate = 0;
  std::int64_t vocab = 0;
  std::int64_t seq = 0;
  bool compiled = false;
};

// On the meta device; the tables are made at the first forward.
std::shared_ptr<nn::Module> make_plain_llama(const PlainLlamaConfig& config);

}  // namespace loom::test
