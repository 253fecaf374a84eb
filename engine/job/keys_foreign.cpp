#include "engine/job/foreign.h"
#include "engine/job/rows.h"

namespace loom::job {

void add_foreign_keys(std::vector<Key>& table) {
  const std::initializer_list<Key> rows = {
      // Taken in silence, or refused.
      refused(
          "--gradient-accumulation-fusion", Kind::kToggle,
          "does not go with FSDP2, which reduces the gradients itself; remove it or write --no-gradient-accumulation-fusion"),
      taken("--no-gradient-accumulation-fusion", Kind::kToggle),
      refused(
          "--coc-fused-kernel", Kind::kToggle,
          "is a kernel of one product and its collective, which is not built; remove it, and write --coc-parallel-num 2, 4 or 8"),
      only("--coc-mode", "-1", "forms of --use-ascend-coc are not built apart; write -1, or remove it"),
      taken("--enable-recompute-layers-per-pp-rank", Kind::kToggle),  // with stages, --recompute-num-layers is refused
      refused(
          "--recompute-in-bubble", Kind::kToggle,
          "recomputes while a pipeline stage waits, which is not built; remove it: the flags of --recompute-granularity recompute in backward"),
      refused(
          "--recompute-in-advance", Kind::kToggle,
          "recomputes before a pipeline stage's backward, which is not built; remove it: the flags of --recompute-granularity recompute in backward"),
      refused(
          "--moe-adaptive-recompute-activation", Kind::kToggle,
          "chooses in each step by how many tokens an expert got, so that ranks would do different work; write --moe-layer-recompute, which always recomputes"),
      refused("--moe-adaptive-recompute-activation-scale", Kind::kText,
              "is of --moe-adaptive-recompute-activation, which is not built; remove it"),
      only("--nnodes", "1", "a launcher has started this process, and says it; remove it"),
      only("--node-rank", "0", "it is for several hosts; write --nnodes beside it, or remove it"),
      taken("--master-addr", Kind::kText),  // threads of a process need no meeting point
      taken("--master-port", Kind::kText),
      taken("--join", Kind::kText),  // the program always waits for its ranks
      without_effect("--cluster-time-out", Kind::kText),
      without_effect("--log-dir", Kind::kText),  // the ranks of a process share its output
      refused("--fp8-format", Kind::kText,
              "multiplies in FP8, which is planned and not computed; plan with --fp8-recipe tensorwise, or remove it"),
      refused("--fp8-recipe", Kind::kText,
              "multiplies in FP8, which is planned and not computed; give it to plan, or remove it")
          .not_in_plan(),
      refused("--fp8-param-gather", Kind::kToggle,
              "gathers in FP8, which is planned and not computed; give it to plan, or remove it")
          .not_in_plan(),
      refused("--rampup-batch-size", Kind::kText, "is not built; write one --global-batch-size"),
      only(
          "--tokenizer-type", "PretrainedFromHF|HuggingFaceTokenizer|NullTokenizer",
          "only tokenizers of Hugging Face's are read; write PretrainedFromHF, and --tokenizer-name-or-path DIR with a tokenizer.json"),
      only("--timing-log-level", "0",
           "timers of a step's parts are not built; write 0, and use --profile to see the parts"),
      refused("--wandb-project", Kind::kText,
              "names a project of Weights & Biases, which is not built; write --tensorboard-dir DIR"),
      refused("--wandb-exp-name", Kind::kText,
              "names a run of Weights & Biases, which is not built; write --tensorboard-dir DIR"),
      without_effect("--overlap-grad-reduce", Kind::kToggle),  // FSDP2 overlaps the reduction by itself
      refused(
          "--virtual-optimizer", Kind::kTexts,
          "maps moments in host memory into the device, which is not built; write --optimizer adamw_swap, which copies them"),
      without_effect("--overlap-param-gather", Kind::kToggle),  // FSDP2 gathers ahead by itself
      taken("--worker-num", Kind::kText),                       // ranks of the job, held against those that run
      taken("--use-distributed-optimizer", Kind::kToggle),      // needed by --swap-optimizer, else refused

      // Taken and named in one line, or refused: what they describe is always so here,
      // or belongs to what is not there (loader processes).
      without_effect("--num-workers", Kind::kText),
      without_effect("--adaptive-recompute-profiling-step", Kind::kText),  // costs come from plans
      without_effect("--use-mcore-models", Kind::kToggle),
      without_effect("--transformer-impl", Kind::kText),
      without_effect("--prompt-type", Kind::kText),  // of training data it was read when that was made
      without_effect("--prompt-type-path", Kind::kText),
      only("--refer-model-iter", "1", "the reference model is a folder's; write 1, and --ref-model DIR").named(),
      without_effect("--tokenizer-not-use-fast", Kind::kToggle),
      only("--tokenizer-padding-side", "right", "padding stands behind samples; write right").named(),
      refused("--full-shuffle-instruction-dataset", Kind::kToggle,
              "is a shuffle by Python's own generator, which is not built; remove it: each epoch is shuffled"),
      without_effect("--attention-softmax-in-fp32", Kind::kToggle),
      without_effect("--no-masked-softmax-fusion", Kind::kToggle),
      without_effect("--no-bias-gelu-fusion", Kind::kToggle),
      without_effect("--no-bias-swiglu-fusion", Kind::kToggle),
      without_effect("--no-bias-dropout-fusion", Kind::kToggle),
      without_effect("--lora-fusion", Kind::kToggle),       // hides communication of tensor parallelism
      without_effect("--lora-ckpt-filter", Kind::kToggle),  // checkpoints of adapters have nothing else
      without_effect("--lora-register-forward-hook", Kind::kTexts),
      without_effect("--handler-name", Kind::kText),  // of training data it was read when that was made
      without_effect("--enable-hf2mg-convert", Kind::kToggle),
      without_effect("--model-type-hf", Kind::kText),
      without_effect("--spec", Kind::kTexts),
      without_effect("--no-shared-storage", Kind::kToggle),
      without_effect("--optimizer-selection", Kind::kText),
      without_effect("--use-cpu-initialization", Kind::kToggle),
      without_effect("--use-cp-send-recv-overlap", Kind::kToggle),
      without_effect("--kv-head-repeat-before-uly-alltoall", Kind::kToggle),  // always done where it is needed
      without_effect("--attention-mask-type", Kind::kText),
      without_effect("--moe-permute-fusion", Kind::kToggle),
      without_effect("--moe-grouped-gemm", Kind::kToggle),
      without_effect("--ai-framework", Kind::kText),
      only("--moe-router-score-function", "softmax", "other scores are not built; write softmax"),
      only("--rotary-percent", "1|1.0|1.", "rotary positions of a part of each head are not built; write 1"),
      only("--partial-rotary-factor", "0|0.0|1|1.0", "rotary positions of a part of each head are not built; write 1"),
      refused("--squared-relu", Kind::kToggle, "is not built; write --swiglu, or nothing for GELU"),
      refused("--quick-geglu", Kind::kToggle, "is not built; write --swiglu, or nothing for GELU"),
      refused("--openai-gelu", Kind::kToggle, "is not built; write nothing for GELU's tanh form, GPT-2's"),
      refused("--multi-latent-attention", Kind::kToggle, "is not built; no family has it"),
      refused("--moe-shared-expert-intermediate-size", Kind::kText,
              "has no family among those from flags; write --model-config FILE of a Qwen2-MoE"),
      refused("--shared-expert-gate", Kind::kToggle,
              "has no family among those from flags; write --model-config FILE of a Qwen2-MoE"),
      refused("--mtp-num-layers", Kind::kText, "is not built; remove it"),
      refused("--window-size", Kind::kTexts, "is not built; remove it: attention covers the whole sequence"),
      refused("--qlora", Kind::kToggle, "stores the base in 4 bits, which is not built; remove it"),
      without_effect("--merge-file", Kind::kText),
  };
  table.insert(table.end(), rows);
}

}  // namespace loom::job
