#include "engine/job/rows.h"

namespace loom::job {

void add_execution_keys(std::vector<Key>& table) {
  add_under(
      "Sharding",
      {
          toggle<&Job::parallel, &Parallel::use_torch_fsdp2>("--use-torch-fsdp2",
                                                             "Shard with FSDP2; needs --fsdp2-config-path")
              .is_common()
              .saved(),
          text<&Job::parallel, &Parallel::fsdp2_config_path>("--fsdp2-config-path,--fsdp2-config", "FILE",
                                                             "fsdp2_config.yaml: a file, or a name in configs/fsdp2")
              .is_common()
              .by_content(),
          whole<&Job::parallel, &Parallel::expert_model_parallel_size>(
              "--expert-model-parallel-size", 1,
              "Ranks that share one set of experts; replaces expert_parallel_size of the file, whose moe_modules are model.layers.{*}.mlp.experts unless it says others")
              .from("that of the file"),
          choice<&Job::parallel, &Parallel::moe_token_dispatcher_type>(
              "--moe-token-dispatcher-type",
              "How tokens reach the experts of other ranks; replaces moe_token_dispatcher_type of the file")
              .from("that of the file"),
          toggle<&Job::parallel, &Parallel::moe_shared_expert_overlap>(
              "--moe-shared-expert-overlap",
              "The expert of every token runs beside the exchange of tokens; as moe_shared_expert_overlap of the file"),
          whole<&Job::parallel, &Parallel::tensor_model_parallel_size>(
              "--tensor-model-parallel-size", 1, "Ranks that share matrices; replaces tensor_parallel_size of the file")
              .from("that of the file"),
          toggle<&Job::parallel, &Parallel::sequence_parallel>(
              "--sequence-parallel",
              "Cut hidden states between blocks along the sequence; as sequence_parallel of the file"),
          toggle<&Job::parallel, &Parallel::use_ascend_mc2>(
              "--use-ascend-mc2",
              "Collectives of linear layers beside their products, in 4 slices; sets overlap_slices of the file"),
          toggle<&Job::parallel, &Parallel::use_ascend_coc>(
              "--use-ascend-coc", "The same in --coc-parallel-num slices; sets overlap_slices of the file"),
          whole<&Job::parallel, &Parallel::coc_parallel_num>("--coc-parallel-num", 1,
                                                             "Slices of --use-ascend-coc: 1, 2, 4 or 8"),
          whole<&Job::parallel, &Parallel::context_parallel_size>(
              "--context-parallel-size", 1,
              "Ranks that share a sequence; replaces ulysses_parallel_size and ring_attention_size of the file")
              .from("that of the file"),
          choice<&Job::parallel, &Parallel::context_parallel_algo>(
              "--context-parallel-algo",
              "Of --context-parallel-size: a ring (the default), exchanged heads, both, or gathered keys and values"),
          whole<&Job::parallel, &Parallel::ulysses_degree_in_cp>("--ulysses-degree-in-cp", 1,
                                                                 "Ranks of hybrid_cp_algo that exchange heads")
              .from("none"),
          whole<&Job::parallel, &Parallel::pipeline, &Pipeline::pipeline_model_parallel_size>(
              "--pipeline-model-parallel-size", 1,
              "Ranks of a pipeline, each with some of the layers; the file is about the ranks of one stage"),
          text<&Job::parallel, &Parallel::pipeline, &Pipeline::pipeline_parallel_schedule>(
              "--pipeline-parallel-schedule", "NAME",
              "Order of a pipeline's work, by torch's names: 1F1B, GPipe; with several stages a rank Interleaved1F1B, InterleavedZeroBubble, LoopedBFS, ZBVZeroBubble, DualPipeV")
              .from("1F1B or Interleaved1F1B"),
          text<&Job::parallel, &Parallel::pipeline, &Pipeline::pipeline_parallel_schedule_csv>(
              "--pipeline-parallel-schedule-csv", "FILE",
              "An order of your own: a row for each rank, one action a cell")
              .by_content(),
          whole<&Job::parallel, &Parallel::pipeline, &Pipeline::num_virtual_stages_per_pipeline_rank>(
              "--num-virtual-stages-per-pipeline-rank", 1, "Stages of a rank of the pipeline")
              .from("1"),
          whole<&Job::parallel, &Parallel::pipeline, &Pipeline::num_layers_per_virtual_pipeline_stage>(
              "--num-layers-per-virtual-pipeline-stage", 1, "Layers of a stage, which say how many a rank has")
              .from("all of the rank's"),
          choice<&Job::parallel, &Parallel::pipeline, &Pipeline::pipeline_split>(
              "--pipeline-split",
              "Layers of the stages without the flags below: equal numbers, or auto: by planned steps"),
          text<&Job::parallel, &Parallel::pipeline, &Pipeline::num_layer_list>("--num-layer-list", "N,N,...",
                                                                               "Layers of each rank of the pipeline"),
          text<&Job::parallel, &Parallel::pipeline, &Pipeline::pipeline_model_parallel_layout>(
              "--pipeline-model-parallel-layout", "TEXT",
              "Stages in letters: E embedding, t layer, L loss, | next stage: Et|tt|tL"),
          whole<&Job::parallel, &Parallel::pipeline, &Pipeline::decoder_first_pipeline_num_layers>(
              "--decoder-first-pipeline-num-layers", 1, "Layers of the first rank of the pipeline")
              .from("equal parts"),
          whole<&Job::parallel, &Parallel::pipeline, &Pipeline::decoder_last_pipeline_num_layers>(
              "--decoder-last-pipeline-num-layers", 1, "Layers of the last rank of the pipeline")
              .from("equal parts"),
          choice<&Job::parallel, &Parallel::gather_layout>(
              "--gather-layout",
              "direct: gathers write into the parameters; buffered: into a buffer that is copied out, with PyTorch's bytes. Same bits")
              .from("that of --kernels: direct with fast, buffered with pytorch"),
          toggle<&Job::parallel, &Parallel::bf16>("--bf16", "Check that the file has param_dtype: bf16").saved(),
      },
      table);
  add_under("Schedule",
            {
                toggle<&Job::report, &Report::print_schedule>(
                    "--print-schedule", "Print the events of the second step by stream, and wasted prefetches"),
            },
            table);
  add_under(
      "Execution",
      {
          one_of<&Job::launch, &Launch::distributed_backend>(
              "--distributed-backend",
              [] {
                return Texts{"nccl", "gloo", "npu:hccl,cpu:gloo"};
              },
              "Accepted for Megatron's scripts; has no effect"),
          whole<&Job::launch, &Launch::ranks>("--nproc-per-node,--local-worker-num", 1,
                                              "Ranks, as threads of this process")
              .is_common(),
          whole<&Job::launch, &Launch::compute_threads>("--compute-threads", 1, "Threads per rank")
              .from("cores / ranks")
              .of_this_rank(),
          choice<&Job::launch, &Launch::device_executor>(
              "--device-executor",
              "threaded: collectives and copies overlap with computation; inline: everything runs when it is issued. Same bits")
              .of_this_rank(),
          choice<&Job::kernels, &Kernels::set>("--kernels,--kernel-grain",
                                               "Fused kernels, or the composition of PyTorch eager")
              .saved(),
          toggle<&Job::kernels, &Kernels::fused, &nn::KernelOptions::fused_rmsnorm>(
              "--use-fused-rmsnorm", "Fused RMS norm; always on with --kernels fast")
              .saved(),
          toggle<&Job::kernels, &Kernels::fused, &nn::KernelOptions::fused_swiglu>(
              "--use-fused-swiglu", "Fused SwiGLU; always on with --kernels fast")
              .saved(),
          toggle<&Job::kernels, &Kernels::fused, &nn::KernelOptions::fused_rotary_pos_emb>(
              "--use-fused-rotary-pos-emb", "Fused rotary embedding; always on with --kernels fast")
              .saved(),
          toggle<&Job::kernels, &Kernels::fused, &nn::KernelOptions::flash_attn>(
              "--use-flash-attn", "Flash attention; always on with --kernels fast")
              .saved(),
          toggle<&Job::kernels, &Kernels::fused, &nn::KernelOptions::fused_cross_entropy>(
              "--cross-entropy-loss-fusion", "Fused cross-entropy; always on with --kernels fast")
              .saved(),
          texts<&Job::kernels, &Kernels::custom_op_libraries>(
              "--custom-op-library", "FILE",
              "Shared libraries of operators of your own, separated by commas; programs of pretrain() call them")
              .by_content(),
          choice<&Job::objective, &Objective::loss_reduction>(
              "--loss-reduction",
              "The loss of a step is the mean over its scored tokens, over its micro-batches' means, or over its samples' means")
              .saved(),
          whole<&Job::objective, &Objective::loss_chunk_size>(
              "--loss-chunk-size", 0,
              "Compute logits and loss for N tokens of each sequence at a time, without storing the logits; 0 = all at once")
              .saved(),
          whole<&Job::objective, &Objective::total_chunk_size>(
              "--total-chunk-size", 0,
              "As --loss-chunk-size, for N tokens of a micro-batch: N / sequences, rounded down to a power of two"),
          toggle<&Job::objective, &Objective::loss_in_model>(
              "--loss-in-model",
              "The model's forward returns the loss, as transformers' does with labels: FSDP's root is gathered before its backward")
              .not_in_users_programs(),
          whole<&Job::launch, &Launch::distributed_timeout_minutes>("--distributed-timeout-minutes", 1,
                                                                    "How long a rank waits for its peers")
              .of_this_rank(),
          whole<&Job::data, &Data::seed>("--seed", 0, "Seed of weights and data order").saved(),
      },
      table);
}

}  // namespace loom::job
