#include "engine/job/rows.h"

namespace loom::job {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 40;

Texts normalizations() { return {"LayerNorm", "RMSNorm"}; }
// Megatron's; a model from flags has the first or the second.
Texts position_embeddings() { return {"learned_absolute", "rope", "mrope", "yarn", "none", "relative", "alibi"}; }
Texts scalings() { return {"llama3", "yarn", "longrope"}; }

template <auto kMember>
Key size(std::string_view flags, std::string_view about) {
  return whole<&Job::model, &Model::shape, kMember>(flags, 1, about).up_to(kMost);
}
template <auto kMember>
Key number(std::string_view flags, Range range, std::string_view about) {
  return real<&Job::model, &Model::shape, kMember>(flags, range, about);
}
template <auto kMember>
Key on(std::string_view flags, std::string_view about) {
  return toggle<&Job::model, &Model::shape, kMember>(flags, about);
}
template <auto kMember>
Key word(std::string_view flags, std::string_view type, std::string_view about) {
  return text<&Job::model, &Model::shape, kMember>(flags, type, about);
}

}  // namespace

void add_shape_keys(std::vector<Key>& table) {
  using S = models::ShapeOptions;
  const std::size_t before = table.size();
  add_under(
      "Model from Megatron's flags",
      {
          size<&S::num_layers>("--num-layers", "Layers. These flags make the model if there is no configuration"),
          size<&S::hidden_size>("--hidden-size", "Size of the hidden states"),
          size<&S::ffn_hidden_size>("--ffn-hidden-size", "Inner size of the MLP")
              .from("4 * hidden size; 8/3 in multiples of 64 with --swiglu"),
          size<&S::num_attention_heads>("--num-attention-heads", "Heads of queries"),
          on<&S::group_query_attention>("--group-query-attention", "Accepted; --num-query-groups says it"),
          size<&S::num_query_groups>("--num-query-groups", "Heads of keys and values").from("--num-attention-heads"),
          size<&S::kv_channels>("--kv-channels", "Size of a head").from("hidden size / heads"),
          one_of<&Job::model, &Model::shape, &S::normalization>("--normalization", normalizations, "Norm of the layers")
              .from("LayerNorm"),
          number<&S::norm_epsilon>("--norm-epsilon", kAboveZero, "Epsilon of the norms").from("1e-5"),
          on<&S::swiglu>("--swiglu", "MLP with a gate and SiLU, in place of GELU"),
          on<&S::disable_bias_linear>("--disable-bias-linear", "Linear layers without biases"),
          on<&S::add_qkv_bias>("--add-qkv-bias", "Biases of queries, keys and values (Qwen2)"),
          on<&S::qk_layernorm>("--qk-layernorm", "Norm over each head of queries and keys (Qwen3)"),
          number<&S::attention_dropout>("--attention-dropout", kBelowOne, "Dropout of attention weights").from("0.1"),
          number<&S::hidden_dropout>("--hidden-dropout", kBelowOne, "Dropout of hidden states").from("0.1"),
          number<&S::init_method_std>("--init-method-std", kAboveZero, "Standard deviation of fresh weights")
              .from("0.02"),
          size<&S::vocab_size>("--vocab-size", "Tokens before padding").from("entries of --vocab-file"),
          size<&S::padded_vocab_size>("--padded-vocab-size", "Rows of the embedding").from("rounded up"),
          size<&S::make_vocab_size_divisible_by>("--make-vocab-size-divisible-by", "Multiple to pad the vocabulary to")
              .from("128"),
          word<&S::vocab_file>("--vocab-file", "FILE", "vocab.json whose entries count as the vocabulary"),
          one_of<&Job::model, &Model::shape, &S::position_embedding_type>("--position-embedding-type",
                                                                          position_embeddings, "Positions")
              .from("learned_absolute"),
          on<&S::use_rotary_position_embeddings>("--use-rotary-position-embeddings",
                                                 "The same as --position-embedding-type rope"),
          size<&S::max_position_embeddings>("--max-position-embeddings", "Longest sequence").from("--seq-length"),
          number<&S::rotary_base>("--rotary-base", kAboveZero, "Base of rotary frequencies").from("10000"),
          number<&S::rotary_seq_len_interpolation_factor>("--rotary-seq-len-interpolation-factor", kAboveZero,
                                                          "Divide rotary frequencies by it (linear scaling)"),
          on<&S::use_rope_scaling>("--use-rope-scaling", "Scale rotary frequencies as Llama 3.1 does"),
          one_of<&Job::model, &Model::shape, &S::rope_scaling_type>("--rope-scaling-type", scalings,
                                                                    "Scaling of rotary frequencies"),
          number<&S::rope_scaling_factor>("--rope-scaling-factor", kAboveZero, "Factor of the scaling").from("8"),
          size<&S::original_max_position_embeddings>(
              "--original-max-position-embeddings,--rope-scaling-original-max-position-embeddings",
              "Longest sequence before the scaling")
              .from("8192"),
          number<&S::low_freq_factor>("--low-freq-factor", kAboveZero, "llama3: low_freq_factor").from("1"),
          number<&S::high_freq_factor>("--high-freq-factor", kAboveZero, "llama3: high_freq_factor").from("4"),
          number<&S::beta_fast>("--beta-fast", kAboveZero, "yarn: beta_fast").from("32"),
          number<&S::beta_slow>("--beta-slow", kAboveZero, "yarn: beta_slow").from("1"),
          number<&S::rope_scaling_mscale>("--rope-scaling-mscale", kFromZero, "yarn: mscale").from("1"),
          number<&S::rope_scaling_mscale_all_dim>("--rope-scaling-mscale-all-dim", kFromZero, "yarn: mscale_all_dim")
              .from("0"),
          word<&S::short_factor>("--short-factor", "X,X,...", "longrope: short_factor"),
          word<&S::long_factor>("--long-factor", "X,X,...", "longrope: long_factor"),
          size<&S::num_experts>("--num-experts,--num-moe-experts", "Experts of each sparse layer (Qwen3-MoE)"),
          size<&S::moe_router_topk>("--moe-router-topk", "Experts that a token uses").from("2"),
          size<&S::moe_ffn_hidden_size>("--moe-ffn-hidden-size,--moe-intermediate-size", "Inner size of an expert")
              .from("--ffn-hidden-size"),
          word<&S::moe_layer_freq>("--moe-layer-freq", "N",
                                   "Every Nth layer has experts; or a list with 0 or 1 per layer, as [0]*1+[1]*23")
              .from("1"),
          size<&S::first_k_dense_replace>("--first-k-dense-replace", "The first N layers have no experts"),
          on<&S::moe_router_pre_softmax>("--moe-router-pre-softmax", "Softmax over all experts, not the chosen ones"),
          on<&S::norm_topk_prob>("--norm-topk-prob", "The routing weights of a token sum to 1"),
      },
      table);
  for (std::size_t i = before; i < table.size(); ++i) table[i] = table[i].of_the_programs_own_model();
}

}  // namespace loom::job
