// graph_parity DIR: recorded PyTorch models under FSDP2, byte for byte against PyTorch's own memory tracker.
//
// Given    DIR/CASE/graph.json.gz (graph_fp32.json.gz for variants without param_dtype) and expected.json.gz: bytes by
//          category of two steps, at the phases of a step and around the hooks of every wrapped module.
// When     the recorded model trains two steps on a dry device of rank 0 of 8, wrapped as the variant says.
// Then     every category is equal at every state, and the peaks of forward, backward and each module's are within 1 %.
//          Known differences, each with its reason, are in Known and where they are applied. A peak in the optimizer is
//          a bound: the tracker's AdamW runs on a CPU mesh.
// Exit     1 with a line for each difference, or for keys that were not read.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <iostream>
#include <map>

#include "engine/comm/simulated/simulated.h"
#include "engine/io/gzip.h"
#include "engine/nn/optim/adamw.h"
#include "engine/tensor/autograd.h"
#include "models/graph/graph_model.h"
#include "recompute/checkpoint.h"
#include "sharding/config/module_pattern.h"
#include "sharding/fully_shard.h"
#include "sharding/memory.h"
#include "tests/support/case_json.h"

namespace loom::test::graph_parity {
namespace {

namespace fs = std::filesystem;
using device::MemCategory;

// What is compared, in the tracker's categories and ours.
struct Account {
  std::string_view name;
  std::vector<std::string_view> theirs;
  std::vector<MemCategory> ours;
};

// A gradient of the root counts as Temp there until the end of backward, and as a gradient here.
constexpr double kTolerance = 0.01;
constexpr std::size_t kActivations = 2;
constexpr std::size_t kOptimizerState = 5;
const std::array<Account, 6> kAccounts{{{"shards", {"Sharded Param"}, {sharding::kShard}},
                                        {"gathered", {"Unsharded Param", "Buffer"}, {MemCategory::kParameter}},
                                        {"activations and gradients",
                                         {"Activation", "Temp", "Inputs", "Sharded Grad", "Unsharded Grad"},
                                         {MemCategory::kActivation, MemCategory::kTemporary, MemCategory::kGradient}},
                                        {"gather buffers", {"All Gather"}, {sharding::kGatherBuffer}},
                                        {"reduce buffers", {"Reduce Scatter"}, {sharding::kReduceBuffer}},
                                        {"optimizer state", {"OptState"}, {MemCategory::kOptimizerState}}}};

struct State {
  device::CategoryBytes bytes{};
};

// A wrapped module while a step runs.
struct Watched {
  sharding::ParamGroup* group = nullptr;
  State* peak = nullptr;                                           // of its forward or backward, while it runs
  sharding::TrainingState state = sharding::TrainingState::kIdle;  // of the group, after the last change of memory
  bool in_post_backward = false;
};

std::int64_t total(const device::CategoryBytes& bytes) {
  std::int64_t sum = 0;
  for (const std::int64_t one : bytes) sum += one;
  return sum;
}

class GraphRun {
 public:
  GraphRun(const fs::path& graph, const CaseJson& variant)
      : context_(0, variant.at("world")),
        scope_(context_),
        device_(device::Device::install(context_, {.dry_run = true, .rounding_bytes = 1})),
        world_(comm::make_simulated_world(0, variant.at("world"))),
        program_(
            std::make_shared<const models::GraphProgram>(models::make_graph_program(models::GraphFile(graph).at()))),
        model_(models::make_graph_model(program_)) {
    wrap(variant.at("fsdp2"), variant.at("world"));
    sharding::materialize_shards(*model_);
    for (auto& [path, module] : model_->named_modules()) {
      for (nn::Buffer& buffer : module->own_buffers()) {
        buffer.value = Tensor::empty(buffer.value.shape(), buffer.value.dtype(), MemCategory::kParameter, path);
      }
    }
    optimizer_ = std::make_unique<nn::AdamW>(model_->parameters(), nn::AdamWOptions{.lr = 1e-4, .foreach = true});
    batch_ = data::to_device(models::graph_batch(*program_));
    last_ = now();
    device_.memory().observe_changes([this] { on_change(); });
  }
  ~GraphRun() { device_.memory().observe_changes({}); }

