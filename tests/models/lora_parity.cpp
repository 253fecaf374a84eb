// lora_parity DIR: LoRA as peft under PyTorch FSDP2 trains it.
//
// Every subfolder of DIR with a curve.json is a case (tests/reference/lora/README.md): the base and the adapter of
// adapter_init/, peft's folder, are trained on 1, 2 and 4 ranks in both grains, decoder layers, embedding, head and
// root wrapped. Losses within 2e-5, gradient norms within 1e-4 relative, the last adapter within 5e-5; the base stays
// bit for bit what it was. Then the adapter is written as peft's folder and read back: the same bits. Beyond the
// reference: the adapter of every number of ranks is that of one rank within the same 5e-5.
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/formats/safetensors/hf_weights.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/functional.h"
#include "engine/nn/optim/adamw.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder.h"
#include "models/hf/hf_folder.h"
#include "models/lora/adapter_folder.h"
#include "models/lora/lora.h"
#include "sharding/full_parameters.h"
#include "sharding/fully_shard.h"
#include "tests/support/case_json.h"
#include "tests/support/parity_report.h"

namespace loom::lora_parity {
namespace {

using test::CaseJson;

constexpr double kLoss = 2e-5;
constexpr double kGradNorm = 1e-4;
constexpr double kAdapter = 5e-5;

using Values = std::map<std::string, std::vector<float>>;

struct Grain {
  const char* name;
  nn::KernelOptions kernels;
  sharding::GatherLayout layout;
};
const Grain kGrains[] = {{"pytorch", nn::KernelOptions::pytorch(), sharding::GatherLayout::kBuffered},
                         {"fast", nn::KernelOptions::fast(), sharding::GatherLayout::kFast}};

struct Results {
  std::vector<double> loss;
  std::vector<double> grad_norm;
  Values adapter;  // after the last step
  Values again;    // written as peft's folder, and read back
  std::string base_error;
  std::size_t optimizer_states = 0;
};

std::vector<float> floats(const io::StoredTensor& stored) {
  const Tensor tensor = Tensor::host(stored.shape, stored.dtype, stored.name);
  std::memcpy(tensor.raw(), stored.bytes.data(), stored.bytes.size());
  return tensor.to_vector<float>();
}

// "base_model.model.X.lora_A.default.weight" -> "X.lora_A.weight".
std::string path_of(std::string name) {
  for (const std::string_view part : {"base_model.model.", ".default"}) {
    const std::size_t at = name.find(part);
    if (at != std::string::npos) name.erase(at, part.size());
  }
  return name;
}

Values adapter_of(const std::filesystem::path& file) {
  const io::SafetensorsFile stored(file);
  Values values;
  for (const io::StoredTensor& tensor : stored.tensors()) values[path_of(tensor.name)] = floats(tensor);
  return values;
}

class Run {
 public:
  Run(const std::filesystem::path& folder, const CaseJson& curve, const Grain& grain, RankContext& context,
      comm::World& world)
      : folder_(folder), curve_(curve), world_(world), everyone_(world.everyone()) {
    device::Device::install(context, {});
    context.slot<nn::KernelOptions>() = grain.kernels;
    model_ = models::build_decoder(models::load_decoder_config(folder));
    models::LoraOptions options = models::AdapterFolder(folder / "adapter_init").options();
    check_lora(options);
    lora_ = models::add_lora(*model_, options);
    wrap(grain, world);
    sharding::materialize_shards(*model_);
    models::load_weights(*model_, io::HfWeights(folder));
    models::fill_adapters(*model_, 1);
    const CaseJson o = curve.at("optimizer");
    if (!(o.value("name", std::string("AdamW")) == "AdamW")) config_error("its optimizer is {}", o.at("name").dump());
    clip_ = o.at("clip_grad").get<double>();
    optimizer_ = std::make_unique<nn::AdamW>(nn::make_parameter_groups(*model_),
                                             nn::AdamWOptions{.lr = o.at("lr").get<double>(),
                                                              .beta1 = o.at("betas").at(0).get<double>(),
                                                              .beta2 = o.at("betas").at(1).get<double>(),
                                                              .eps = o.at("eps").get<double>(),
                                                              .weight_decay = o.at("weight_decay").get<double>()});
  }

