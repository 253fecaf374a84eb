// program_main: the whole shardloom program (train, plan, generate, preprocess, compare, convert, inspect) as a
// function.
//
//   const models::RegisterModel kMine({"my_model"}, [](const models::ConfigReader& config) { ... });
//   int main(int argc, char** argv) { return loom::train::program_main(argc, argv); }
//
// Models   a program that registers models of its own has them in its plan command: --model-config names one by
//          model_id, architectures or model_type (models/hub/model_hub.h). It takes token ids and returns logits.
// Errors   in one line on stderr. Exit status: 0 done, 1 a run failed or lost an output, or compared runs differ,
//          2 the command line or a file of the user's is wrong, 3 a planned step does not fit on the device, 128 +
//          signal a run that was stopped.
// Threads  the process's main thread.
#pragma once

namespace loom::cli {

int program_main(int argc, const char* const* argv);

}  // namespace loom::cli
