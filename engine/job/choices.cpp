#include "engine/job/choices.h"

#include "engine/job/job.h"
#include "engine/objective/stage.h"
#include "engine/train/optimizer_words.h"

namespace loom::job {

// Of enumerations whose words their own room needs too.
#define LOOM_WORDS_OF_ROOM(Choice)                    \
  template <>                                         \
  const ChoiceWords<Choice>& choice_words<Choice>() { \
    return train::style_words<Choice>();              \
  }
LOOM_WORDS_OF_ROOM(train::LrDecayStyle)
LOOM_WORDS_OF_ROOM(train::WsdDecayStyle)
LOOM_WORDS_OF_ROOM(train::WeightDecayIncrStyle)
LOOM_WORDS_OF_ROOM(train::OptimizerKind)
LOOM_WORDS_OF_ROOM(nn::MuonScale)
LOOM_WORDS_OF_ROOM(nn::MuonCoefficients)
#undef LOOM_WORDS_OF_ROOM

template <>
const ChoiceWords<objective::PreferenceLossType>& choice_words() {
  using enum objective::PreferenceLossType;
  static const ChoiceWords<objective::PreferenceLossType> words{
      {"sigmoid", kSigmoid}, {"hinge", kHinge}, {"ipo", kIpo}};
  return words;
}

template <>
const ChoiceWords<objective::Stage>& choice_words() {
  static const ChoiceWords<objective::Stage> words = [] {
    ChoiceWords<objective::Stage> all;
    for (const objective::StageRow& row : objective::stage_rows()) {
      if (row.stage) all.emplace_back(row.word, *row.stage);
    }
    return all;
  }();
  return words;
}

template <>
const ChoiceWords<device::ExecutorKind>& choice_words() {
  using enum device::ExecutorKind;
  static const ChoiceWords<device::ExecutorKind> words{{"threaded", kThreaded}, {"inline", kInline}};
  return words;
}

template <>
const ChoiceWords<sharding::GatherLayout>& choice_words() {
  using enum sharding::GatherLayout;
  static const ChoiceWords<sharding::GatherLayout> words{{"direct", kFast}, {"buffered", kBuffered}};
  return words;
}

template <>
const ChoiceWords<train::KernelSet>& choice_words() {
  using enum train::KernelSet;
  static const ChoiceWords<train::KernelSet> words{{"fast", kFast}, {"pytorch", kPytorch}};
  return words;
}

template <>
const ChoiceWords<DType>& choice_words() {
  static const ChoiceWords<DType> words{{"fp32", DType::kF32}, {"bf16", DType::kBF16}};
  return words;
}

template <>
const ChoiceWords<train::SaveDType>& choice_words() {
  using enum train::SaveDType;
  static const ChoiceWords<train::SaveDType> words{{"as-loaded", kAsLoaded}, {"fp32", kFp32}, {"bf16", kBf16}};
  return words;
}

template <>
const ChoiceWords<checkpoint::Strictness>& choice_words() {
  using enum checkpoint::Strictness;
  static const ChoiceWords<checkpoint::Strictness> words{
      {"raise_all", kRaiseAll}, {"assume_ok_unexpected", kAssumeOkUnexpected}, {"log_all", kLogAll}};
  return words;
}

template <>
const ChoiceWords<train::OnSaveError>& choice_words() {
  using enum train::OnSaveError;
  static const ChoiceWords<train::OnSaveError> words{{"stop", kStop}, {"continue", kContinue}};
  return words;
}

template <>
const ChoiceWords<LogLevel>& choice_words() {
  using enum LogLevel;
  static const ChoiceWords<LogLevel> words{
      {"debug", kDebug}, {"info", kInfo}, {"warning", kWarning}, {"error", kError}};
  return words;
}

template <>
const ChoiceWords<log::LogFormat>& choice_words() {
  using enum log::LogFormat;
  static const ChoiceWords<log::LogFormat> words{{"short", kShort}, {"megatron", kMegatron}};
  return words;
}

template <>
const ChoiceWords<observe::ProfileLevel>& choice_words() {
  using enum observe::ProfileLevel;
  static const ChoiceWords<observe::ProfileLevel> words{{"level0", kLevel0}, {"level1", kLevel1}, {"level2", kLevel2}};
  return words;
}

template <>
const ChoiceWords<models::RecomputeGranularity>& choice_words() {
  using enum models::RecomputeGranularity;
  static const ChoiceWords<models::RecomputeGranularity> words{
      {"none", kNone}, {"full", kFull}, {"selective", kSelective}};
  return words;
}

template <>
const ChoiceWords<models::RecomputeMethod>& choice_words() {
  using enum models::RecomputeMethod;
  static const ChoiceWords<models::RecomputeMethod> words{{"none", kNone}, {"uniform", kUniform}, {"block", kBlock}};
  return words;
}

template <>
const ChoiceWords<objective::LossReduction>& choice_words() {
  using enum objective::LossReduction;
  static const ChoiceWords<objective::LossReduction> words{
      {"per_token", kPerToken}, {"micro_batch", kMicroBatch}, {"per_sample", kPerSample}};
  return words;
}

template <>
const ChoiceWords<train::ContextParallelAlgo>& choice_words() {
  using enum train::ContextParallelAlgo;
  static const ChoiceWords<train::ContextParallelAlgo> words{{"megatron_cp_algo", kRing},
                                                             {"ulysses_cp_algo", kUlysses},
                                                             {"hybrid_cp_algo", kHybrid},
                                                             {"kvallgather_cp_algo", kKvAllGather}};
  return words;
}

template <>
const ChoiceWords<train::PipelineSplit>& choice_words() {
  using enum train::PipelineSplit;
  static const ChoiceWords<train::PipelineSplit> words{{"equal", kEqual}, {"auto", kAuto}};
  return words;
}

template <>
const ChoiceWords<sharding::TokenDispatcher>& choice_words() {
  using enum sharding::TokenDispatcher;
  static const ChoiceWords<sharding::TokenDispatcher> words{
      {"alltoall", kAllToAll}, {"alltoall_seq", kAllToAll}, {"flex", kAllToAll}, {"allgather", kAllGather}};
  return words;
}

template <>
const ChoiceWords<models::LoadBalancing>& choice_words() {
  using enum models::LoadBalancing;
  static const ChoiceWords<models::LoadBalancing> words{
      {"none", kNone}, {"softmax_topk", kNone}, {"aux_loss", kAuxLoss}, {"seq_aux_loss", kSeqAuxLoss}};
  return words;
}

template <>
const ChoiceWords<models::TokenDropPolicy>& choice_words() {
  using enum models::TokenDropPolicy;
  static const ChoiceWords<models::TokenDropPolicy> words{{"probs", kProbs}, {"position", kPosition}};
  return words;
}

template <>
const ChoiceWords<sharding::RecomputeKeep>& choice_words() {
  using enum sharding::RecomputeKeep;
  static const ChoiceWords<sharding::RecomputeKeep> words{{"none", kNone},
                                                          {"attention", kAttention},
                                                          {"selected_ops", kSelectedOps},
                                                          {"selected_ops_needed", kSelectedOpsNeeded}};
  return words;
}

}  // namespace loom::job
