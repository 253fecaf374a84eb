// DecoderRanks: a decoder of a Hugging Face folder on the ranks of `generate` and `chat`. Private to engine/talk.
//
// Order    construction finds every error in the folder's files; run() starts the ranks.
// Ranks    threads of this process, or the processes of an MPI launcher. Above one, each layer is sharded over all.
// LoRA     --lora-load: the adapters beside the frozen weights, as in training.
// Threads  the process's main thread; `main` runs on each rank's.
// Errors   ConfigError for the folder, an adapter that does not fit, processes that were started differently.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "engine/comm/process_group.h"
#include "engine/comm/same_entries.h"
#include "engine/formats/safetensors/hf_weights.h"
#include "engine/talk/options.h"
#include "models/generation/session.h"
#include "models/lora/lora_options.h"

namespace loom::talk {

// The flags' choice of sampling.
models::SamplingOptions sampling_of(const DecodingArguments& arguments);

class DecoderRanks {
 public:
  // `config` is the folder's. Both outlive the object.
  DecoderRanks(const DecodingArguments& arguments, const models::DecoderConfig& config);

  // "Qwen2ForCausalLM of 12176 parameters on 2 ranks".
  std::string about() const;

  using Main = std::function<void(models::GenerationSession& session, comm::World& world)>;
  // `same`: values that all processes must share, beside the model and the flags of both commands. `patience`:
  // how long a rank waits for another one.
  void run(std::vector<comm::SaidEntry> same, std::chrono::milliseconds patience, const Main& main) const;

 private:
  std::shared_ptr<nn::Module> build() const;
  void fill(nn::Module& model, comm::World& world) const;
  std::vector<comm::SaidEntry> entries(std::vector<comm::SaidEntry> same) const;

  const DecodingArguments& arguments_;
  const models::DecoderConfig& config_;
  const io::HfWeights weights_;
  std::optional<models::LoraOptions> lora_;
  std::string about_;
};

}  // namespace loom::talk