  Results train(const std::filesystem::path& scratch) {
    const io::SafetensorsFile file(folder_ / "tokens.safetensors");
    const io::StoredTensor& tokens = file.at("tokens");
    Results results;
    for (std::int64_t step = 0; step < tokens.shape[0]; ++step) {
      double loss = micro_batch(tokens, step);
      results.grad_norm.push_back(sharding::clip_grad_norm(*model_, clip_));
      optimizer_->step();
      optimizer_->zero_grad();
      if (world_.size() > 1) {
        everyone_->all_reduce(comm::kHostLane, &loss, 1, DType::kF64, comm::ReduceOp::avg(), "loss");
      }
      results.loss.push_back(loss);
    }
    results.optimizer_states = optimizer_->state_dict().parameters.size();
    read_results(results, scratch);
    return results;
  }

 private:
  // What the curve says of the adapter is what its folder says.
  void check_lora(const models::LoraOptions& options) const {
    const CaseJson lora = curve_.at("lora");
    if (lora.at("r").get<std::int64_t>() != options.r || lora.at("alpha").get<double>() != options.alpha ||
        lora.at("dropout").get<double>() != options.dropout) {
      config_error("{}: curve.json and adapter_init/ are of different adapters", folder_.string());
    }
  }

  void wrap(const Grain& grain, comm::World& world) {
    sharding::FullyShardOptions options;
    options.axes = sharding::FsdpAxes::over(world, world.size());
    options.layout = grain.layout;
    for (const char* container : {"model.layers", "transformer.h"}) {
      nn::Module* layers = model_->find(container);
      if (layers == nullptr) continue;
      for (auto& [index, layer] : layers->children()) sharding::fully_shard(*layer, options);
    }
    for (const char* path : {"model.embed_tokens", "lm_head"}) {
      if (model_->find("model.embed_tokens") != nullptr) sharding::fully_shard(*model_->find(path), options);
    }
    sharding::fully_shard(*model_, options);
  }

  double micro_batch(const io::StoredTensor& tokens, std::int64_t step) {
    const std::int64_t batch = tokens.shape[1], length = tokens.shape[2] - 1;
    const std::int64_t rows = batch / world_.size();
    const Tensor ids = Tensor::host({rows, length}, DType::kI32), targets = Tensor::host({rows, length}, DType::kI32);
    const auto* from = reinterpret_cast<const std::int32_t*>(tokens.bytes.data()) +
                       (step * batch + world_.rank() * rows) * (length + 1);
    for (std::int64_t i = 0; i < rows; ++i) {
      std::memcpy(ids.data<std::int32_t>() + i * length, from + i * (length + 1), static_cast<std::size_t>(4 * length));
      std::memcpy(targets.data<std::int32_t>() + i * length, from + i * (length + 1) + 1,
                  static_cast<std::size_t>(4 * length));
    }
    const Tensor logits = (*model_)(ids).tensor();
    const Tensor loss = nn::functional::cross_entropy(logits, targets);
    autograd::backward(loss);
    return loss.item();
  }

  void read_results(Results& results, const std::filesystem::path& scratch) {
    const io::HfWeights base(folder_);
    std::vector<std::pair<std::string, Tensor>> tuned;
    sharding::for_each_full_parameter(*model_, [&](const std::string& path, const Tensor& full) {
      if (lora_->is_tuned(path)) {
        results.adapter[path] = full.to_vector<float>();
        tuned.emplace_back(path, full);
        return;
      }
      const io::StoredTensor* stored = base.find(path);
      const bool same = stored != nullptr && static_cast<std::size_t>(full.nbytes()) == stored->bytes.size() &&
                        std::memcmp(full.raw(), stored->bytes.data(), stored->bytes.size()) == 0;
      if (!same) results.base_error = fmt::format("'{}' of the frozen base has changed", path);
    });
    if (world_.rank() != 0) return;
    models::write_adapter_folder(scratch, models::adapter_config_json(*lora_, folder_.string()), tuned);
    const models::AdapterFolder again(scratch);
    for (const auto& [path, stored] : again.tensors()) results.again[path] = floats(*stored);
    if (again.options().r != lora_->options.r || again.options().alpha != lora_->options.alpha) {
      results.base_error = "adapter_config.json came back with another rank or alpha";
    }
  }

