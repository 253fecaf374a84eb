#include "offload/activation_swap.h"

#include <utility>

#include "engine/core/error.h"
#include "offload/block_call.h"

namespace loom::offload {
namespace {

// That a module is a block, of which kinds.
struct Mark {
  std::vector<SwapWhat> kinds;
};

// The blocks of one swap_activations(): which call came last, and which one runs.
struct Chain {
  std::weak_ptr<BlockCall> last;
  std::shared_ptr<BlockCall> running;
};

// The chains that a module is inside of.
struct InsideOf {
  std::vector<std::shared_ptr<Chain>> chains;
};

std::shared_ptr<BlockCall> begin_call(Chain& chain, const std::shared_ptr<const BlockFacts>& facts,
                                      const nn::Args& args) {
  auto before = chain.last.lock();
  if (before != nullptr && before->number() > facts->number) before = nullptr;
  auto call = std::make_shared<BlockCall>(facts, args, before);
  chain.last = call;
  return call;
}

// The call that runs, for the time of it.
class RunningBlock {
 public:
  RunningBlock(Chain& chain, std::shared_ptr<BlockCall> call)
      : chain_(chain), before_(std::exchange(chain.running, std::move(call))) {}
  ~RunningBlock() { chain_.running = std::move(before_); }
  RunningBlock(const RunningBlock&) = delete;
  RunningBlock& operator=(const RunningBlock&) = delete;

 private:
  Chain& chain_;
  std::shared_ptr<BlockCall> before_;
};

void wrap_block(const std::shared_ptr<Chain>& chain, const std::shared_ptr<const BlockFacts>& facts) {
  nn::Module& module = *facts->block.module;
  module.wrap_call([chain, facts](const nn::Module::Run& inner, nn::Args args) {
    if (!autograd::grad_enabled()) return inner(std::move(args));
    const auto call = begin_call(*chain, facts, args);
    const RunningBlock running(*chain, call);
    const autograd::SavedTensorHooksScope scope(call->hooks());
    return inner(std::move(args));
  });
}

void wrap_inside(const std::shared_ptr<Chain>& chain, nn::Module& module) {
  auto inside_of = module.attachment<InsideOf>();
  if (inside_of == nullptr) {
    module.attach(inside_of = std::make_shared<InsideOf>());
    module.wrap_call([&module](const nn::Module::Run& inner, nn::Args args) {
      const SavingInside scope(module);
      return inner(std::move(args));
    });
  }
  inside_of->chains.push_back(chain);
}

void check_block(const SwapBlock& block, SwapWhat what) {
  if (!block.module->has_forward()) {
    config_error("swap of '{}': a {} has no forward of its own; name its items: '{}.{{*}}'", block.path,
                 block.module->type_name(), block.path);
  }
  auto mark = block.module->attachment<Mark>();
  if (mark == nullptr) {
    mark = std::make_shared<Mark>();
    block.module->attach(mark);
  }
  for (const SwapWhat kind : mark->kinds) {
    if (kind != what) continue;
    config_error("swap of '{}' was requested twice; each module can be swapped once", block.path);
  }
  mark->kinds.push_back(what);
}

}  // namespace

SavingInside::SavingInside(const nn::Module& module) {
  const auto inside_of = module.attachment<InsideOf>();
  if (inside_of == nullptr) return;
  for (const auto& chain : inside_of->chains) {
    if (chain->running == nullptr) continue;
    chain->running->enter();
    calls_.push_back(chain->running);
  }
}

SavingInside::~SavingInside() {
  for (const auto& call : calls_) call->leave();
}

bool is_swapped(const nn::Module& module) { return module.attachment<Mark>() != nullptr; }

void swap_activations(std::span<const SwapBlock> blocks, const SwapRules& rules) {
  const auto chain = std::make_shared<Chain>();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    check_block(blocks[i], rules.what);
    auto facts = std::make_shared<BlockFacts>(
        BlockFacts{.block = blocks[i], .rules = rules, .number = i, .last = i + 1 == blocks.size(), .parameters = {}});
    for (const auto& [path, slot] : blocks[i].module->named_slots()) facts->parameters.push_back(slot);
    for (nn::Module* module : blocks[i].inside) wrap_inside(chain, *module);
    wrap_block(chain, facts);
  }
}

}  // namespace loom::offload
