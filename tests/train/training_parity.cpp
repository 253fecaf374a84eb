// training_parity DIR [--mesh pp=P,dp_replicate=M,dp_shard=N,ring=R,ulysses=U,tp=T,sp=1,ep=E]
//
// The same curves as PyTorch FSDP2.
//
// Every folder below DIR with a curve.json is a case: the Hugging Face model is loaded, its decoder layers, embedding
// and head (GPT-2: its blocks) and the root are wrapped by fully_shard over the case's mesh, and trained on the case's
// tokens. Losses, gradient norms, the first step's gradients and the last weights must agree within the contract of
// tests/reference/README.md; in 16-bit cases the dtype and bytes of every gather and reduction are checked too. A case
// with batches.safetensors has images: its vision tower is frozen and ignored, targets that are image tokens are not
// scored, and the first step's logits of rank 0 are compared as well. Each case runs in both grains, in fp32 also with
// CPU offload. Ranks are threads; under mpirun, processes, and the cases are those of that many ranks.
//
// With pp in --mesh the trainer runs the case, in 1F1B with a micro-batch for each row: cases in fp32, whose decoder
// has as many layers at least.
//
// --mesh runs every case over that mesh instead of its own: the curve of a global batch does not depend on the ranks,
// so the same tolerances hold. A case is skipped where its batch or its integer reshard_after_forward does not divide
// by the mesh. Bytes follow from the mesh: N ranks of dp_shard keep ceil(rows / N) of each parameter, a gather takes
// that from each, a reduction N times that, and is followed by an all-reduce where dp_replicate > 1; N = 1 gathers
// nothing. With ring or ulysses, ranks share sequences; with ep, that many of all ranks share the experts. Rank 0 has
// the first rows of the batch: its logits are compared as far as the reference's rank 0 has the same rows.
//
// A case with a `base` takes model and tokens from that folder of the reference. Its `mesh` may cut experts over ep and
// shard them over efsdp, on dim expert_shard_dim and with expert_gradient_divide_factor; everything else is sharded
// over all ranks. The placements of rank 0 must be those of the case. Or it lets cp ranks share sequences, with an
// algorithm: their tokens, and the collectives of a layer by number and bytes, must be those of the case.
//
// Near ties: routers choose experts by scores that rounding moves, and AdamW's first step multiplies the rounding of a
// gradient near its eps; where two scores are nearly equal, two right engines may choose differently, and part by
// 1e-4 from there on. A grain that leaves a curve is therefore run again with the choices of the first grain where both
// chose by scores within 1e-4 of each other, relative; then the same tolerances hold. Its line says how many tokens
// these were, and their widest gap. Under mpirun there is no second run.
//
// A case with dcp/step_N, a checkpoint that PyTorch wrote after step N, is also taken up from there, and from the
// checkpoint that its own run makes after step N: at 1, 2, 3 and 4 ranks the steps from N + 1 on have to be those of
// the curve, and from the own one at as many ranks those of the own run bit for bit. Where the batch does not divide by
// the ranks, each of them takes the whole batch.
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstring>

#include "engine/checkpoint/loader.h"
#include "engine/checkpoint/saver.h"
#include "engine/core/error.h"
#include "engine/data/byte_batches.h"
#include "engine/data/split_sequences.h"
#include "engine/data/token_batches.h"
#include "engine/device/device.h"
#include "engine/device/recorder.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/functional.h"
#include "engine/nn/optim/adamw.h"
#include "engine/nn/router_loss.h"
#include "engine/nn/state_dict.h"
#include "engine/nn/stored_dtype.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"
#include "engine/train/parallel_dims.h"
#include "models/decoder/decoder.h"
#include "models/hf/hf_folder.h"
#include "models/internvl/internvl.h"
#include "offload/host_allocator.h"
#include "sharding/context/share_sequences.h"
#include "sharding/expert/expert_module.h"
#include "sharding/expert/share_experts.h"
#include "sharding/full_parameters.h"
#include "sharding/fully_shard.h"
#include "sharding/tensor/share_matrices.h"
#include "sharding/tensor/tensor_plan.h"
#include "tests/support/case_json.h"
#include "tests/support/issued.h"
#include "tests/support/parity_report.h"
#include "tests/train/context_case.h"
#include "tests/train/staged_run.h"
#include "tests/train/tensor_case.h"

