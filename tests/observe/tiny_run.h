// A run of four steps by the program's own words: 2 ranks as threads, threaded streams; a model of an embedding and two
// linear layers, each a group.
#pragma once

#include <algorithm>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/cli/pretrain.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "tests/support/files.h"
#include "tests/support/trace_reader.h"

namespace loom::test {

using Words = std::vector<std::string>;

constexpr std::int64_t kTinyVocab = 8;
constexpr std::int64_t kTinyWidth = 16;

class TinyLm : public nn::Module {
 public:
  TinyLm() {
    register_module("embed", std::make_shared<nn::Embedding>(kTinyVocab, kTinyWidth, 0.5));
    register_module("body", std::make_shared<nn::Linear>(kTinyWidth, kTinyWidth, false, 0.5));
    register_module("head", std::make_shared<nn::Linear>(kTinyWidth, kTinyVocab, false, 0.5));
  }
  std::string_view type_name() const override { return "TinyLm"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    return (*find("head"))((*find("body"))((*find("embed"))(args.tensor(0))));
  }
};

inline data::Batch tiny_batch(std::span<const std::int64_t> samples) {
  const Shape shape{static_cast<std::int64_t>(samples.size())};
  const Tensor ids = Tensor::host(shape, DType::kI64, "ids");
  const Tensor targets = Tensor::host(shape, DType::kI64, "targets");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ids.data<std::int64_t>()[i] = samples[i] % kTinyVocab;
    targets.data<std::int64_t>()[i] = (3 * samples[i] + 1) % kTinyVocab;
  }
  return {{{"ids", ids}, {"targets", targets}}};
}

inline data::ForwardResult tiny_step(data::DataIterator& data, nn::Module& model) {
  const data::Batch batch = data.next();
  return {model(batch["ids"]),
          [targets = batch["targets"]](const nn::Value& logits) { return ops::cross_entropy(logits, targets); }};
}

inline train::PretrainCallbacks tiny_callbacks() {
  return {[](const train::TrainArguments&) {
            return data::DataLoaders{.train = tiny_batch, .valid = tiny_batch, .about = "numbers"};
          },
          [](const train::TrainArguments&) { return std::make_shared<TinyLm>(); }, tiny_step};
}

class TinyRun : public ::testing::Test {
 protected:
  TinyRun() { write_file(folder / "fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [embed, body, head]\n"); }

  // Four steps, evaluated after each.
  void train(const Words& more) {
    Words words{"tiny", "--seq-length", "1", "--global-batch-size", "2", "--lr", "0.1", "--train-iters", "4"};
    words.insert(words.end(), {"--eval-interval", "1", "--eval-iters", "1", "--nproc-per-node", "2"});
    words.insert(words.end(), {"--use-torch-fsdp2", "--fsdp2-config-path", (folder / "fsdp2.yaml").string()});
    words.insert(words.end(), {"--metrics-path", (folder / "metrics.jsonl").string()});
    words.insert(words.end(), more.begin(), more.end());
    if (std::ranges::find(more, "--profile") != more.end()) {
      words.insert(words.end(), {"--profile-save-path", (folder / "profile").string()});
    }
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    const launch::Start context{.cores = 2, .processes = 0, .local_processes = 0};
    std::ostringstream out;
    cli::pretrain(
        std::get<job::Job>(cli::parse_program_arguments(static_cast<int>(argv.size()), argv.data(), {}, context)),
        tiny_callbacks(), out);
  }
  std::string text(const std::string& file) const { return read_file(folder / "profile" / file); }
  std::vector<nlohmann::json> metrics() const {
    std::vector<nlohmann::json> steps;
    std::istringstream lines(read_file(folder / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) steps.push_back(nlohmann::json::parse(line));
    return steps;
  }

  const std::filesystem::path folder = fresh_folder();
};

}  // namespace loom::test
