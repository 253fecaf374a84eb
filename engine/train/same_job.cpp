#include "engine/train/same_job.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <system_error>

#include "engine/core/digest.h"
#include "engine/core/shown_text.h"
#include "engine/data/content.h"
#include "engine/nn/make_rank.h"
#include "models/hub/model_source.h"
#include "models/lora/adapter_folder.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::train {
namespace {

using Entries = std::vector<comm::SaidEntry>;

template <class T>
void add(Entries& entries, std::string key, const T& value) {
  entries.push_back({std::move(key), fmt::format("{}", value)});
}

// One form for each meaning: 1e-6 and 1.0e-6 are one number.
std::string meaning(const config::Value& value) {
  if (const auto flag = value.boolean()) return *flag ? "true" : "false";
  if (const auto whole = value.whole()) return fmt::format("{}", *whole);
  if (const auto number = value.number()) return fmt::format("{}", *number);
  return escaped(value.json());
}

void add_values(Entries& entries, const config::Value& value) {
  if (!value.is_mapping() && !value.is_list()) return add(entries, "model " + value.path(), meaning(value));
  for (const config::Value& item : value.items()) add_values(entries, item);
}

void add_configuration(Entries& entries, const models::ModelOptions& model) {
  if (models::has_configuration(model)) add_values(entries, models::configuration_of(model).value());
}

void add_parameters(Entries& entries, const TrainSections& arguments, const PretrainCallbacks& callbacks,
                    const Tuning& tuning) {
  const nn::ProbeRank rank;
  const auto model = provide_tuned_model(arguments, callbacks, tuning);
  add(entries, "the model's class", models::sharded_module(*model).type_name());
  for (auto& [path, slot] : model->named_slots()) {
    const Tensor& tensor = slot->value;
    entries.push_back({"parameters",
                       fmt::format("{} {} {}{}", escaped(path), to_string(tensor.shape()), loom::name(tensor.dtype()),
                                   tensor.requires_grad() ? "" : ", frozen"),
                       true});
  }
}

// The meshes follow from it: ranks that differ would wait for one another where the first of them is made.
void add_sharding(Entries& entries, const TrainingInputs& inputs) {
  if (!inputs.fsdp2) return;
  for (const sharding::ConfigEntry& entry : inputs.fsdp2->entries) {
    entries.push_back({"fsdp2_config.yaml " + entry.key, entry.value, entry.is_item});
  }
}

std::string hexadecimal(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

}  // namespace

void add_weights(Entries& entries, const io::HfWeights& weights, std::string_view of) {
  constexpr std::size_t kEndBytes = 4096;
  for (const std::string& name : weights.names()) {
    const io::StoredTensor& tensor = weights.at(name);
    const std::size_t count = std::min(kEndBytes, tensor.bytes.size());
    std::uint64_t found = digest(tensor.bytes.data(), count);
    found = digest(tensor.bytes.last(count).data(), count, found);
    add(entries, fmt::format("{} of '{}'", of, shown_text(name)),
        fmt::format("{} bytes with the digest {}", tensor.bytes.size(), hexadecimal(found)));
  }
}

void add_adapter(Entries& entries, const models::AdapterFolder& folder) {
  for (const auto& [path, tensor] : folder.tensors()) {
    add(entries, fmt::format("adapter's '{}'", shown_text(path)),
        fmt::format("{} bytes with the digest {}", tensor->bytes.size(),
                    hexadecimal(digest(tensor->bytes.data(), tensor->bytes.size()))));
  }
}

namespace {

std::uint64_t digest_of(const nn::Value& value) {
  std::uint64_t found = kDigestSeed;
  value.map_tensors([&](const Tensor& tensor) {
    const bool has_bytes = !tensor.is_meta() && tensor.raw() != nullptr;
    if (has_bytes) found = digest(tensor.raw(), static_cast<std::size_t>(tensor.nbytes()), found);
    return tensor;
  });
  return found;
}

void add_content(Entries& entries, std::string key, const std::vector<std::filesystem::path>& paths) {
  const data::Content content = data::content_of(paths);
  add(entries, std::move(key),
      fmt::format("{} bytes in {} files with the digest {}", content.bytes, content.files,
                  hexadecimal(content.digest)));
}

void add_file(Entries& entries, const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::exists(file, error)) add_content(entries, file.filename().string(), {file});
}

// Kernels that differ give ranks of one model different bits.
void add_libraries(Entries& entries, const custom::Libraries& libraries) {
  for (std::size_t i = 0; i < libraries.size(); ++i) {
    add_content(entries, fmt::format("--custom-op-library, content of library {}", i), {libraries[i]->path()});
  }
}

void add_tokenizer(Entries& entries, const data::DataOptions& data, const models::ModelOptions& model) {
  const auto& folder = data.tokenizer_name_or_path ? data.tokenizer_name_or_path : model.init_from_hf_path;
  if (folder) add_file(entries, *folder / "tokenizer.json");
}

void add_data(Entries& entries, const data::DataOptions& data_options, const ScheduleOptions& schedule,
              const data::DataLoaders& loaders) {
  add(entries, "--data-path, weights", fmt::format("{}", fmt::join(data::data_weights(data_options), " ")));
  if (const auto inputs = data::data_inputs(data_options); !inputs.empty()) {
    add_content(entries, data_options.mm_data ? "--mm-data, content" : "--data-path, content", inputs);
    if (!data_options.mm_data) return;
  }
  std::vector<std::int64_t> samples(static_cast<std::size_t>(schedule.micro_batch_size));
  std::iota(samples.begin(), samples.end(), 0);
  const nn::ProbeRank rank;
  const data::DataLoader& loader = loaders.train ? loaders.train : loaders.valid ? loaders.valid : loaders.test;
  for (const auto& [name, value] : loader(samples).values) {
    add(entries, fmt::format("'{}' of the first micro-batch", shown_text(name)),
        fmt::format("the digest {}", hexadecimal(digest_of(value))));
  }
}

}  // namespace

std::vector<comm::SaidEntry> job_entries(const TrainSections& arguments, const PretrainCallbacks& callbacks,
                                         const TrainingInputs& inputs) {
  Entries entries;
  add_configuration(entries, arguments.model);
  add_sharding(entries, inputs);
  add_parameters(entries, arguments, callbacks, inputs.tuning);
  if (inputs.weights) add_weights(entries, *inputs.weights);
  if (inputs.reference_weights) add_weights(entries, *inputs.reference_weights, "reference weights");
  if (inputs.tuning.lora && inputs.tuning.lora->load) {
    add_adapter(entries, models::AdapterFolder(*inputs.tuning.lora->load));
    add_file(entries, *inputs.tuning.lora->load / models::kAdapterConfigFile);
  }
  add_libraries(entries, inputs.custom_operators);
  add_tokenizer(entries, arguments.data, arguments.model);
  add_data(entries, arguments.data, arguments.schedule, inputs.objective.loaders);
  return entries;
}

void check_same_job(const std::vector<comm::SaidEntry>& entries, comm::ProcessGroup& everyone) {
  comm::check_same_entries(entries, everyone,
                           {.tag = "agreement on the job",
                            .differ = "ranks do not train the same",
                            .advice = "start every rank with the same flags, model and data"});
}

}  // namespace loom::train