namespace loom::training_parity {
namespace {

using test::CaseJson;

struct Grain {
  const char* name;
  nn::KernelOptions kernels;
  sharding::GatherLayout layout;
  std::optional<sharding::CpuOffloadPolicy> cpu_offload;
};
const Grain kGrains[] = {{"pytorch", nn::KernelOptions::pytorch(), sharding::GatherLayout::kBuffered, {}},
                         {"fast", nn::KernelOptions::fast(), sharding::GatherLayout::kFast, {}},
                         {"pytorch+offload", nn::KernelOptions::pytorch(), sharding::GatherLayout::kBuffered,
                          sharding::CpuOffloadPolicy{.pin_memory = true}}};

struct Tolerance {
  double loss;
  double grad_norm;
  double step1_grad_norm = 1e-3;
  double final_weight_norm = 1e-4;
};
constexpr Tolerance kFp32{5e-5, 2e-4};
constexpr Tolerance kBf16{2e-3, 1e-2};
constexpr double kLogits = 2e-5;

struct Case {
  std::filesystem::path folder;  // with the model and its tokens
  std::string name;
  CaseJson curve;
  train::ParallelDegrees degrees;    // that it is run with
  train::ParallelDegrees reference;  // that the reference was made with
  std::filesystem::path checkpoint;  // that the run begins with; none: the initial weights
  std::int64_t first_step = 0;
  std::filesystem::path save_to;  // a checkpoint after step `save_after`; none: nothing is saved
  std::int64_t save_after = 0;
  std::optional<int> reshard_ranks;  // an integer reshard_after_forward
  std::int64_t steps = 0;            // as long as the curve is
  int ep = 0;                        // ranks that share the experts; 0: experts are no group of their own
  int expert_shard_dim = 0;
  double expert_divide_factor = 1;
  test::ContextCase context;
  test::TensorCase tensor;
  bool shares_sequences = false;  // the model can
  bool shares_matrices = false;
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t experts = 0;  // of a layer
  std::int64_t layers = 0;
  int accum = 1;
  bool sixteen_bit = false;
  DType stored = DType::kF32;  // parameters, gradients and moments
  bool images = false;
  sharding::FullyShardOptions options;
  std::vector<std::string> freeze;
  nn::AdamWOptions adamw{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  double clip_grad = 1.0;
  Tolerance tolerance = kFp32;
  // Of each step, how far PyTorch's own curves are apart; none: not measured.
  std::vector<double> spread_of_loss, spread_of_grad_norm;

  int ranks() const { return degrees.pp * degrees.dp_replicate * degrees.dp_shard * degrees.cp * degrees.tp; }
  bool on_own_mesh() const {
    return degrees.dp_replicate == reference.dp_replicate && degrees.dp_shard == reference.dp_shard &&
           degrees.cp == reference.cp && degrees.tp == reference.tp && degrees.pp == reference.pp;
  }
  std::filesystem::path batches() const { return folder / (images ? "batches.safetensors" : "tokens.safetensors"); }
};

// What --mesh asks for.
struct Mesh {
  train::ParallelDegrees degrees;
  dist::ContextDegrees context;  // of the ranks of degrees.cp
  int ep = 1;                    // of all ranks
  int sp = 0;                    // 1: sequence parallelism on the ranks of degrees.tp
};

std::string in_words(const train::ParallelDegrees& degrees) {
  const comm::AxisSize axes[] = {{"pp", degrees.pp},
                                 {"dp_replicate", degrees.dp_replicate},
                                 {"dp_shard", degrees.dp_shard},
                                 {"cp", degrees.cp},
                                 {"tp", degrees.tp}};
  const std::size_t begin = degrees.pp > 1 ? 0 : 1, end = degrees.tp > 1 ? 5 : degrees.cp > 1 ? 4 : 3;
  return comm::equation(std::span(axes).subspan(begin, end - begin));
}

// Where a file says how large its batches are, its tokens are of that size.
void check_size(const Case& c, const CaseJson& scenario) {
  const io::SafetensorsFile file(c.batches());
  const Shape& shape = file.at("tokens").shape;
  const std::pair<const char*, std::int64_t> sizes[] = {{"gb", shape[1]}, {"seq", shape[2] - 1}};
  if (c.steps > shape[0]) config_error("its curve has {} steps, and its tokens {}", c.steps, shape[0]);
  for (const auto& [key, size] : sizes) {
    if (scenario.value(key, size) == size) continue;
    config_error("{} is {}, and {} has {}", key, scenario.at(key).dump(), c.batches().filename().string(), size);
  }
}

void read_optimizer(Case& c, const CaseJson& optimizer) {
  const std::string name = optimizer.value("name", std::string("AdamW"));
  if (name != "AdamW") config_error("its optimizer is {}; this program trains with AdamW", name);
  c.adamw.lr = optimizer.at("lr");
  c.adamw.beta1 = optimizer.at("betas").at(0);
  c.adamw.beta2 = optimizer.at("betas").at(1);
  c.adamw.eps = optimizer.at("eps");
  c.adamw.weight_decay = optimizer.value("weight_decay", c.adamw.weight_decay);
  c.clip_grad = optimizer.value("clip_grad", c.clip_grad);
}

void read_tolerance(Case& c, const CaseJson& tolerance) {
  c.tolerance.loss = tolerance.at("loss");
  c.tolerance.grad_norm = tolerance.at("grad_norm_relative");
  c.tolerance.step1_grad_norm = tolerance.value("step1_grad_norm_relative", c.tolerance.step1_grad_norm);
  c.tolerance.final_weight_norm = tolerance.value("final_weight_norm_relative", c.tolerance.final_weight_norm);
}

void read_spread(Case& c, const CaseJson& spread) {
  c.spread_of_loss = spread.at("loss").get<std::vector<double>>();
  c.spread_of_grad_norm = spread.at("grad_norm_relative").get<std::vector<double>>();
  const std::size_t steps = c.curve.at("curve").size();
  if (c.spread_of_loss.size() != steps || c.spread_of_grad_norm.size() != steps) {
    config_error("the spread has not one value for each of the {} steps", steps);
  }
}

void read_scenario(Case& c, const CaseJson& scenario) {
  const int world = c.curve.at("world");
  if (scenario.value("world", world) != world) config_error("world is {}, and another one in its scenario", world);
  const auto dtype = [&](const char* key) -> std::optional<DType> {
    if (!scenario.contains(key) || scenario.at(key).is_null()) return std::nullopt;
    return parse_dtype(scenario.at(key).get<std::string>());
  };
  c.reference.dp_replicate = scenario.value("replicate", 1);
  c.reference.cp = c.context.sequences.degrees.ranks();
  if (c.curve.contains("mesh")) c.reference.tp = c.curve.at("mesh").value("tp", 1);
  c.reference.dp_shard = world / c.reference.dp_replicate / c.reference.cp / c.reference.tp;
  c.degrees = c.reference;
  c.accum = scenario.value("accum", 1);
  c.steps = static_cast<std::int64_t>(c.curve.at("curve").size());
  if (scenario.value("steps", c.steps) != c.steps) {
    config_error("steps is {}, and its curve has {}", scenario.at("steps").dump(), c.steps);
  }
  c.freeze = scenario.value("freeze", std::vector<std::string>{});
  c.options.policy = {dtype("param"), dtype("reduce"), dtype("output"), true};
  c.options.reshard_after_forward = true;
  if (scenario.contains("reshard") && scenario.at("reshard").is_boolean()) {
    c.options.reshard_after_forward = scenario.at("reshard").get<bool>();
  } else if (scenario.contains("reshard")) {
    c.reshard_ranks = scenario.at("reshard").get<int>();
    c.options.reshard_after_forward = *c.reshard_ranks;
  }
  const int save_at = scenario.value("save_at", 0);
  if (save_at > 0 && !std::filesystem::exists(c.folder / "dcp" / fmt::format("step_{}", save_at))) {
    config_error("save_at is {}, and there is no dcp/step_{}", save_at, save_at);
  }
  c.stored = dtype("stored").value_or(DType::kF32);
  c.sixteen_bit = c.options.policy.param_dtype.value_or(DType::kF32) != DType::kF32;
}

// Why the mesh of a case with axes cannot be run, or nothing.
std::optional<std::string> read_axes(Case& c, const CaseJson& mesh, const std::filesystem::path& case_folder) {
  if (mesh.value("tp", 1) > 1) {
    c.tensor = test::read_tensor(c.curve);
    if (mesh.at("dp_shard").get<int>() * mesh.at("tp").get<int>() == c.curve.at("world").get<int>())
      return std::nullopt;
    config_error("its axes dp_shard and tp are not those of {} ranks", c.curve.at("world").dump());
  }
  if (mesh.value("cp", 1) > 1) {
    c.context = test::read_context(case_folder, c.curve);
    return std::nullopt;
  }
  if (!mesh.contains("ep")) return "its mesh has no axis that this program knows";
  c.ep = mesh.at("ep");
  const int efsdp = mesh.at("efsdp"), world = c.curve.at("world");
  if (mesh.at("dp_shard").get<int>() != world || c.ep * efsdp != world) {
    config_error("its axes dp_shard {}, ep {} and efsdp {} are not those of {} ranks", mesh.at("dp_shard").dump(), c.ep,
                 efsdp, world);
  }
  c.expert_shard_dim = c.curve.at("expert_shard_dim");
  c.expert_divide_factor = c.curve.at("expert_gradient_divide_factor");
  return std::nullopt;
}

void read_file(Case& c) {
  const CaseJson scenario = c.curve.contains("scenario") ? c.curve.at("scenario") : CaseJson();
  read_scenario(c, scenario);
  check_size(c, scenario);
  if (c.curve.contains("optimizer")) read_optimizer(c, c.curve.at("optimizer"));
  c.tolerance = c.sixteen_bit ? kBf16 : kFp32;
  if (c.curve.contains("tolerance")) read_tolerance(c, c.curve.at("tolerance"));
  if (c.curve.contains("spread")) read_spread(c, c.curve.at("spread"));
  test::check_steps(c.curve.at("curve"));
}

// What of the file is not for this program: the model's name, which its config.json has too; the same run in one
// process. 16-bit gradients and weights are not compared one by one.
std::string unread(const Case& c) {
  test::Commentary commentary{"model", "unsharded_curve", "order"};
  if (c.sixteen_bit) commentary.insert(commentary.end(), {"step1_grad_norm_by_param", "final_weight_norm_by_param"});
  return c.curve.unread(std::move(commentary));
}

// Puts the case on another mesh; why it cannot run there, or nothing. Another number of ranks sums the gradients of
// other rows in bf16: PyTorch itself is then up to 1.8 % off (docs/operators.md).
std::optional<std::string> put_on(Case& c, const Mesh& mesh) {
  if (c.ep > 0 || c.context.is_shared() || c.reference.tp > 1)
    return "it has a mesh of its own, and --mesh is another one";
  const train::ParallelDegrees& degrees = mesh.degrees;
  const bool plain = mesh.ep == 1 && degrees.cp == 1 && degrees.tp == 1;
  if (c.sixteen_bit && (!plain || degrees.dp_replicate * degrees.dp_shard != c.ranks())) {
    return fmt::format("it is in bf16 and of {} ranks: another number of them rounds other sums", c.ranks());
  }
  if (degrees.pp > 1) {
    if (c.images) return "it has images, and stages are cut of decoders";
    if (c.sixteen_bit || c.stored != DType::kF32) return "it is not in fp32";
    if (!c.freeze.empty()) return "it has frozen modules";
    if (c.layers < degrees.pp) return fmt::format("it has {} layers, and pp is {}", c.layers, degrees.pp);
  }
  if (degrees.tp > 1 && !c.shares_matrices) return "its model has no plan of tensor parallelism";
  if (degrees.tp > 1 && c.heads % degrees.tp != 0)
    return fmt::format("it has {} heads, and tp is {}", c.heads, degrees.tp);
  if (degrees.cp > 1 && c.images) return "it has images, and ranks share rows of tokens alone";
  if (degrees.cp > 1 && !c.shares_sequences) return "its model cannot work on part of a sequence";
  if (mesh.ep > 1 && (c.experts == 0 || c.experts % mesh.ep != 0)) {
    return fmt::format("it has {} experts, and ep is {}", c.experts, mesh.ep);
  }
  c.degrees = degrees;
  c.context.sequences.degrees = mesh.context;
  c.tensor.sequence_parallel = mesh.sp == 1;
  if (mesh.ep > 1) {
    c.ep = mesh.ep;
    c.expert_divide_factor = c.ranks() / degrees.tp;
  }
  const io::SafetensorsFile file(c.batches());
  const std::int64_t batch = file.at("tokens").shape[1];
  const int parts = degrees.dp_replicate * degrees.dp_shard;
  if (batch % (parts * c.accum) != 0) {
    return fmt::format("its batch of {} does not divide by {} ranks of {} micro-batches each", batch, parts, c.accum);
  }
  if (c.reshard_ranks && degrees.dp_shard % *c.reshard_ranks != 0) {
    return fmt::format("its reshard_after_forward {} does not divide dp_shard {}", *c.reshard_ranks, degrees.dp_shard);
  }
  return std::nullopt;
}

// Of modules whose experts have ranks of their own.
std::vector<std::string> expert_paths(nn::Module& model, const Case& c) {
  std::vector<std::string> paths;
  for (auto& [path, module] : model.named_modules()) {
    if (c.ep > 0 && dynamic_cast<sharding::ExpertModule*>(module) != nullptr) paths.push_back(path);
  }
  return paths;
}

// Experts that ranks share, each a group over axes of its own, as the case says.
void wrap_experts(nn::Module& model, const Case& c, const sharding::FullyShardOptions& options) {
  for (auto& [path, module] : model.named_modules()) {
    if (dynamic_cast<sharding::ExpertModule*>(module) == nullptr) continue;
    sharding::share_experts(model, {path}, *options.expert_axes->parts);
    sharding::FullyShardOptions experts = options;
    experts.axes = *options.expert_axes;
    experts.shard_dim = [dim = c.expert_shard_dim](const std::string&, const Shape&) { return dim; };
    sharding::fully_shard(*module, experts);
    sharding::set_gradient_divide_factor(*module, c.expert_divide_factor);
  }
}

void wrap(nn::Module& model, const sharding::FullyShardOptions& options) {
  for (const char* container : {"model.layers", "model.language_model.layers", "transformer.h"}) {
    nn::Module* layers = model.find(container);
    if (layers == nullptr) continue;
    for (auto& [index, layer] : layers->children()) sharding::fully_shard(*layer, options);
  }
  for (const char* embedding : {"model.embed_tokens", "model.language_model.embed_tokens"}) {
    if (model.find(embedding) == nullptr) continue;
    sharding::fully_shard(*model.find(embedding), options);
    sharding::fully_shard(*model.find("lm_head"), options);
  }
  sharding::fully_shard(model, options);
}

// The choices of the routers of one rank, by path and call; and what became of choices that were replayed.
struct Routes {
  std::map<std::string, std::vector<std::vector<std::int64_t>>> choices;
  std::int64_t near_ties = 0;
  double widest = 0;
};
using RoutesOfRanks = std::vector<Routes>;

// The routing of a gate that `given` chose, where it differs from `out` in near ties alone.
class Replay {
 public:
  Replay(const models::MoeConfig& moe, const nn::Value& out)
      : moe_(moe),
        experts_(out.list()[1].tensor().to_vector<std::int64_t>()),
        scores_(out.list()[2]),
        values_(scores_.to_vector<double>()),
        k_(static_cast<std::size_t>(moe.num_experts_per_tok)) {}

