// Promise: a launch script of another tool becomes one that starts shardloom train, with nothing changed but what has
//          to be, and each change said with its line; a script is never run.
// World:   scripts as text.
#include "engine/dialects/adapt.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::dialects {
namespace {

using ::testing::HasSubstr;

std::string adapted_text(const std::string& script) { return adapt_script(script, "run.sh").text; }

std::string changes_of(const std::string& script) {
  std::string text;
  for (const ScriptChange& change : adapt_script(script, "run.sh").changes) {
    text += std::to_string(change.line) + ": " + change.text + "\n";
  }
  return text;
}

std::string refused_script(const std::string& script) {
  return test::message_of<ConfigError>([&] { adapt_script(script, "run.sh"); });
}

const std::string kTorchrun = R"(#!/bin/bash
source /usr/local/Ascend/ascend-toolkit/set_env.sh
# torchrun in a comment
NPUS_PER_NODE=8
DISTRIBUTED_ARGS="
    --nproc_per_node $NPUS_PER_NODE \
    --nnodes 1
"
GPT_ARGS='--lr 1e-5 --bf16'
logfile=$(date +%Y%m%d)_$(date +%H%M%S)
torchrun $DISTRIBUTED_ARGS pretrain_vlm.py \
    $GPT_ARGS \
    --distributed-backend nccl \
    2>&1 | tee logs/train_${logfile}.log
)";

TEST(Adapt, TorchrunIsShardloomTrainAndAllElseStays) {
  std::string expected = kTorchrun;
  expected.replace(expected.find("source "), 0, "[ ! -e /usr/local/Ascend/ascend-toolkit/set_env.sh ] || ");
  expected.replace(expected.find("torchrun $"), 8, "shardloom train");
  expected.erase(expected.find(" pretrain_vlm.py"), 16);
  EXPECT_EQ(adapted_text(kTorchrun), expected);
  EXPECT_EQ(changes_of(kTorchrun),
            "2: /usr/local/Ascend/ascend-toolkit/set_env.sh is sourced only where it exists\n"
            "11: torchrun is shardloom train\n"
            "11: pretrain_vlm.py is removed: shardloom train is the program\n");
}

TEST(Adapt, AConfigurationFileMovesToTheFront) {
  EXPECT_EQ(adapted_text("torchrun $D train_fsdp2.py configs/qwen3.yaml --training.lr 1e-4\n"),
            "shardloom train configs/qwen3.yaml $D --training.lr 1e-4\n");
  EXPECT_EQ(adapted_text("msrun \\\n  $D \\\n  mindspeed_mm/fsdp/train/trainer.py \\\n  a.yaml | tee log\n"),
            "shardloom train a.yaml \\\n  $D \\\n   \\\n   | tee log\n");
}

TEST(Adapt, LaunchersHaveManyNames) {
  EXPECT_EQ(adapted_text("A=1 nohup /usr/bin/python3 -m torch.distributed.run --nproc_per_node 2 t.py --lr 1 &\n"),
            "A=1 nohup shardloom train --nproc_per_node 2 --lr 1 &\n");
  EXPECT_EQ(
      adapted_text("accelerate launch --config_file fsdp.yaml --num_processes=4 --main_process_port 1 t.py --lr 1\n"),
      "shardloom train fsdp.yaml --nproc-per-node=4 --master-port 1 --lr 1\n");
}

TEST(Adapt, TextIsNoCommand) {
  const std::string quoted = "echo 'torchrun a.py'\ncat <<EOF\ntorchrun b.py\nEOF\n";
  EXPECT_EQ(adapted_text(quoted + "torchrun c.py\n"), quoted + "shardloom train\n");
}

TEST(Adapt, WhatCannotBeReadIsRefusedWithItsLine) {
  EXPECT_THAT(refused_script("echo a\n"),
              HasSubstr("run.sh: no line starts torchrun, msrun, accelerate launch or python -m"));
  EXPECT_EQ(refused_script("echo\ntorchrun $ARGS $PROGRAM\n"),
            "run.sh:2: torchrun starts no Python program that is written out; write its name there");
  EXPECT_EQ(refused_script("torchrun 'a.py\n"), "run.sh:1: ' is not closed; close it");
  EXPECT_EQ(refused_script("x=$(torchrun a.py\n"), "run.sh:1: $( is not closed; close it");
}

}  // namespace
}  // namespace loom::dialects