  void step(const std::string& name) {
    states_.clear();
    note_phase(name + "/before");
    device::DeviceMemory& memory = device_.memory();
    memory.reset_peaks();
    data::DataIterator data(batch_);
    Tensor loss;
    {
      data::ForwardResult result = models::graph_forward_step(data, *model_);
      loss = result.loss_func(result.output).loss;
    }
    note_phase(name + "/after_forward");
    loss_bytes_ = loss.nbytes();
    autograd::backward(loss);
    note_phase(name + "/after_backward");
    phases_[name + "/peak_forward_backward"].bytes = memory.stats().by_category_at_peak;
    optimizer_->step();
    note_phase(name + "/after_optimizer");
    phases_[name + "/peak_with_optimizer"].bytes = memory.stats().by_category_at_peak;
    optimizer_->zero_grad();
    note_phase(name + "/after_zero_grad");
  }

  // Whether a wrapped module below the root gets an fp32 tensor of a bf16 model.
  bool casts_inputs() const {
    const models::ModelGraph& graph = program_->graph;
    return graph.compute_dtype == DType::kBF16 && std::ranges::any_of(program_->calls, [&](const auto& call) {
             return call.module > 0 && watched_.contains(graph.modules[static_cast<std::size_t>(call.module)].path) &&
                    std::ranges::any_of(call.arguments, [&](int tensor) {
                      return graph.tensors[static_cast<std::size_t>(tensor)].dtype == DType::kF32;
                    });
           });
  }
  std::int64_t loss_bytes() const { return loss_bytes_; }
  // Of the whole gradient of the last parameter of a wrapped module's group.
  std::int64_t last_gradient_bytes(const std::string& path) const {
    const sharding::Param& last = *watched_.at(path).group->params().back();
    return last.shape().numel() * element_bytes(last.compute_dtype());
  }
  std::int64_t parameters() const { return std::ssize(model_->parameters()); }
  const std::map<std::string, State>& phases() const { return phases_; }
  // By wrapped module and state, of the last step.
  const std::map<std::string, std::map<std::string, std::vector<State>>>& states() const { return states_; }

 private:
  State now() const { return {device_.memory().stats().by_category}; }
  void note_phase(const std::string& phase) { phases_[phase] = now(); }
  void note(const std::string& path, const std::string& state) { note(path, state, now()); }
  void note(const std::string& path, const std::string& state, const State& bytes) {
    states_[path][state].push_back(bytes);
  }
  // Until `watched_[path].peak` is null again.
  void begin_peak(const std::string& path, const std::string& state) {
    note(path, state);
    watched_.at(path).peak = &states_[path][state].back();
  }
  void end_peaks() {
    for (auto& [path, watched] : watched_) watched.peak = nullptr;
  }
  // Post-backward has no hooks: it begins and ends between two changes of memory.
  void on_change() {
    const State state = now();
    for (auto& [path, watched] : watched_) {
      if (watched.peak != nullptr && total(state.bytes) > total(watched.peak->bytes)) *watched.peak = state;
      if (watched.group == nullptr) continue;
      const sharding::TrainingState before = std::exchange(watched.state, watched.group->training_state());
      if (watched.state == before) continue;
      end_post_backward(path, watched, last_);
      watched.in_post_backward = watched.state == sharding::TrainingState::kPostBackward;
      if (watched.in_post_backward) note(path, "Before Post-Backward", last_);
    }
    last_ = state;
  }
  void end_post_backward(const std::string& path, Watched& watched, const State& bytes) {
    if (!std::exchange(watched.in_post_backward, false)) return;
    note(path, "After Post-Backward", bytes);
  }
  static void hook_gradients(const std::vector<Tensor>& tensors, const std::function<void()>& call) {
    for (const Tensor& tensor : tensors) {
      if (!tensor.requires_grad()) continue;
      tensor.register_hook([call](const Tensor&) {
        call();
        return Tensor();
      });
    }
  }
  // The gradients of a module's inputs: their hooks end its peak, and a node between them and FSDP's own, its
  // post-backward.
  void watch_inputs(const std::string& path, nn::Args& args) {
    std::vector<Tensor> inputs;
    for (const Tensor& input : args.tensors()) {
      if (input.requires_grad()) inputs.push_back(input);
    }
    if (inputs.empty()) return;
    has_several_inputs_ |= inputs.size() > 1;
    Watched& watched = watched_.at(path);
    hook_gradients(inputs, [&watched] { watched.peak = nullptr; });
    const std::vector<Tensor> passed = autograd::identity_with_backward(
        "after_post_backward", inputs, [this, path, &watched] { end_post_backward(path, watched, now()); });
    std::size_t next = 0;
    args.map_tensors([&](const Tensor& tensor) { return tensor.requires_grad() ? passed[next++] : tensor; });
  }