  nn::Value with(const std::vector<std::int64_t>& given, Routes& routes) {
    std::vector<std::int64_t> chosen = experts_;
    const std::int64_t before = routes.near_ties;
    for (std::size_t at = 0; at < chosen.size(); at += k_) {
      const double gap = gap_at(at, given);
      if (gap == 0 || gap > kNearTie) continue;
      std::copy_n(given.begin() + static_cast<std::ptrdiff_t>(at), k_,
                  chosen.begin() + static_cast<std::ptrdiff_t>(at));
      ++routes.near_ties;
      routes.widest = std::max(routes.widest, gap);
    }
    if (routes.near_ties == before) return {};
    const Shape shape{scores_.shape()[0], moe_.num_experts_per_tok};
    return std::vector<Tensor>{weights_of(chosen), Tensor::from(chosen, shape), scores_};
  }

 private:
  static constexpr double kNearTie = 1e-4;

  // How far the scores of a token's experts are apart where two runs chose other ones, relative; 0 for the same ones.
  double gap_at(std::size_t at, const std::vector<std::int64_t>& given) const {
    const std::span own(experts_.data() + at, k_), other(given.data() + at, k_);
    double most = 0, least = INFINITY;
    const auto score = [&](std::int64_t expert) {
      return values_[at / k_ * static_cast<std::size_t>(moe_.num_experts) + static_cast<std::size_t>(expert)];
    };
    for (const std::int64_t expert : own) {
      if (std::ranges::find(other, expert) == other.end()) most = std::max(most, score(expert));
    }
    for (const std::int64_t expert : other) {
      if (std::ranges::find(own, expert) == own.end()) least = std::min(least, score(expert));
    }
    return most == 0 ? 0 : std::max((most - least) / most, std::numeric_limits<double>::min());
  }

