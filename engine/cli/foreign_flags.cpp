#include "engine/cli/foreign_flags.h"

#include "engine/core/error.h"

namespace loom::cli {
namespace {

constexpr std::string_view kAny = "*";

struct ForeignFlag {
  std::string_view name;
  int values;                 // 0 or 1
  std::string_view accepted;  // the value that changes nothing; kAny; empty: always refused
  std::string_view advice;    // why not, and what to write
};

constexpr ForeignFlag kForeignFlags[] = {
    {"--bf16", 0, "",
     "does not go with FSDP2, whose parameters stay fp32 so that the optimizer can resume; write param_dtype: bf16 in "
     "the file of --fsdp2-config-path"},
    {"--fp16", 0, "",
     "does not go with FSDP2, which has no loss scaler; write param_dtype: bf16 in the file of --fsdp2-config-path"},
    {"--use-distributed-optimizer", 0, "",
     "does not go with FSDP2, which shards the optimizer state with the parameters; remove it"},
    {"--gradient-accumulation-fusion", 0, "",
     "does not go with FSDP2, which reduces the gradients itself; remove it or write "
     "--no-gradient-accumulation-fusion"},
    {"--no-gradient-accumulation-fusion", 0, kAny, ""},
    {"--pipeline-model-parallel-size", 1, "1",
     "FSDP2 does not go with pipeline stages; write 1, and let sharding_size in the file of --fsdp2-config-path split "
     "the model"},
    {"--expert-model-parallel-size", 1, "1",
     "FSDP2 does not go with Megatron's expert parallelism; write 1: experts are sharded like all parameters"},
    {"--tensor-model-parallel-size", 1, "1",
     "tensor parallelism is not built; write 1, and let sharding_size in the file of --fsdp2-config-path split the "
     "weights"},
    {"--context-parallel-size", 1, "1", "context parallelism is not built; write 1"},
    {"--sequence-parallel", 0, "", "goes with tensor parallelism, which is not built; remove it"},
    {"--nnodes", 1, "1",
     "ranks on several machines are started by an MPI launcher; write mpirun -n RANKS before the program, without "
     "--nnodes and --nproc-per-node"},
    {"--node-rank", 1, "0",
     "ranks on several machines are started by an MPI launcher; write mpirun -n RANKS before the program, without "
     "--nnodes and --nproc-per-node"},
    {"--master-addr", 1, kAny, ""},  // threads of a process need no meeting point, and MPI has its own
    {"--master-port", 1, kAny, ""},
    {"--join", 1, kAny, ""},  // the program always waits for its ranks
    {"--cluster-time-out", 1, "", "is not a flag here; write --distributed-timeout-minutes N"},
    {"--log-dir", 1, "", "is not a flag here: the ranks of a process share its output; remove it and redirect that"},
    {"--bind-core", 1, "", "is not built; remove it, or start the program under taskset or numactl"},
};

void take(const ForeignFlag& flag, const std::string& value) {
  if (flag.accepted == kAny || (flag.values == 1 && value == flag.accepted)) return;
  if (flag.accepted.empty()) config_error("{} {}", flag.name, flag.advice);
  config_error("{} is {}; {}", flag.name, value, flag.advice);
}

}  // namespace

void add_foreign_flags(Flags& flags, ForeignFlags& given) {
  for (const ForeignFlag& flag : kForeignFlags) {
    flags.noted(std::string(flag.name), flag.values, [&flag](const std::string& value) { take(flag, value); });
  }
  for (const char* name : {"--recompute-granularity", "--recompute-method", "--recompute-num-layers"}) {
    flags.noted(name, 1, [&given, name](const std::string&) { given.recompute.emplace_back(name); });
  }
  flags.noted("--recompute-activations", 0,
              [&given](const std::string&) { given.recompute.emplace_back("--recompute-activations"); });
  flags.noted("--load", 1, [&given](const std::string& value) { given.load = value; });
  flags.noted("--worker-num", 1, [&given](const std::string& value) { given.worker_num = value; });
}

}  // namespace loom::cli