  void wrap(const CaseJson& fsdp2, int world) {
    sharding::FullyShardOptions options;
    options.axes = sharding::FsdpAxes::over(*world_, world);
    const auto dtype = [&](const std::string& key) {
      return fsdp2.at(key).is_null() ? std::nullopt : parse_dtype(fsdp2.at(key).get<std::string>());
    };
    options.policy = {dtype("param_dtype"), dtype("reduce_dtype"), std::nullopt, true};
    options.reshard_after_forward = fsdp2.at("reshard_after_forward").get<bool>();
    if (fsdp2.at("sharding_size") != "auto") throw std::runtime_error("sharding_size is not auto");
    if (!fsdp2.at("recompute_modules").is_null()) {
      for (const std::string& path : paths_of(fsdp2.at("recompute_modules"))) {
        recompute::checkpoint(*model_->find(path), {.path = path, .use_reentrant = fsdp2.at("use_reentrant")});
      }
    } else {
      fsdp2.at("use_reentrant").raw();
    }
    std::vector<std::string> paths = paths_of(fsdp2.at("sub_modules_to_wrap"));
    std::ranges::stable_sort(paths, std::greater{},
                             [](const std::string& path) { return std::ranges::count(path, '.'); });
    paths.emplace_back();
    for (const std::string& path : paths) wrap_module(path, options);
  }

  // The paths of patterns that end in, or have once, "{*}".
  std::vector<std::string> paths_of(const CaseJson& patterns) {
    std::vector<std::string> paths;
    for (const CaseJson& pattern : patterns.elements()) {
      const auto text = pattern.get<std::string>();
      const std::size_t brace = text.find("{*}");
      if (brace == std::string::npos) {
        paths.push_back(text);
        continue;
      }
      const std::size_t entries = model_->find(text.substr(0, brace - 1))->children().size();
      for (std::size_t i = 0; i < entries; ++i) {
        paths.push_back(text.substr(0, brace) + std::to_string(i) + text.substr(brace + 3));
      }
    }
    return paths;
  }

  // Hooks inside and outside of FSDP's.
  void wrap_module(const std::string& path, const sharding::FullyShardOptions& options) {
    nn::Module& module = *model_->find(path);
    const auto tensors_of = [](const nn::Value& value) {
      std::vector<Tensor> tensors;
      value.collect_tensors(tensors);
      return tensors;
    };
    module.register_post_hook([this, path, tensors_of](nn::Module&, nn::Value output) {
      if (autograd::in_backward()) return output;
      note(path, "Before Post-Forward");
      hook_gradients(tensors_of(output), [this, path] {
        note(path, "Before Pre-Backward");
        begin_peak(path, "Peak Backward");
        // For these models the tracker ran without its hooks of backward: this state is all that its peak sees.
        if (has_several_inputs_) watched_.at(path).peak = nullptr;
        if (path.empty()) autograd::queue_callback([this] { end_peaks(); });  // before the root's own
      });
      return output;
    });
    watched_[path].group = sharding::fully_shard(module, options).group();
    module.register_pre_hook(
        [this, path](nn::Module&, nn::Args& args) {
          if (autograd::in_backward()) return;
          note(path, "Before Pre-Forward");
          begin_peak(path, "Peak Forward");
          watch_inputs(path, args);
        },
        /*prepend=*/true);
    module.register_pre_hook([this, path](nn::Module&, nn::Args&) {
      if (!autograd::in_backward()) note(path, "After Pre-Forward");
    });
    module.register_post_hook([this, path, tensors_of](nn::Module&, nn::Value output) {
      if (autograd::in_backward()) return output;
      note(path, "After Post-Forward");
      watched_.at(path).peak = nullptr;
      hook_gradients(tensors_of(output), [this, path] { note(path, "After Pre-Backward"); });
      return output;
    });
  }

