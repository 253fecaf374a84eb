#include "tests/sharding/expert_schedule.h"

#include <fmt/format.h>
#include <map>
#include <sstream>

#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/device/recorder.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/nn/optim/adamw.h"
#include "engine/tensor/autograd.h"
#include "models/decoder/decoder.h"
#include "recompute/checkpoint.h"
#include "sharding/expert/share_experts.h"
#include "sharding/fully_shard.h"
#include "tests/support/issued.h"
#include "tests/support/parity_report.h"
#include "tests/support/step_marks.h"

namespace loom::test {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kLayers = "model.layers";
constexpr std::int64_t kSequence = 16;

std::string experts_of(const std::string& layer) { return layer + ".mlp.experts"; }

Words layer_paths(nn::Module& model) {
  Words paths;
  for (auto& [name, layer] : model.find(kLayers)->children()) paths.push_back(nn::join_path(kLayers, name));
  return paths;
}

// Marks the begin and end of the forwards of wrapped modules, inside the hooks that gather and reshard.
void mark_forwards(nn::Module& model, const Words& paths) {
  const auto mark = [](device::MarkKind kind, const std::string& path) {
    device::Device::current().log().add_mark({.kind = kind, .subject = path});
  };
  for (const std::string& path : paths) {
    nn::Module& module = *model.find(path);
    module.register_pre_hook([mark, path](nn::Module&, nn::Args&) { mark(test::kForwardMark, path); });
    module.register_post_hook([mark, path](nn::Module&, nn::Value output) {
      mark(test::kForwardEndMark, path);
      return output;
    });
  }
}

void wrap(nn::Module& model, const ExpertScheduleCase& c, sharding::FullyShardOptions options, comm::World& world) {
  options.axes = sharding::FsdpAxes::over(world, world.size());
  sharding::FullyShardOptions experts = options;
  experts.axes = sharding::expert_axes(world, c.ep, /*shards=*/true);
  experts.shard_dim = [dim = c.expert_shard_dim](const std::string&, const Shape&) { return dim; };
  sharding::fully_shard(*model.find("model.embed_tokens"), options);
  for (const std::string& layer : layer_paths(model)) {
    sharding::share_experts(model, {experts_of(layer)}, *experts.axes.parts);
    sharding::fully_shard(*model.find(experts_of(layer)), experts);
    sharding::set_gradient_divide_factor(*model.find(experts_of(layer)), world.size());
    sharding::fully_shard(*model.find(layer), options);
  }
  if (c.one_group_of_norm_and_head) {
    sharding::FullyShardOptions last = options;
    last.reshard_after_forward = false;
    sharding::fully_shard({model.find("model.norm"), model.find("lm_head")}, last);
  } else {
    sharding::fully_shard(*model.find("lm_head"), options);
  }
  sharding::fully_shard(model, options);
}

void set_prefetch(nn::Module& model, const ExpertScheduleCase& c) {
  const auto modules = [&](const Words& paths) {
    std::vector<nn::Module*> found;
    for (const std::string& path : paths) found.push_back(model.find(path));
    return found;
  };
  for (const auto& [path, targets] : c.forward_prefetch) {
    sharding::set_modules_to_forward_prefetch(*model.find(path), modules(targets));
  }
  for (const auto& [path, targets] : c.backward_prefetch) {
    sharding::set_modules_to_backward_prefetch(*model.find(path), modules(targets));
  }
}

// Events of groups, and of the exchanges of experts: N counts, D dispatch, C combine, CB and DB their backward.
Words tokens_of(const device::Recording& recording) {
  Words tokens;
  std::map<std::string, Words> exchanges;  // that follow, by module
  for (const Issued& entry : issued(recording)) {
    if (entry.is_mark()) {
      if (entry.name == "B" || entry.name == "O") {
        tokens.push_back(entry.name);
      } else if (entry.name == "RS" || entry.name == "RSAR") {
        tokens.push_back(fmt::format("{}:{}[{}]", entry.name, entry.subject, entry.count));
      } else if (entry.name != "DROP") {
        tokens.push_back(fmt::format("{}:{}", entry.name, entry.subject));
      }
    } else if (entry.stream == "compute" && entry.name == "all_gather") {
      tokens.push_back("N:" + entry.subject);
      exchanges[entry.subject] = {"D", "C", "CB", "DB"};
    } else if (entry.name == "all_to_all") {
      Words& next = exchanges[entry.subject];
      tokens.push_back(fmt::format("{}:{}", next.empty() ? "unexpected" : next.front(), entry.subject));
      if (!next.empty()) next.erase(next.begin());
    }
  }
  return tokens;
}

void train_step(nn::Module& model, nn::Optimizer& optimizer, int rank) {
  const Tensor ids = Tensor::host({1, kSequence}, DType::kI32, "ids");
  for (std::int64_t i = 0; i < kSequence; ++i) {
    ids.data<std::int32_t>()[i] = static_cast<std::int32_t>((7 * i + 3 * rank) % 64);
  }
  const Tensor loss = nn::functional::cross_entropy(model(ids).tensor(), ids);
  device::Device::current().log().add_mark({.kind = test::kBackwardMark});
  autograd::backward(loss);
  device::Device::current().log().add_mark({.kind = test::kOptimizerMark});
  optimizer.step();
  optimizer.zero_grad();
}

std::vector<std::pair<std::string, Words>> lists(const CaseJson& content) {
  std::vector<std::pair<std::string, Words>> all;
  for (const auto& [path, targets] : content.items()) all.emplace_back(path, targets.template get<Words>());
  return all;
}

}  // namespace

