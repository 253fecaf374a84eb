#include "engine/job/rows.h"

namespace loom::job {
namespace {

// The pairs of one part: training, evaluation, last evaluation.
template <std::size_t kPart>
Key part(std::string_view flag, std::string_view about) {
  Key key{.flags = flag, .kind = Kind::kTexts, .type = "PREFIX", .about = about};
  key.get = [](const Job& job) { return to_value(job.data.part_data_path[kPart]); };
  key.set = [](Job& job, const Value& value) { from_value(value, job.data.part_data_path[kPart]); };
  return key;
}

}  // namespace

void add_data_keys(std::vector<Key>& table) {
  add_under(
      "Data",
      {
          texts<&Job::data, &Data::data_path>(
              "--data-path", "PATH",
              "Training data, one or more: files and folders, read as bytes; or prefixes of .bin/.idx pairs of token ids, each with a weight in front where weights are given")
              .is_common()
              .by_content(),
          text<&Job::data, &Data::mm_data>(
              "--mm-data", "FILE", "Conversations with pictures: MindSpeed-MM's data.json, for Qwen-VL and InternVL")
              .by_content()
              .not_in_users_programs(),
          numbers<&Job::data, &Data::image_size>("--image-size", 1,
                                                 "Pictures in each sequence of the plan: a side, or width and height")
              .not_in_train()
              .not_in_users_programs(),
          whole<&Job::data, &Data::images_per_sample>("--images-per-sample", 1, "How many of these")
              .not_in_train()
              .not_in_users_programs(),
          toggle<&Job::data, &Data::bytes_as_tokens>("--bytes-as-tokens",
                                                     "Train on bytes although the model's folder has a tokenizer"),
          whole<&Job::data, &Data::seq_length>("--seq-length", 1, "Tokens in a sequence").is_common().saved(),
          real<&Job::data, &Data::held_out_fraction>(
              "--held-out-fraction", kBelowOne, "Share of the bytes that is held out for evaluation; 0 = no evaluation")
              .saved(),
      },
      table);
  add_under("Data of token ids",
            {
                part<0>("--train-data-path", "Pairs .bin/.idx for training only; replaces --data-path").by_content(),
                part<1>("--valid-data-path", "Pairs .bin/.idx for evaluation only").by_content(),
                part<2>("--test-data-path", "Pairs .bin/.idx for the final evaluation only").by_content(),
                text<&Job::data, &Data::split>("--split", "TEXT",
                                               "Weights of training, validation and test data in --data-path")
                    .saved()
                    .from("969,30,1"),
                text<&Job::data, &Data::data_cache_path>(
                    "--data-cache-path", "DIR", "Folder for the indices of samples; each is built once per host")
                    .from("beside the data")
                    .of_this_rank(),
                text<&Job::data, &Data::tokenizer_name_or_path>(
                    "--tokenizer-name-or-path,--tokenizer-model", "DIR",
                    "Folder of the tokenizer whose ids the data has: tokenizer.json")
                    .saved()
                    .from("the model's, if it has one")
                    .by_content(),
                toggle<&Job::data, &Data::reset_position_ids>("--reset-position-ids",
                                                              "Restart the positions after the end of a document")
                    .saved(),
                toggle<&Job::data, &Data::reset_attention_mask>("--reset-attention-mask",
                                                                "Tokens do not attend to earlier documents")
                    .saved(),
                toggle<&Job::data, &Data::eod_mask_loss>("--eod-mask-loss", "Mask the loss at end-of-document tokens")
                    .saved(),
            },
            table);
  add_under(
      "Data for fine-tuning (--stage)",
      {
          choice<&Job::objective, &Objective::stage>(
              "--stage",
              "Supervised fine-tuning, preferences (dpo, simpo), or a reward model of outcomes or of processes, on what shardloom preprocess wrote")
              .is_common()
              .saved(),
          toggle<&Job::data, &Data::is_instruction_dataset>("--is-instruction-dataset", "The same as --stage sft")
              .saved(),
          toggle<&Job::data, &Data::is_pairwise_dataset>(
              "--is-pairwise-dataset", "Samples have two answers; implied by --stage dpo, simpo and orm"),
          toggle<&Job::data, &Data::neat_pack>(
              "--neat-pack", "Packed samples do not attend to each other; for data made with --neat-pack")
              .saved(),
          toggle<&Job::data, &Data::no_shuffle>("--no-shuffle", "Keep the order of the samples").saved(),
          toggle<&Job::data, &Data::padded_samples>("--padded-samples",
                                                    "Pad each epoch to a multiple of --global-batch-size")
              .saved(),
          toggle<&Job::data, &Data::cut_max_seqlen>("--cut-max-seqlen",
                                                    "Truncate long samples at the end, instead of dropping whole turns")
              .saved(),
          toggle<&Job::data, &Data::no_cut_token>("--no-cut-token",
                                                  "Do not truncate long samples; needs --variable-seq-lengths")
              .saved(),
          toggle<&Job::data, &Data::variable_seq_lengths>(
              "--variable-seq-lengths", "Pad rows to the longest of their micro-batch instead of --seq-length")
              .saved(),
          toggle<&Job::data, &Data::no_pad_to_seq_lengths>("--no-pad-to-seq-lengths",
                                                           "The same as --variable-seq-lengths"),
          whole<&Job::data, &Data::pad_to_multiple_of>("--pad-to-multiple-of", 1,
                                                       "Pad rows of --variable-seq-lengths to a multiple of this")
              .saved(),
      },
      table);
}

}  // namespace loom::job
