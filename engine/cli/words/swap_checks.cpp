#include "engine/cli/words/swap_checks.h"

#include <algorithm>

namespace loom::cli {
namespace {

constexpr std::int64_t kMostMib = std::int64_t{1} << 40;  // bytes are whole numbers of 64 bits

// "a,b" and "a b" alike.
std::vector<std::string> split_words(const std::vector<std::string>& given) {
  std::vector<std::string> words;
  for (const std::string& text : given) {
    std::size_t begin = 0;
    while (begin <= text.size()) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      const std::string word = text.substr(begin, end - begin);
      if (word.empty()) config_error("--swap-modules is {}, with an empty name in it; use a,b,c", shown_text(text));
      if (std::ranges::find(words, word) == words.end()) words.push_back(word);
      begin = end + 1;
    }
  }
  return words;
}

}  // namespace

void settle_swapped_recompute(train::ParallelOptions& parallel, offload::SwapOptions& swap) {
  models::LayerRecompute& layers = parallel.recompute_layers;
  const bool alone = layers.granularity == models::RecomputeGranularity::kNone && !parallel.recompute_activations &&
                     layers.method == models::RecomputeMethod::kNone;
  if (!swap.swap_attention || !alone) return;
  swap.swap_recompute_mlps = layers.num_layers;
  layers.num_layers = 0;
}

void settle_swap(const Command& app, bool plans, job::Job& a) {
  a.swap.swap_modules = split_words(a.swap.swap_modules);
  if (given(app, "--swap-modules") && !a.swap.swap_attention) {
    config_error("--swap-modules is given, but --swap-attention is not, so nothing is swapped; add it");
  }
  if (a.swap.smart_swap_device_size && !a.swap.smart_swap) {
    config_error("--smart-swap-device-size is {}, but --smart-swap is not given, so nothing is chosen; add it",
                 *a.swap.smart_swap_device_size);
  }
  if (a.swap.smart_swap_device_size.value_or(0) > kMostMib) {
    config_error("--smart-swap-device-size is {} MiB; use at most {}", *a.swap.smart_swap_device_size, kMostMib);
  }
  if (a.swap.smart_swap && a.swap.swap_attention) {
    config_error("--smart-swap and --swap-attention are both given, and both say what is swapped; remove one of them");
  }
  if (a.swap.smart_swap && !plans && !a.swap.smart_swap_device_size) {
    config_error(
        "--smart-swap is given without --smart-swap-device-size, and the memory of this machine is no device's; give "
        "the MiB that a step has to fit");
  }
  if (a.swap.swap_attention && !a.kernels.fused.flash_attn) {
    config_error(
        "--swap-attention is given, but attention is composed of products and softmax, whose weights would be swapped "
        "too; add --use-flash-attn, or use --kernels fast");
  }
}

void check_swap_search(const PlanArguments& a) {
  if (!a.train.swap.smart_swap) return;
  if (!a.sweep && a.fit == PlanArguments::Fit::kNothing) return;
  config_error("--smart-swap and {} are both given, and each is a search of its own; remove one of them",
               a.sweep ? "--sweep" : "--fit");
}

}  // namespace loom::cli