  Tensor weights_of(const std::vector<std::int64_t>& chosen) const {
    const std::int64_t tokens = scores_.shape()[0], experts = moe_.num_experts, k = moe_.num_experts_per_tok;
    std::vector<double> picked(chosen.size() * static_cast<std::size_t>(experts));
    for (std::size_t slot = 0; slot < chosen.size(); ++slot) {
      picked[slot * static_cast<std::size_t>(experts) + static_cast<std::size_t>(chosen[slot])] = 1;
    }
    const Tensor mask = Tensor::from(picked, {tokens, k, experts}, scores_.dtype());
    const Tensor weights = ops::sum(ops::mul(ops::reshape(scores_, {tokens, 1, experts}), mask), 2);
    return moe_.norm_topk_prob ? ops::div(weights, ops::sum(weights, 1, /*keep_dim=*/true)) : weights;
  }

  const models::MoeConfig& moe_;
  const std::vector<std::int64_t> experts_;
  const Tensor scores_;
  const std::vector<double> values_;
  const std::size_t k_;
};

// Notes what the routers of `model` choose; with `given`, they choose that in near ties.
void watch_routers(nn::Module& model, const models::MoeConfig& moe, Routes& routes, const Routes* given) {
  for (auto& [path, module] : model.named_modules()) {
    if (!path.ends_with(".mlp.gate")) continue;
    module->register_post_hook([&moe, &routes, given, path = path](nn::Module&, nn::Value out) {
      auto& calls = routes.choices[path];
      nn::Value replayed;
      if (given != nullptr) replayed = Replay(moe, out).with(given->choices.at(path).at(calls.size()), routes);
      calls.push_back(out.list()[1].tensor().to_vector<std::int64_t>());
      return replayed.is_none() ? out : replayed;
    });
  }
}

struct Results {
  std::vector<double> loss;
  std::vector<double> grad_norm;
  std::map<std::string, double> step1_grad_norm;
  std::map<std::string, double> final_weight_norm;
  std::map<std::string, std::vector<float>> buffers;  // persistent ones, at the end
  std::vector<float> step1_logits;                    // of rank 0; cases with images
  std::string wire_error;  // a gather or reduction of the wrong dtype or size; a wrong placement
};

// As DTensor prints where a parameter is: of its FSDP axis, then of the ranks with other parts.
std::vector<std::string> placements(const sharding::Param& param, const sharding::FsdpAxes& axes) {
  if (!axes.parts || axes.parts->size() == 1) return {fmt::format("S({})", param.shard_dim())};
  const std::string own =
      param.shard_dim() == 0 ? fmt::format("_S(0, {})", axes.parts->size()) : fmt::format("S({})", param.shard_dim());
  return {own, "S(0)"};
}

// Which placement differs from the case's, or nothing.
std::string check_placements(nn::Module& model, const CaseJson& expected, const Case& c) {
  std::map<std::string, std::vector<std::string>> actual;
  for (const sharding::FsdpState* state : sharding::FsdpState::collect(model)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) {
      std::vector<std::string>& found = actual[nn::join_path(state->path(), param->path())];
      found = c.reference.tp == 1 ? placements(*param, state->group()->axes())
                                  : test::tensor_placements(param->gathered_box(), param->shape(), param->shard_dim(),
                                                            c.reference.tp, c.tensor.sequence_parallel);
    }
  }
  for (const auto& [path, value] : expected.items()) {
    const std::vector<std::string> wanted = test::read_placements(value);
    if (actual[path] != wanted) {
      return fmt::format("placements of {} are {}, expected {}", path, fmt::join(actual[path], " "),
                         fmt::join(wanted, " "));
    }
  }
  return "";
}

// Rows of a parameter on each of `ranks`, padded.
std::int64_t shard_elems(const Shape& shape, int ranks) { return (shape[0] + ranks - 1) / ranks * shape.row_elems(); }

// Checks the marks of one step: every gather in the compute dtype, every reduction in the reduce dtype, with the bytes
// that follow from the mesh.
std::string check_wire(const device::Recording& recording, nn::Module& model, const train::ParallelDegrees& degrees) {
  std::map<std::string, std::vector<const sharding::Param*>> groups;
  for (const sharding::FsdpState* state : sharding::FsdpState::collect(model)) {
    for (const auto& param : state->group()->params()) groups[state->path()].push_back(param.get());
  }
  int gathers = 0;
  int reductions = 0;
  for (const test::Issued& entry : test::issued(recording)) {
    const bool gather = entry.is_mark() && entry.name == "AG";
    const bool reduction = entry.is_mark() && entry.name == (degrees.dp_replicate > 1 ? "RSAR" : "RS");
    if (!gather && !reduction) continue;
    (gather ? gathers : reductions) += 1;
    const sharding::FsdpState& root = *sharding::FsdpState::of(model);
    const sharding::MixedPrecisionPolicy& policy = root.options().policy;
    const DType dtype = gather ? *policy.param_dtype : policy.reduce_dtype.value_or(*policy.param_dtype);
    std::int64_t elems = 0;
    for (const sharding::Param* param : groups.at(entry.subject)) {
      if (gather || param->requires_grad()) elems += shard_elems(param->shape(), degrees.dp_shard);
    }
    const std::int64_t bytes = elems * element_bytes(dtype) * (gather ? 1 : degrees.dp_shard);
    if (entry.dtype != dtype || entry.bytes != bytes) {
      return fmt::format("{} of '{}' is {} bytes of {}, expected {} of {}", entry.name, entry.subject, entry.bytes,
                         name(entry.dtype), bytes, name(dtype));
    }
  }
  if (reductions == 0) return "no reductions were traced";
  if ((gathers > 0) != (degrees.dp_shard > 1)) return fmt::format("{} gathers were traced", gathers);
  return "";
}

class Run {
 public:
  // `routes`: of this rank; `given`: choices to replay, or null.
  Run(const Case& c, const Grain& grain, RankContext& context, comm::World& world, Routes& routes, const Routes* given)
      : case_(c),
        everyone_(c.save_to.empty() ? nullptr : world.everyone()),
        dims_(c.degrees, world.size()),
        whole_batch_(io::SafetensorsFile(c.batches()).at("tokens").shape[1] % dims_.data_size() != 0),
        data_rank_(whole_batch_ ? 0 : dims_.data_rank(world.rank())),
        data_size_(whole_batch_ ? 1 : dims_.data_size()),
        mesh_(comm::DeviceMesh::create(world, dims_.axes())),
        loss_axis_(dims_.loss_axis(mesh_)) {
    device::DeviceOptions device;
    device.host_allocator = offload::make_host_allocator();
    device::Device::install(context, device);
    context.slot<nn::KernelOptions>() = grain.kernels;
    sharding::FullyShardOptions options = c.options;
    if (c.images) {
      const models::InternVLConfig config = models::load_internvl_config(c.folder);
      image_token_id_ = config.image_token_id;
      const auto model = models::build_internvl(config);
      model->freeze_tower("vision_tower");
      for (const Tensor& p : model->find("model.vision_tower")->parameters()) options.ignored_params.insert(p.id());
      model_ = model;
    } else {
      moe_ = models::load_decoder_config(c.folder).moe;
      model_ = models::build_decoder(models::load_decoder_config(c.folder));
      if (moe_) watch_routers(*model_, *moe_, routes, given);
    }
    nn::store_parameters_in(*model_, c.stored);
    for (auto& [path, parameter] : model_->named_parameters()) {
      for (const std::string& part : c.freeze) {
        if (path.find(part) != std::string::npos) parameter.set_requires_grad(false);
      }
    }
    options.layout = grain.layout;
    options.cpu_offload = grain.cpu_offload;
    options.axes = c.context.is_shared() || c.degrees.tp > 1
                       ? sharding::FsdpAxes::over(world, c.degrees.dp_shard * c.degrees.cp, c.degrees.tp)
                       : sharding::FsdpAxes::of(mesh_);
    if (c.degrees.tp > 1) {
      sharding::share_matrices(*model_, test::matrices_of(*model_, c.tensor, c.degrees.tp), expert_paths(*model_, c),
                               *options.axes.parts);
    }
    if (const auto context = sharding::shared_context(world, c.context.sequences, c.degrees.tp)) {
      sharding::share_sequences(*model_, context);
      context_rank_ = context->rank();
    }
    if (c.ep > 0) {
      options.expert_axes = sharding::expert_axes(world, c.ep, /*shards=*/true);
      wrap_experts(*model_, c, options);
    }
    wrap(*model_, options);
    sharding::materialize_shards(*model_);
    models::load_weights(*model_, io::HfWeights(c.folder));
    optimizer_ = std::make_unique<nn::AdamW>(nn::make_parameter_groups(*model_), c.adamw);
    if (!c.checkpoint.empty()) load(c.checkpoint);
  }