ExpertScheduleCase read_expert_schedule(const std::filesystem::path& folder, const CaseJson& content) {
  ExpertScheduleCase c;
  c.base = base_folder(folder, content.at("base").get<std::string>());
  const CaseJson scenario = content.at("scenario"), mesh = content.at("mesh");
  if (scenario.at("model").get<std::string>() != "qwen3moe") config_error("its model is not qwen3moe");
  c.iterations = scenario.at("iters");
  c.world = content.at("world");
  c.ep = mesh.at("ep");
  if (mesh.at("dp_shard").get<int>() != c.world || mesh.at("efsdp").get<int>() * c.ep != c.world) {
    config_error("its mesh is not one of {} ranks", c.world);
  }
  c.expert_shard_dim = content.at("expert_shard_dim");
  c.reshard = content.at("reshard");
  const Words usual = {"model.embed_tokens", "model.layers.{*}.mlp.experts (over efsdp)", "model.layers.{*}", "lm_head",
                       "root"};
  Words groups = content.at("groups").get<Words>();
  if (groups.size() == usual.size() &&
      groups[3] == "model.norm and lm_head as one group, not resharded after forward") {
    c.one_group_of_norm_and_head = true;
    groups[3] = "lm_head";
  }
  if (groups != usual) config_error("its groups are not those of this program");
  const Words recomputed = content.at("recompute_modules").get<Words>();
  c.recomputes_layers = recomputed == Words{"model.layers.{*}"};
  if (!recomputed.empty() && !c.recomputes_layers) config_error("it recomputes other modules than model.layers.{{*}}");
  if (content.at("accum").get<int>() != 1) config_error("it accumulates gradients");
  c.forward_prefetch = lists(content.at("prefetch_lists").at("forward"));
  c.backward_prefetch = lists(content.at("prefetch_lists").at("backward"));
  std::istringstream stream(content.at("last_iteration").get<std::string>());
  c.expected = {std::istream_iterator<std::string>(stream), {}};
  content.check_all_read({"first_iteration", "prefetch"});  // the last one is compared; the lists are what counts
  return c;
}

Words expert_schedule(const ExpertScheduleCase& c, sharding::GatherLayout layout, comm::World& world) {
  const auto model = models::build_decoder(models::load_decoder_config(c.base));
  Words wrapped = layer_paths(*model);
  for (const std::string& layer : layer_paths(*model)) wrapped.push_back(experts_of(layer));
  wrapped.insert(wrapped.end(), {"", "model.embed_tokens", "lm_head"});
  if (c.one_group_of_norm_and_head) wrapped.emplace_back("model.norm");
  mark_forwards(*model, wrapped);
  if (c.recomputes_layers) {
    for (const std::string& layer : layer_paths(*model)) {
      recompute::checkpoint(*model->find(layer), {.path = layer, .use_reentrant = false});
    }
  }
  sharding::FullyShardOptions options;
  options.layout = layout;
  options.reshard_after_forward = c.reshard;
  wrap(*model, c, options, world);
  sharding::materialize_shards(*model);
  nn::init_weights(*model, 1);
  set_prefetch(*model, c);
  nn::AdamW optimizer(nn::make_parameter_groups(*model), {});
  device::Recorder recorder(device::Device::current());
  for (int i = 0; i < c.iterations; ++i) {
    recorder.clear();
    train_step(*model, optimizer, world.rank());
  }
  return tokens_of(recorder.recording());
}

}  // namespace loom::test