  const std::filesystem::path folder_;
  const CaseJson& curve_;
  comm::World& world_;
  const std::shared_ptr<comm::ProcessGroup> everyone_;
  std::shared_ptr<nn::Module> model_;
  std::shared_ptr<const models::Lora> lora_;
  std::unique_ptr<nn::AdamW> optimizer_;
  double clip_ = 1;
};

double worst(const Values& own, const Values& other) {
  if (own.size() != other.size()) return INFINITY;
  double most = 0;
  for (const auto& [path, values] : own) {
    const auto found = other.find(path);
    if (found == other.end() || found->second.size() != values.size()) return INFINITY;
    for (std::size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(values[i]) - static_cast<double>(found->second[i])));
    }
  }
  return most;
}

// What does not agree, or the worst differences.
struct Verdict {
  bool agrees = true;
  std::string text;
};

Verdict compare(const Results& results, const CaseJson& curve, const Values& final_adapter, const Values& of_one_rank) {
  if (!results.base_error.empty()) return {false, results.base_error};
  if (results.loss.size() != curve.size() || curve.empty()) return {false, "another number of steps"};
  double loss = 0, grad_norm = 0;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const double norm = curve.at(i).at("grad_norm").get<double>();
    loss = std::max(loss, std::abs(results.loss[i] - curve.at(i).at("loss").get<double>()));
    grad_norm = std::max(grad_norm, std::abs(results.grad_norm[i] - norm) / norm);
  }
  const double adapter = worst(results.adapter, final_adapter);
  const double ranks = worst(results.adapter, of_one_rank);
  const bool agrees = loss <= kLoss && grad_norm <= kGradNorm && adapter <= kAdapter && ranks <= kAdapter &&
                      results.again == results.adapter && results.optimizer_states == final_adapter.size();
  return {agrees,
          fmt::format("loss {:.1e}, gradient norm {:.1e}, adapter {:.1e}, against one rank {:.1e}, read back {}, "
                      "{} optimizer states",
                      loss, grad_norm, adapter, ranks, results.again == results.adapter ? "equal" : "DIFFERENT",
                      results.optimizer_states)};
}

void run_case(const std::filesystem::path& folder, test::ParityReport& report) {
  const CaseJson curve = test::read_case(folder / "curve.json");
  test::check_steps(curve.at("curve"));
  const Values final_adapter = adapter_of(folder / "adapter_final.safetensors");
  const auto scratch = std::filesystem::temp_directory_path() / fmt::format("lora_parity_{}", ::getpid());
  Values of_one_rank;
  for (const int ranks : {1, 2, 4}) {
    for (const Grain& grain : kGrains) {
      const std::string name =
          fmt::format("{}, {} rank{}, {}", folder.filename().string(), ranks, ranks == 1 ? "" : "s", grain.name);
      const std::int64_t batch = io::SafetensorsFile(folder / "tokens.safetensors").at("tokens").shape[1];
      if (batch % ranks != 0) {
        report.skipped(name, fmt::format("its batch of {} does not divide by {} ranks", batch, ranks));
        continue;
      }
      Results of_first;
      launch::run_ranks(ranks, {std::chrono::minutes(2)}, [&](RankContext& context, comm::World& world) {
        Results results = Run(folder, curve, grain, context, world).train(scratch);
        if (context.rank() == 0) of_first = std::move(results);
      });
      if (of_one_rank.empty()) of_one_rank = of_first.adapter;
      const Verdict verdict = compare(of_first, curve.at("curve"), final_adapter, of_one_rank);
      curve.check_all_read({"world"});  // the curve is that of any number of ranks
      verdict.agrees ? report.passed(name, verdict.text) : report.failed(name, verdict.text);
    }
  }
  std::filesystem::remove_all(scratch);
}

int run(const std::filesystem::path& folder) {
  test::ParityReport report;
  for (const auto& case_folder : test::case_folders(folder, "curve.json")) {
    try {
      run_case(case_folder, report);
    } catch (const std::exception& error) {
      report.failed(case_folder.filename().string(), error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace loom::lora_parity

int main_of_lora_parity(int argc, char** argv) {
  return loom::test::parity_main(argc, argv, "lora_parity", loom::lora_parity::run);
}
