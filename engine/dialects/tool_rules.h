// What rows of several dialects say together, and words for rows. Private to engine/dialects.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/dialects/reading.h"
#include "engine/dialects/resolved.h"

namespace loom::dialects {

// --- Rules of several dialects

// hook_modules: no effect there where no group lies inside a hook module.
void derive_hook_modules(Reading& reading, std::string_view hooks, std::string_view groups);
// prefetch_order: list, where the list may differ from the order of registration.
void derive_prefetch_order(Reading& reading, std::string_view groups, std::string_view forward,
                           std::string_view backward);
// Of degrees; the largest number where the product does not fit.
std::int64_t product(std::initializer_list<std::int64_t> degrees);
// PyTorch's ring, in the words of torchtitan and accelerate: its ranks, at least 1, and how keys and values rotate.
std::int64_t derive_ring(Reading& reading, std::string_view size, std::string_view rotate);
std::optional<std::string> ring_size(const Resolved& resolved);
std::optional<std::string> ring_rotation(const Resolved& resolved);

// --micro-batch-size (set by its row) and --global-batch-size: micro x ranks x accumulation. `shared`: how many ranks
// read the same samples.
void derive_batch(Reading& reading, std::string_view micro, std::string_view accumulation, std::int64_t shared = 1);
// --train-iters of a number of epochs, where the number of samples is known.
void derive_epochs(Reading& reading, std::string_view key, double epochs);
// Samples of the pairs .bin/.idx that the job reads; none where they are not there.
std::optional<std::int64_t> samples_of(const Reading& reading);
bool names_norms_and_biases(const job::Texts& modules, const job::Texts& parameters);
bool has_hf_weights(const std::filesystem::path& folder);
// Fills in the class of the model and whether it is built, from its registered name or from the folder's config.json.
void find_model_class(Reading& reading, const std::string& id, const std::string& folder, std::string_view key);
// --data-path where the data set is pairs; else a line with the `shardloom preprocess` that makes them.
void derive_dataset(Reading& reading, std::string_view dataset, std::string_view folder,
                    std::string_view chat_template);

// --- Words for writing

using Said = std::optional<std::string>;

// A key of fsdp2_config.yaml as YAML; none where it is the default.
Said key_text(const Resolved& resolved, std::string_view name);
// sharding_size as a number.
int ranks_that_shard(const Resolved& resolved);
// The patterns of sub_modules_to_wrap, without their groups and choices, which other dialects cannot say.
Said wrapped_text(const Resolved& r);
// Only where it is true or false.
Said boolean_text(const Said& text);
Said switch_text(bool on);
// features.loss_cfg.loss_type of the job's --loss-reduction.
Said loss_type_text(const Resolved& resolved);
// The names without decay; `both` where norms and biases have none.
Said no_decay_text(const Resolved& resolved, std::string_view both, const job::Texts& names);
// training.lr_scaling_plan of --lr-scaling-plan.
Said lr_scaling_text(const Resolved& resolved);
Said chunked(const Resolved& resolved, std::string_view name);
Said model_text(const Resolved& resolved);
Said attention_text(const Resolved& resolved);
Said data_text(const Resolved& resolved);
Said stage_text(const Resolved& resolved, const std::vector<std::pair<std::string_view, std::string_view>>& words,
                std::string_view without);
Said decay_ratio(const Resolved& resolved);
Said accumulation_text(const Resolved& resolved);
Said save_format(const Resolved& resolved);
Said of_muon(const Resolved& resolved, std::string_view flag);
Said of_profile(const Resolved& resolved, std::string_view flag);

}  // namespace loom::dialects