  RankContext context_;
  RankScope scope_;
  device::Device& device_;
  std::unique_ptr<comm::World> world_;
  std::shared_ptr<const models::GraphProgram> program_;
  std::shared_ptr<nn::Module> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  data::Batch batch_;
  std::int64_t loss_bytes_ = 0;
  std::map<std::string, Watched> watched_;
  bool has_several_inputs_ = false;  // with gradients, a wrapped module
  State last_;                       // after the last change
  std::map<std::string, State> phases_;
  std::map<std::string, std::map<std::string, std::vector<State>>> states_;
};

std::int64_t theirs(const CaseJson& bytes, const Account& account) {
  std::int64_t sum = 0;
  for (const std::string_view category : account.theirs) sum += bytes.value(std::string(category), std::int64_t{0});
  return sum;
}

std::int64_t ours(const State& state, const Account& account) {
  std::int64_t sum = 0;
  for (const MemCategory category : account.ours) sum += state.bytes[category];
  return sum;
}

// Bytes that the tracker counts and a device does not hold, or that no recording of format 0 tells.
struct Known {
  std::int64_t loss = 0;      // the gradient of the loss, which autograd.backward()'s caller holds
  std::int64_t counters = 0;  // AdamW's step counters, on the host but for a CPU mesh
  // Arguments that recompute holds for modules that get and never read them (position_ids; format 0 lists positional
  // arguments alone).
  std::int64_t unread = 0;
  std::int64_t leak = 0;     // of the tracker, a step: after reentrant recompute it keeps some activations
  std::int64_t control = 0;  // inputs that the tracker did not see, since their values were real
  // A wrapped module gets fp32 tensors, which FSDP casts and the recording did not: what is computed from them has
  // another dtype.
  bool casts = false;

  // Whether `missing` bytes of `all` are some of these.
  bool explains(std::size_t account, std::int64_t missing, std::int64_t all) const {
    if (account == kOptimizerState) return missing == 0 || missing == counters;
    if (account != kActivations) return missing == 0;
    missing += control;
    if (casts) return std::abs(static_cast<double>(missing)) <= kTolerance * static_cast<double>(all);
    for (int steps = 0; steps <= (leak > 0 ? 2 : 0); ++steps) {
      for (const std::int64_t a : {std::int64_t{0}, loss}) {
        for (const std::int64_t b : {std::int64_t{0}, unread}) {
          if (missing == a + b + steps * leak) return true;
        }
      }
    }
    return false;
  }
};

class Report {
 public:
  Report(std::string name, Known known) : name_(std::move(name)), known_(known) {}

  // `held`: bytes of a gradient that a variable of the tracker holds there.
  void compare(const std::string& place, const CaseJson& expected, const State& state, std::int64_t held = 0) {
    for (std::size_t i = 0; i < kAccounts.size(); ++i) {
      const std::int64_t want = theirs(expected, kAccounts[i]), have = ours(state, kAccounts[i]);
      const std::int64_t missing = want - have - (i == kActivations ? held : 0);
      count(known_.explains(i, missing, expected.at("Total")), fmt::format("{}: {}", place, kAccounts[i].name), have,
            want);
    }
  }
  // Sums of gradients are out of place there, which a peak may see.
  void compare_peak(const std::string& place, const CaseJson& expected, const State& state) {
    const std::int64_t want = expected.raw().at("Total"), have = total(state.bytes);
    const auto error = std::abs(static_cast<double>(have - want));
    count(error <= kTolerance * static_cast<double>(want), place, have, want);
  }
  // A CPU mesh's AdamW has more temporaries than a device's: there, 27 copies of the shards at once.
  void compare_bound(const std::string& place, const CaseJson& expected, const State& state) {
    const std::int64_t want = expected.raw().at("Total"), have = total(state.bytes);
    count(have <= want, place, have, want);
  }
  void fail(const std::string& text) {
    fmt::print("{} {}\n", name_, text);
    ++different_;
  }
  int different() const { return different_; }
  int compared() const { return compared_; }

 private:
  void count(bool holds, const std::string& place, std::int64_t have, std::int64_t want) {
    ++compared_;
    if (!holds) fail(fmt::format("{}: {}, the tracker has {} ({:+})", place, have, want, have - want));
  }