  Results train() {
    const io::SafetensorsFile file(case_.batches());
    const io::StoredTensor& tokens = file.at("tokens");
    if (case_.images) pixel_values_ = &file.at("pixel_values");
    Results results;
    for (std::int64_t step = case_.first_step; step < case_.steps; ++step) {
      std::optional<device::Recorder> recorder;
      if (step == 1) recorder.emplace(device::Device::current(), device::RecorderOptions{.entries = false});
      double loss = 0;
      for (int a = 0; a < case_.accum; ++a) {
        if (case_.accum > 1) sharding::set_requires_gradient_sync(*model_, a == case_.accum - 1);
        loss += micro_batch(tokens, step, a);
      }
      if (step != 1 || !case_.tensor.compares) sharding::sum_partial_gradients(*model_);
      if (step == 1 && case_.sixteen_bit)
        results.wire_error = check_wire(recorder->recording(), *model_, case_.degrees);
      results.grad_norm.push_back(sharding::clip_grad_norm(*model_, case_.clip_grad));
      if (step == 0) {
        results.step1_grad_norm = test::norms_of_parameters(*model_, [](const Tensor& t) { return t.grad(); });
        if (case_.curve.contains("placements")) {
          results.wire_error = check_placements(*model_, case_.curve.at("placements"), case_);
        }
        results.wire_error += collectives_error_;
      }
      optimizer_->step();
      optimizer_->zero_grad();
      if (loss_axis_.size() > 1) {
        loss_axis_.group().all_reduce(comm::kHostLane, &loss, 1, DType::kF64, comm::ReduceOp::avg(), "loss");
      }
      results.loss.push_back(loss);
      if (everyone_ && step + 1 == case_.save_after) save();
    }
    results.wire_error += tensor_error_;
    results.step1_logits = std::move(step1_logits_);
    results.final_weight_norm = test::norms_of_parameters(*model_, [](const Tensor& t) { return t; });
    for (const auto& [path, buffer] : nn::persistent_buffers(*model_))
      results.buffers[path] = buffer.to_vector<float>();
    return results;
  }

 private:
  void save() {
    checkpoint::State state;
    checkpoint::add_module(state, sharding::local_state_dict(*model_));
    checkpoint::add_optimizer(state, optimizer_->state_dict());
    checkpoint::SaverOptions options;
    options.folder = case_.save_to;
    checkpoint::Saver(options, everyone_, [](const std::string&) {}).save(case_.save_after, state);
  }

  void load(const std::filesystem::path& folder) {
    const io::DcpFolder checkpoint(folder);
    checkpoint::load_module(checkpoint, sharding::local_state_dict(*model_), checkpoint::Strictness::kRaiseAll);
    optimizer_->load_state_dict(checkpoint::read_optimizer(checkpoint, *optimizer_, checkpoint::Strictness::kRaiseAll));
  }

  double micro_batch(const io::StoredTensor& tokens, std::int64_t step, int index) {
    const std::int64_t batch = tokens.shape[1];
    const std::int64_t seq = tokens.shape[2] - 1;
    const std::int64_t micro = batch / data_size_ / case_.accum;
    const Tensor inputs = Tensor::host({micro, seq}, DType::kI32, "inputs");
    const Tensor targets = Tensor::host({micro, seq}, DType::kI32, "targets");
    for (std::int64_t row = 0; row < micro; ++row) {
      const std::int64_t global = data_rank_ * (batch / data_size_) + index * micro + row;
      const auto at = static_cast<std::size_t>((step * batch + global) * (seq + 1)) * sizeof(std::int32_t);
      const std::size_t bytes = static_cast<std::size_t>(seq) * sizeof(std::int32_t);
      std::memcpy(inputs.data<std::int32_t>() + row * seq, tokens.bytes.data() + at, bytes);
      std::memcpy(targets.data<std::int32_t>() + row * seq, tokens.bytes.data() + at + sizeof(std::int32_t), bytes);
    }
    if (case_.context.is_shared()) return shared_micro_batch(inputs, targets, step);
    std::optional<device::Recorder> recorder;
    if (step == 1 && case_.tensor.compares) recorder.emplace(device::Device::current());
    Tensor loss = ops::scale(plain_loss(inputs, targets, step), 1.0 / case_.accum);
    if (recorder) check_tensor("forward", recorder->recording());
    if (recorder) recorder->clear();
    autograd::backward(loss);
    if (recorder) sharding::sum_partial_gradients(*model_);
    if (recorder) check_tensor("backward", recorder->recording());
    return loss.item();
  }

