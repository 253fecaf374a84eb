// Shardloom: what a training program of one's own needs - its main (cli::pretrain), modules, operators, the mixins, the
// model hub, sharding. Installed as shardloom/shardloom.h.
#pragma once

#include "engine/cli/pretrain.h"
#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/custom_op/custom_op.h"
#include "engine/data/byte_batches.h"
#include "engine/nn/functional.h"
#include "engine/nn/functional_grad.h"
#include "engine/nn/init.h"
#include "engine/nn/layers.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/general.h"
#include "models/hf/transformers_model.h"
#include "models/hub/model_hub.h"
#include "models/mixin/activation_swap.h"
#include "models/mixin/fsdp2_mixin.h"
#include "models/mixin/multimodal_module.h"
#include "models/mixin/weight_init_mixin.h"
#include "recompute/checkpoint.h"
#include "sharding/fully_shard.h"
#include "sharding/parallelize.h"
