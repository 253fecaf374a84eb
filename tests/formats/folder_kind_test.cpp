// Promise: a folder of another kind than the wanted one is named with the next step; a folder that may be of the kind
//          is not.
#include "engine/formats/folder_kind.h"

#include <gmock/gmock.h>

#include "tests/support/files.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;
using test::fresh_folder;
using test::write_file;
using ::testing::StartsWith;

struct Folders {
  const fs::path root = fresh_folder();
  const fs::path model = made("model/config.json");
  const fs::path adapters = made("adapters/adapter_config.json");
  const fs::path checkpoint = made("checkpoint/.metadata");
  const fs::path run = made("run/iter_0000010/.metadata");
  const fs::path megatron = made("megatron/iter_0000010/mp_rank_00/model_optim_rng.pt");
  const fs::path empty = root / "empty";

  Folders() { fs::create_directory(empty); }

 private:
  // The folder of a file, the first below the root.
  fs::path made(const std::string& file) const {
    write_file(root / file, "x");
    return root / file.substr(0, file.find('/'));
  }
};

TEST(FolderKind, ThatIsNoModelNamesTheNextStep) {
  const Folders folders;
  EXPECT_EQ(why_no_model(folders.model), "");
  EXPECT_EQ(why_no_model(folders.empty), "");
  EXPECT_EQ(
      why_no_model(folders.adapters),
      "holds LoRA adapters and no model; give the model that they were trained on, and this folder as --lora-load, "
      "or join the two: shardloom merge --base MODEL --adapter " +
          folders.adapters.string() + " --save DIR");
  for (const fs::path& run : {folders.run, folders.checkpoint}) {
    EXPECT_EQ(
        why_no_model(run),
        "holds checkpoints of a run and no Hugging Face folder; make one, shardloom convert dcp-to-hf --load-dir " +
            run.string() + " --save-dir DIR --model-assets-dir MODEL, and give that folder");
  }
  EXPECT_EQ(why_no_model(folders.megatron),
            "holds a checkpoint of Megatron's ranks; make a Hugging Face folder of it, shardloom convert mcore-to-hf "
            "--load-dir " +
                folders.megatron.string() + " --save-dir DIR --hf-cfg-dir MODEL, and give that folder");
}

TEST(FolderKind, ThatIsNoCheckpointNamesTheNextStep) {
  const Folders folders;
  for (const auto flags : {ModelFlags::kNone, ModelFlags::kOfTraining}) {
    EXPECT_EQ(why_no_checkpoint(folders.checkpoint, flags), "");
    EXPECT_EQ(why_no_checkpoint(folders.run, flags), "");
    EXPECT_EQ(why_no_checkpoint(folders.empty, flags), "");
    EXPECT_EQ(why_no_checkpoint(folders.root / "absent", flags), "");
    EXPECT_THAT(why_no_checkpoint(folders.megatron, flags), StartsWith("holds a checkpoint of Megatron's ranks; make"));
  }
  EXPECT_EQ(why_no_checkpoint(folders.model, ModelFlags::kOfTraining),
            "is a Hugging Face folder and no checkpoint; to begin with its weights, give it as --init-from-hf-path " +
                folders.model.string());
  EXPECT_EQ(why_no_checkpoint(folders.model, ModelFlags::kNone),
            "is a Hugging Face folder and no checkpoint; to make one of it: shardloom convert hf-to-dcp --hf-dir " +
                folders.model.string() + " --dcp-dir DIR");
  EXPECT_EQ(
      why_no_checkpoint(folders.adapters, ModelFlags::kOfTraining),
      "holds LoRA adapters and no checkpoint; to begin with them, give it as --lora-load " + folders.adapters.string());
  EXPECT_EQ(
      why_no_checkpoint(folders.adapters, ModelFlags::kNone),
      "holds LoRA adapters and no checkpoint; to add them to their model: shardloom merge --base MODEL --adapter " +
          folders.adapters.string() + " --save DIR");
}

// A run with --ckpt-format hf may have saved beside earlier checkpoints.
TEST(FolderKind, OfBothKindsIsEither) {
  const Folders folders;
  write_file(folders.run / "model.safetensors", "x");
  EXPECT_EQ(why_no_model(folders.run), "");
  EXPECT_EQ(why_no_checkpoint(folders.run, ModelFlags::kNone), "");
}

TEST(FolderKind, ANameOfTheHubSaysThatNothingIsFetched) {
  EXPECT_EQ(why_no_model("Qwen/Qwen2.5-0.5B"),
            "is not there; it may be a name on the Hugging Face hub, from which nothing is fetched here: "
            "huggingface-cli download Qwen/Qwen2.5-0.5B --local-dir DIR, and give that folder");
  for (const char* no_name : {"qwen2", "/Qwen/Qwen2.5-0.5B", "./Qwen2.5", "../Qwen2.5", "Qwen/", "/Qwen", "a/b/c",
                              "models/qwen2.yaml", "models/config.json", "Qwen/Qwen 2"}) {
    EXPECT_EQ(why_no_model(no_name), "") << no_name;
  }
  const fs::path was = fs::current_path();
  fs::current_path(fresh_folder());
  fs::create_directory("Qwen");
  EXPECT_EQ(why_no_model("Qwen/Qwen2.5-0.5B"), "") << "a folder of the user's own lacks it";
  fs::current_path(was);
}

}  // namespace
}  // namespace loom::io