  Tensor plain_loss(const Tensor& inputs, const Tensor& targets, std::int64_t step) {
    if (model_->attachment<nn::OwnLoss>() != nullptr) {
      nn::Args args;
      args.add(inputs);
      args.named.emplace_back("targets", targets);
      return model_->call(std::move(args)).tensor();
    }
    const Tensor logits = case_.images ? with_images(inputs, targets, step) : (*model_)(inputs).tensor();
    return nn::functional::cross_entropy(logits, targets);
  }

  void check_tensor(const char* direction, const device::Recording& recording) {
    const test::TensorRun run{case_.degrees.tp > case_.kv_heads, case_.degrees.dp_shard,
                              sharding::FsdpState::of(*model_)->options().cpu_offload.has_value()};
    tensor_error_ += test::check_tensor_collectives(recording, case_.tensor.collectives, run, direction);
  }

  // Of this rank's tokens; weighed by how many of the step's are scored.
  double shared_micro_batch(const Tensor& inputs, const Tensor& targets, std::int64_t step) {
    data::Batch batch = case_.context.packed ? test::packed_batch(*case_.context.packed, step, data_rank_, data_size_)
                                             : test::plain_batch(inputs, targets);
    batch = data::split_batch(batch, case_.context.sequences.degrees, context_rank_);
    const double own = static_cast<double>(data::count_targets(batch).scored);
    double all = own;
    loss_axis_.group().all_reduce(comm::kHostLane, &all, 1, DType::kF64, comm::ReduceOp::sum(), "scored");
    std::optional<device::Recorder> recorder;
    if (step == 0 && case_.curve.contains("collectives_of_one_layer")) recorder.emplace(device::Device::current());
    Tensor logits = data::call_with_ids(*model_, batch).tensor();
    if (recorder) check_collectives("forward", recorder->recording());
    Tensor loss = ops::scale(nn::functional::cross_entropy(logits, batch["targets"]),
                             own * loss_axis_.size() / all / case_.accum);
    logits = {};
    if (recorder) recorder->clear();
    autograd::backward(loss);
    if (recorder) check_collectives("backward", recorder->recording());
    return loss.item();
  }

  void check_collectives(const char* direction, const device::Recording& recording) {
    const std::string wrong = test::check_collectives(recording, case_.context.collectives.at(direction),
                                                      case_.context.sequences.degrees.ring);
    if (!wrong.empty()) collectives_error_ += fmt::format("{}: {}", direction, wrong);
  }

  // The logits of a micro-batch whose sequences have an image each; takes image tokens out of `targets`.
  Tensor with_images(const Tensor& inputs, const Tensor& targets, std::int64_t step) {
    for (std::int64_t i = 0; i < targets.numel(); ++i) {
      auto& target = targets.data<std::int32_t>()[i];
      if (target == image_token_id_) target = static_cast<std::int32_t>(ops::kIgnoreIndex);
    }
    const Shape& stored = pixel_values_->shape;  // [steps, batch, C, H, W]
    const std::int64_t image = stored[2] * stored[3] * stored[4];
    const std::int64_t images = stored[1] / data_size_;
    const auto* values = reinterpret_cast<const float*>(pixel_values_->bytes.data());
    const Tensor pixels = Tensor::from(
        std::span(values + (step * stored[1] + data_rank_ * images) * image, static_cast<std::size_t>(images * image)),
        {images, stored[2], stored[3], stored[4]});
    Tensor logits = (*model_)(inputs, pixels);
    if (step == 0) step1_logits_ = logits.to_vector<float>();
    return logits;
  }

  const Case& case_;
  int context_rank_ = 0;
  std::string collectives_error_, tensor_error_;
  const std::shared_ptr<comm::ProcessGroup> everyone_;  // of a case that saves
  const train::ParallelDims dims_;
  const bool whole_batch_;
  const int data_rank_;
  const int data_size_;
  const comm::DeviceMesh mesh_;
  const comm::Axis loss_axis_;
  std::int64_t image_token_id_ = -1;
  const io::StoredTensor* pixel_values_ = nullptr;
  std::vector<float> step1_logits_;
  std::optional<models::MoeConfig> moe_;
  std::shared_ptr<nn::Module> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
};

// The worst of something, and where.
struct Worst {
  double value = 0;
  std::string where = "-";