  const std::string name_;
  const Known known_;
  int compared_ = 0;
  int different_ = 0;
};

void compare_phases(const CaseJson& phases, const GraphRun& run, Report& report) {
  for (const auto& [phase, expected] : phases.items()) {
    const State& have = run.phases().at(phase);
    if (phase.ends_with("peak_forward_backward")) {
      report.compare_peak(phase, expected, have);
    } else if (phase.ends_with("peak_with_optimizer")) {
      const std::string step = phase.substr(0, phase.find('/'));
      const bool is_before = expected == phases.at(step + "/peak_forward_backward").raw();
      is_before ? report.compare_peak(phase, expected, have) : report.compare_bound(phase, expected, have);
    } else {
      report.compare(phase, expected, have);
    }
  }
}

void compare_modules(const CaseJson& modules, const GraphRun& run, Report& report) {
  for (const auto& [path, states] : modules.items()) {
    for (const auto& [state, expected] : states.items()) {
      const auto module = run.states().find(path);
      if (module == run.states().end() || !module->second.contains(state)) {
        report.fail(fmt::format("'{}' {}: never reached", path, state));
        continue;
      }
      const std::vector<State>& have = module->second.at(state);
      if (expected.size() != have.size()) {
        report.fail(fmt::format("'{}' {}: {} times, the tracker has {}", path, state, have.size(), expected.size()));
        continue;
      }
      for (std::size_t i = 0; i < have.size(); ++i) {
        const std::string place = fmt::format("'{}' {}[{}]", path, state, i);
        if (state.starts_with("Peak ")) {
          report.compare_peak(place, expected.at(i), have[i]);
        } else {
          const bool is_after = state == "After Post-Backward";
          report.compare(place, expected.at(i), have[i], is_after ? run.last_gradient_bytes(path) : 0);
        }
      }
    }
  }
}

// What the inputs of a case add.
struct CaseInputs {
  std::int64_t positions = 0;  // of a row: a decoder gives each layer their ids
  std::int64_t control = 0;    // bytes of real values
};

CaseInputs inputs_of(const CaseJson& file) {
  CaseInputs inputs;
  for (const auto& [name, input] : file.at("inputs").items()) {
    std::int64_t elements = 1;
    for (const CaseJson& size : input.at(0).elements()) elements *= size.get<std::int64_t>();
    if (input.at(2) == "control") inputs.control += 8 * elements;
    if (name == "input_ids" && !(file.at("class") == "GPT2LMHeadModel")) inputs.positions = input.at(0).back();
    input.raw();
  }
  return inputs;
}

Known known_of(const CaseJson& variant, const GraphRun& run, const CaseInputs& inputs) {
  Known known;
  known.control = inputs.control;
  known.casts = run.casts_inputs();
  known.loss = run.loss_bytes();
  known.counters = 4 * run.parameters();
  const CaseJson fsdp2 = variant.at("fsdp2");
  if (fsdp2.at("recompute_modules").is_null()) return known;
  known.unread = 8 * inputs.positions;
  if (fsdp2.at("use_reentrant").get<bool>()) known.leak = 16384;
  return known;
}

int run_variant(const fs::path& folder, const CaseJson& variant, const std::string& name, const CaseInputs& inputs,
                int steps) {
  const bool is_fp32 = variant.at("fsdp2").at("param_dtype").is_null();
  GraphRun run(folder / (is_fp32 ? "graph_fp32.json.gz" : "graph.json.gz"), variant);
  for (int step = 0; step < steps; ++step) run.step(fmt::format("step{}", step));
  Report report(name, known_of(variant, run, inputs));
  compare_phases(variant.at("phases"), run, report);
  compare_modules(variant.at("modules"), run, report);
  fmt::print("{}: {} of {} differ\n", name, report.different(), report.compared());
  return report.different();
}

int run_case(const fs::path& folder) {
  const auto text = io::text_of_file(folder / "expected.json.gz", std::size_t{1} << 28);
  const CaseJson file(nlohmann::json::parse(text), folder.filename().string());
  if (!(file.at("optimizer") == "AdamW foreach")) throw std::runtime_error("optimizer is not AdamW foreach");
  const CaseInputs inputs = inputs_of(file);
  int different = 0;
  int number = 0;
  for (const CaseJson& variant : file.at("variants").elements()) {
    different += run_variant(folder, variant, fmt::format("{} {}", folder.filename().string(), number++), inputs,
                             file.at("steps"));
  }
  file.check_all_read({"case", "class", "config", "experts_implementation", "hook_replaced"});
  return different;
}

}  // namespace
}  // namespace loom::test::graph_parity

int main_of_graph_parity(int argc, char** argv) {
  if (argc < 2) return std::cerr << "graph_parity DIR [CASE]\n", 2;
  int different = 0;
  try {
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
      if (argc > 2 && entry.path().filename() != argv[2]) continue;
      if (std::filesystem::exists(entry.path() / "expected.json.gz"))
        different += loom::test::graph_parity::run_case(entry.path());
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return different == 0 ? 0 : 1;
}
