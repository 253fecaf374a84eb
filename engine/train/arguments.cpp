#include "engine/train/arguments.h"

#include "engine/train/sections.h"

namespace loom::train {

TrainArguments::TrainArguments(const TrainSections& sections)
    : ranks(sections.launch.ranks),
      model_config(sections.model.model_config),
      init_from_hf_path(sections.model.init_from_hf_path),
      data_path(sections.data.data_path),
      seq_length(sections.data.seq_length),
      bytes_as_tokens(sections.data.bytes_as_tokens),
      seed(sections.data.seed),
      micro_batch_size(sections.schedule.micro_batch_size),
      global_batch_size(sections.schedule.global_batch_size),
      train_iters(sections.schedule.train_iters),
      eval_iters(sections.schedule.eval_iters),
      lr(sections.schedule.lr),
      use_torch_fsdp2(sections.parallel.use_torch_fsdp2),
      save(sections.checkpoint.save),
      data(sections.data),
      job(sections) {}

}  // namespace loom::train