  void add(double difference, const std::string& place) {
    if (difference <= value) return;  // NaN counts as worse
    value = difference;
    where = place;
  }
};

Worst worst_of_map(const CaseJson& expected, const std::map<std::string, double>& actual) {
  Worst worst;
  for (const auto& [path, value] : expected.items()) {
    const auto found = actual.find(path);
    if (found == actual.end()) {
      worst.add(INFINITY, path + " (missing)");
    } else {
      worst.add(std::abs(found->second - value.get<double>()) / std::max(value.get<double>(), 1e-12), path);
    }
  }
  return worst;
}

// What is wrong with the buffers that the file names: they are the model's own, and training leaves them as they were
// stored.
std::string moved_buffers(const Case& c, const Results& results) {
  const auto fixed = c.curve.value("fixed_buffers", std::vector<std::string>{});
  if (fixed.size() != results.buffers.size()) {
    return fmt::format("{} buffers, expected {}", results.buffers.size(), fixed.size());
  }
  const io::SafetensorsFile file(c.folder / "model.safetensors");
  for (const std::string& path : fixed) {
    const auto found = results.buffers.find(path);
    if (found == results.buffers.end()) return fmt::format("no buffer '{}'", path);
    const io::StoredTensor& stored = file.at(path);
    const bool same = stored.bytes.size() == found->second.size() * sizeof(float) &&
                      std::memcmp(stored.bytes.data(), found->second.data(), stored.bytes.size()) == 0;
    if (!same) return fmt::format("buffer '{}' moved", path);
  }
  return "";
}

double worst_logit(const Case& c, const std::vector<float>& logits) {
  const io::SafetensorsFile file(c.folder / "step1_rank0_logits.safetensors");
  const io::StoredTensor& stored = file.at("logits");
  const auto count = static_cast<std::size_t>(stored.shape.numel());
  if (logits.empty() || (c.on_own_mesh() && count != logits.size())) return INFINITY;
  const auto* expected = reinterpret_cast<const float*>(stored.bytes.data());
  Worst worst;
  for (std::size_t i = 0; i < std::min(count, logits.size()); ++i) worst.add(std::abs(logits[i] - expected[i]), "");
  return worst.value;
}

// Twice what PyTorch's own curves differ by, where that is more than the tolerance.
double allowed(double tolerance, const std::vector<double>& spread, std::size_t step) {
  return spread.empty() ? tolerance : std::max(tolerance, 2 * spread[step]);
}

std::pair<bool, std::string> compare(const Case& c, const Results& results) {
  const Tolerance& tolerance = c.tolerance;
  Worst loss;
  Worst norm;
  const CaseJson curve = c.curve.at("curve");
  const auto first = static_cast<std::size_t>(c.first_step);
  bool within = true;
  if (curve.size() != first + results.loss.size())
    return {false, fmt::format("{} steps, expected {}", results.loss.size(), curve.size() - first)};
  for (std::size_t i = 0; i < results.loss.size(); ++i) {
    const std::string step = fmt::format("step {}", first + i + 1);
    const CaseJson expected = curve.at(first + i);
    const double expected_norm = expected.at("grad_norm");
    const double off = std::abs(results.loss[i] - expected.at("loss").get<double>());
    const double norm_off = std::abs(results.grad_norm[i] - expected_norm) / expected_norm;
    loss.add(off, step);
    norm.add(norm_off, step);
    within = within && off <= allowed(tolerance.loss, c.spread_of_loss, first + i) &&
             norm_off <= allowed(tolerance.grad_norm, c.spread_of_grad_norm, first + i);
  }
  const std::string buffers = moved_buffers(c, results);
  bool agrees = within && results.wire_error.empty() && buffers.empty();
  std::string text = fmt::format("loss {:.1e} ({}), grad norm {:.1e} ({}){}{}", loss.value, loss.where, norm.value,
                                 norm.where, buffers.empty() ? "" : ", ", buffers);
  if (c.sixteen_bit) {
    text += results.wire_error.empty() ? ", dtype and bytes of every gather and reduction" : ", " + results.wire_error;
    return {agrees, text};
  }
  if (c.images) {
    const double worst = worst_logit(c, results.step1_logits);
    return {agrees && worst <= kLogits, text + fmt::format(", step-1 logits of rank 0 {:.1e}", worst)};
  }
  const Worst weights = worst_of_map(c.curve.at("final_weight_norm_by_param"), results.final_weight_norm);
  if (first > 0) {
    text += fmt::format(", last weights {:.1e} ({})", weights.value, weights.where);
    return {agrees && weights.value <= tolerance.final_weight_norm, text};
  }
  const Worst grads = worst_of_map(c.curve.at("step1_grad_norm_by_param"), results.step1_grad_norm);
  agrees = agrees && grads.value <= tolerance.step1_grad_norm && weights.value <= tolerance.final_weight_norm;
  text += fmt::format(", step-1 gradients {:.1e} ({}), last weights {:.1e} ({})", grads.value, grads.where,
                      weights.value, weights.where);
  if (!results.wire_error.empty()) text += ", " + results.wire_error;
  return {agrees, text};
}

using Ranks = std::function<void(int world, const launch::RankMain&)>;

// By the trainer, on stages. Equal numbers of layers where they divide, else the first stages have one more.
Results staged_results_of(const Case& c, const Ranks& run_ranks) {
  test::StagedRun run{.folder = c.folder,
                      .degrees = c.degrees,
                      .context = c.context.sequences.degrees,
                      .ep = std::max(1, c.ep),
                      .sequence_parallel = c.tensor.sequence_parallel,
                      .steps = c.steps,
                      .adamw = c.adamw,
                      .clip_grad = c.clip_grad};
  const std::int64_t stages = c.degrees.pp;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    run.layers.push_back(c.layers / stages + (stage < c.layers % stages ? 1 : 0));
  }
  run.micro_batches =
      io::SafetensorsFile(c.batches()).at("tokens").shape[1] / (c.degrees.dp_replicate * c.degrees.dp_shard);
  test::StagedResults staged = test::train_staged(run, run_ranks);
  Results results;
  results.loss = std::move(staged.loss);
  results.grad_norm = std::move(staged.grad_norm);
  results.step1_grad_norm = std::move(staged.step1_grad_norm);
  results.final_weight_norm = std::move(staged.final_weight_norm);
  results.buffers = std::move(staged.buffers);
  return results;
}

// `routes`: gets those of each rank. `given`: those to replay, or none.
Results results_of(const Case& c, const Grain& grain, const Ranks& run_ranks, RoutesOfRanks& routes,
                   const RoutesOfRanks& given = {}) {
  Results results;
  routes.assign(static_cast<std::size_t>(c.ranks()), {});
  run_ranks(c.ranks(), [&](RankContext& context, comm::World& world) {
    const auto rank = static_cast<std::size_t>(context.rank());
    Results own = Run(c, grain, context, world, routes[rank], given.empty() ? nullptr : &given[rank]).train();
    if (context.rank() == 0) results = std::move(own);
  });
  return results;
}

Results results_of(const Case& c, const Grain& grain, const Ranks& run_ranks) {
  RoutesOfRanks routes;
  return results_of(c, grain, run_ranks, routes);
}

// Why a run that left its curve agrees after all: with the first grain's choices in near ties it does. Nothing where it
// does not.
std::optional<std::string> agrees_but_for_ties(const Case& c, const Grain& grain, const Ranks& run_ranks,
                                               const RoutesOfRanks& first) {
  if (first.front().choices.empty() || c.sixteen_bit) return std::nullopt;
  RoutesOfRanks routes;
  const auto [same, text] = compare(c, results_of(c, grain, run_ranks, routes, first));
  std::int64_t ties = 0;
  double widest = 0;
  for (const Routes& rank : routes) {
    ties += rank.near_ties;
    widest = std::max(widest, rank.widest);
  }
  if (!same || ties == 0) return std::nullopt;
  return fmt::format("{}, with the choices of {} in {} near ties of scores within {:.1e}", text, kGrains[0].name, ties,
                     widest);
}

// From a checkpoint of the case on, at several numbers of ranks. `whole`: the own run that made it, or null.
void continue_from(Case c, const std::string& name, const Results* whole, const Ranks& run_ranks,
                   test::ParityReport& report) {
  for (int world = 1; world <= 4; ++world) {
    c.degrees = {.dp_replicate = 1, .dp_shard = world};
    const Results rest = results_of(c, kGrains[1], run_ranks);
    auto [same, text] = compare(c, rest);
    if (whole != nullptr && world == c.reference.dp_shard && c.reference.dp_replicate == 1) {
      const auto first = static_cast<std::ptrdiff_t>(c.first_step);
      const bool bits =
          std::ranges::equal(rest.loss, std::ranges::subrange(whole->loss.begin() + first, whole->loss.end())) &&
          rest.final_weight_norm == whole->final_weight_norm;
      same = same && bits;
      text += bits ? ", bit for bit the own run" : ", NOT the bits of the own run";
    }
    const std::string shown = fmt::format("{} from {} at world {}", c.name, name, world);
    same ? report.passed(shown, text) : report.failed(shown, text);
  }
}

// From every dcp/step_N of the case on, and from the checkpoint of an own run after that step.
void continue_case(Case c, const Ranks& run_ranks, test::ParityReport& report) {
  const std::filesystem::path folder = c.folder / "dcp";
  if (!std::filesystem::is_directory(folder)) return;
  for (const std::filesystem::path& checkpoint : test::case_folders(folder, ".metadata")) {
    const std::string name = checkpoint.filename().string();
    const std::int64_t step = std::stol(name.substr(name.find('_') + 1));
    Case own = c;
    own.save_to = std::filesystem::temp_directory_path() / fmt::format("training_parity_{}_{}", c.name, ::getpid());
    own.save_after = step;
    const Results whole = results_of(own, kGrains[1], run_ranks);
    c.first_step = step;
    c.checkpoint = checkpoint;
    continue_from(c, name, nullptr, run_ranks, report);
    c.checkpoint = own.save_to / fmt::format("iter_{:07d}", step);
    continue_from(c, fmt::format("step {} of the own run", step), &whole, run_ranks, report);
    std::filesystem::remove_all(own.save_to);
  }
}

// `threads`: the ranks' choices are all here.
void run_case(Case c, const Ranks& run_ranks, bool threads, test::ParityReport& report) {
  bool agrees = true;
  std::string detail;
  if (!c.on_own_mesh()) {
    detail = fmt::format("over {} (the reference: {})", in_words(c.degrees), in_words(c.reference));
  }
  RoutesOfRanks first;
  if (c.degrees.pp > 1) {
    const auto [same, text] = compare(c, staged_results_of(c, run_ranks));
    agrees = same;
    detail += ": " + text;
  }
  for (const Grain& grain : kGrains) {
    if (c.degrees.pp > 1 || (grain.cpu_offload && c.sixteen_bit)) continue;
    RoutesOfRanks routes;
    auto [same, text] = compare(c, results_of(c, grain, run_ranks, routes));
    if (first.empty()) {
      first = std::move(routes);
    } else if (threads && !same) {
      if (const auto tied = agrees_but_for_ties(c, grain, run_ranks, first)) {
        same = true;
        text = *tied;
      }
    }
    agrees = agrees && same;
    detail += fmt::format("{}{}: {}", detail.empty() ? "" : "; ", grain.name, text);
  }
  if (const std::string text = unread(c); !text.empty()) return report.failed(c.name, text);
  agrees ? report.passed(c.name, detail) : report.failed(c.name, detail);
}

// What the command line asks for.
struct Request {
  std::filesystem::path folder;
  std::optional<Mesh> mesh;
};

int run(const Request& request, int only_world, const Ranks& run_ranks, test::ParityReport& report) {
  for (const auto& case_folder : test::case_folders_below(request.folder, "curve.json")) {
    Case c;
    c.folder = case_folder;
    c.name = case_folder.filename().string();
    std::optional<std::string> reason;
    try {
      c.curve = test::read_case(case_folder / "curve.json");
      if (c.curve.contains("base")) c.folder = test::base_folder(case_folder, c.curve.at("base").get<std::string>());
    } catch (const std::exception& error) {
      report.failed(c.name, error.what());
      continue;
    }
    try {
      c.images = std::filesystem::exists(c.folder / "batches.safetensors");
      if (c.images) {
        models::load_internvl_config(c.folder);
      } else {
        const models::DecoderConfig config = models::load_decoder_config(c.folder);
        c.shares_sequences = models::build_decoder(config)->attachment<dist::ContextSlot>() != nullptr;
        c.shares_matrices = models::build_decoder(config)->attachment<sharding::TensorPlan>() != nullptr;
        c.heads = config.num_attention_heads;
        c.layers = config.num_hidden_layers;
        c.kv_heads = config.num_key_value_heads;
        c.experts = config.moe ? config.moe->num_experts : 0;
      }
    } catch (const ConfigError& error) {
      reason = error.what();
    }
    try {
      if (!reason && c.curve.contains("mesh")) reason = read_axes(c, c.curve.at("mesh"), case_folder);
      if (!reason) read_file(c);
    } catch (const std::exception& error) {
      report.failed(c.name, error.what());
      continue;
    }
    if (!reason && request.mesh) reason = put_on(c, *request.mesh);
    if (!reason && only_world > 0 && c.ranks() != only_world) {
      reason = fmt::format("it has {} ranks, and {} processes are running", c.ranks(), only_world);
    }
    if (reason) {
      report.skipped(c.name, *reason);
      continue;
    }
    try {
      run_case(c, run_ranks, only_world == 0, report);
      if (!request.mesh && only_world == 0) continue_case(c, run_ranks, report);
    } catch (const std::exception& error) {
      report.failed(case_folder.filename().string(), error.what());
      if (only_world > 0) throw;  // the other processes would wait
    }
  }
  return report.finish();
}

int run_threads(const Request& request) {
  test::ParityReport report;
  const Ranks ranks = [](int world, const launch::RankMain& main) {
    launch::run_ranks(world, {std::chrono::minutes(2)}, main);
  };
  return run(request, 0, ranks, report);
}

int run_processes(const Request& request) {
  int code = 2;
  launch::run_mpi_rank({std::chrono::minutes(2)}, [&](RankContext& context, comm::World& world) {
    test::ParityReport report(/*shown=*/context.rank() == 0);
    const Ranks ranks = [&](int, const launch::RankMain& main) { main(context, world); };
    code = run(request, world.size(), ranks, report);
    if (context.rank() != 0) code = 0;  // only rank 0 compares
  });
  return code;
}

// "dp_replicate=2,dp_shard=2"
Mesh parse_mesh(std::string_view text) {
  Mesh mesh;
  train::ParallelDegrees& degrees = mesh.degrees;
  const std::map<std::string_view, int*> known = {{"dp_replicate", &degrees.dp_replicate},
                                                  {"dp_shard", &degrees.dp_shard},
                                                  {"ring", &mesh.context.ring},
                                                  {"ulysses", &mesh.context.ulysses},
                                                  {"ep", &mesh.ep},
                                                  {"sp", &mesh.sp},
                                                  {"tp", &degrees.tp},
                                                  {"pp", &degrees.pp}};
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    const std::size_t equals = std::min(entry.find('='), entry.size());
    const auto found = known.find(entry.substr(0, equals));
    const std::string_view number = entry.substr(std::min(entry.size(), equals + 1));
    const char* const end = number.data() + number.size();
    if (found == known.end() || std::from_chars(number.data(), end, *found->second).ptr != end || number.empty()) {
      config_error("--mesh has '{}'; write pp=P,dp_replicate=M,dp_shard=N,ring=R,ulysses=U,tp=T,sp=1,ep=E", entry);
    }
  }
  degrees.cp = mesh.context.ranks();
  const int ranks = degrees.dp_replicate * degrees.dp_shard * degrees.cp * degrees.tp * degrees.pp;
  train::ParallelDims(degrees, ranks);
  if (ranks % std::max(1, mesh.ep) != 0) config_error("--mesh has ep={}, of {} ranks; use a divisor", mesh.ep, ranks);
  return mesh;
}

}  // namespace
}  // namespace loom::training_parity

int main_of_training_parity(int argc, char** argv) {
  using namespace loom;
  using namespace loom::training_parity;
  Request request;
  if (argc == 4 && std::string_view(argv[2]) == "--mesh") {
    try {
      request.mesh = parse_mesh(argv[3]);
    } catch (const ConfigError& error) {
      fmt::print(stderr, "{}\n", error.what());
      return 2;
    }
    argc = 2;
  }
  const auto run_all = [&](const std::filesystem::path& folder) {
    request.folder = folder;
    return launch::Start::detect().ranks_are_processes() ? run_processes(request) : run_threads(request);
  };
  return test::parity_main(argc, argv, "training_parity", run_all,
                           " [--mesh pp=P,dp_replicate=M,dp_shard=N,ring=R,ulysses=U,tp=T,sp=1,ep=E]");
}
