// Reading of recorded models: sizes by forms, and what is refused.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"
#include "engine/nn/make_rank.h"
#include "engine/nn/path_aliases.h"
#include "models/graph/graph_model.h"
#include "models/graph/graph_program.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using nlohmann::json;

// y = x w, one row of tokens a sequence; the loss is y.
json small() {
  return json::parse(R"({
    "format": "shardloom-graph", "version": 1, "torch": "2.11.0", "class": "Net", "compute_dtype": "bfloat16",
    "attention": "node", "basis": ["1", "B", "S", "BS2"], "forms": [[0, 1], [0, 0, 1], [0, 16], [4, 0, 0, [1, 2]]],
    "symbols": {"B": {"values": [2, 3], "fixed": false, "min": 2}, "S": {"values": [8], "fixed": true}},
    "modules": [["", "Net"], ["linear", "Linear"]], "parameters": [["linear.weight", 0, true]], "buffers": [],
    "inputs": {"x": 1}, "inputs_meta": {"x": [[{"f": 0}, 8], "bfloat16", "data"]}, "ops": ["aten.mm.default"],
    "storages": [[16, "parameter", "linear.weight"], [{"f": 2}, "input", "x"], [{"f": 3}, "temporary", null],
                 [16, "temporary", null]],
    "tensors": [[0, "bfloat16", [8, 1], [1, 1], 0], [1, "bfloat16", [{"f": 0}, {"f": 1}], [8, 1], 0],
                [2, "bfloat16", [{"f": 0}, 1], [1, 1], 0], [3, "bfloat16", [8, 1], [1, 1], 0]],
    "events": [["enter", 0, 0, []], ["enter", 1, 0, [1]], ["save", 0, 1, 0, 1],
               ["op", 0, [1, 0], [2], [], 0, 0, null, 1, {}], ["exit", 1, [2]], ["exit", 0, [2]], ["loss", 2],
               ["backward"], ["unpack", 0], ["op", 0, [1, 2], [3], [], 0, 0, "MmBackward0", 1, {}],
               ["node", 0, "MmBackward0"], ["drop", 0], ["grad", "linear.weight", 3], ["end"]]})");
}

class RecordingFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) const {
    test::write_file(folder_ / "graph.json", text);
    return folder_ / "graph.json";
  }
  std::string refusal(const json& graph, const GraphSizes& sizes = {}) const {
    try {
      make_graph_program(GraphFile(write(graph.dump())).at(sizes));
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      const std::string prefix = (folder_ / "graph.json").string() + ": ";
      return text.starts_with(prefix) ? text.substr(prefix.size()) : "without the file: " + text;
    }
    return "accepted";
  }
  json changed(const std::string& path, const json& value) const {
    json graph = small();
    graph[json::json_pointer(path)] = value;
    return graph;
  }

  const std::filesystem::path folder_ = test::fresh_folder();
};

TEST_F(RecordingFile, FormsGiveTheSizesOfAJob) {
  const ModelGraph graph = GraphFile(write(small().dump())).at({{"B", 5}});
  EXPECT_EQ(graph.tensors[1].shape, (Shape{5, 8}));
  EXPECT_EQ(graph.storages[1].bytes, 80);
  EXPECT_EQ(graph.storages[2].bytes, 4 + 5 * 8 * 8 / 2);
  const auto symbols = GraphFile(folder_ / "graph.json").symbols();
  EXPECT_EQ(symbols.at("B").recorded, 2);
  EXPECT_EQ(symbols.at("S").recorded, 8);
}

TEST_F(RecordingFile, ComplexNumbersHaveEightBytes) {
  EXPECT_EQ(GraphFile(write(changed("/tensors/2/1", "complex64").dump())).at().tensors[2].nbytes(), 16);
}

TEST_F(RecordingFile, PropertiesOfTheClassAreOtherPaths) {
  const auto built = [&](const json& aliases) {
    RankContext context(0, 1);
    const RankScope scope(context);
    nn::make_rank(context, {});
    return make_graph_model(std::make_shared<const GraphProgram>(
        make_graph_program(GraphFile(write(changed("/aliases", aliases).dump())).at())));
  };
  EXPECT_EQ(nn::resolve_path(*built({{"head", "linear"}}), "head"), "linear");
  EXPECT_THROW(built({{"head", "absent"}}), ConfigError);
  EXPECT_THROW(built({{"", "linear"}}), ConfigError);
}

TEST_F(RecordingFile, GradientsWrittenIntoAPartOfATensorAreRefused) {
  json graph = small();
  for (const char* op : {"aten.empty.memory_format", "aten.select.int", "aten.copy_.default", "aten.sum.default"}) {
    graph["ops"].push_back(op);
  }
  graph["storages"].push_back({16, "temporary", nullptr});
  graph["storages"].push_back({4, "temporary", nullptr});
  graph["tensors"].push_back(json::parse(R"([4, "bfloat16", [8, 1], [1, 1], 0])"));  // whole
  graph["tensors"].push_back(json::parse(R"([4, "bfloat16", [2, 1], [1, 1], 0])"));  // a part of it
  graph["tensors"].push_back(json::parse(R"([5, "float32", [], [], 0])"));
  const json added =
      json::parse(R"([["op", 1, [], [4], [], 0, -1, null, 1, {}], ["op", 2, [4], [5], [], 0, -1, null, 1, {}],
    ["op", 3, [5, 2], [5], [], 0, 1, null, 1, {"writes": [0]}], ["op", 4, [4], [6], [], 0, 2, null, 1, {}]])");
  graph["events"].insert(graph["events"].begin() + 4, added.begin(), added.end());
  EXPECT_EQ(
      refusal(graph),
      "aten.copy_.default in 'linear' writes a part of a tensor that needs a gradient, and aten.sum.default in "
      "'linear' reads the tensor; the gradients of such a tensor are not known here: build it with torch.stack or "
      "torch.cat, and record the model again");
}

TEST_F(RecordingFile, SizesThatTheFileDoesNotHoldAreRefused) {
  EXPECT_EQ(
      refusal(small(), {{"B", 1}}),
      "B is 1, but the recording holds B from 2 on, S = 8 (B: rows of a micro-batch, S: tokens of a row); use one "
      "of these sizes, or record the model at yours with tools/record_model.py");
  EXPECT_EQ(
      refusal(small(), {{"S", 9}}),
      "S is 9, but the recording holds B from 2 on, S = 8 (B: rows of a micro-batch, S: tokens of a row); use one "
      "of these sizes, or record the model at yours with tools/record_model.py");
}

TEST_F(RecordingFile, AFileWithoutSymbolsHoldsTheSizesOfItsInputs) {
  json graph = changed("/inputs_meta/x", json::parse(R"([[4, 8], "int64", "data"])"));
  graph.erase("symbols");
  graph.erase("forms");
  EXPECT_EQ(refusal(graph, {{"B", 2}}),
            "B is 2, but the recording holds B = 4, S = 8 (B: rows of a micro-batch, S: tokens of a row); use one of "
            "these sizes, or record the model at yours with tools/record_model.py");
}

TEST_F(RecordingFile, WhatIsNoRecordingIsRefusedByItsPlace) {
  const std::string again = "; record the model again with tools/record_model.py";
  EXPECT_EQ(refusal(changed("/format", "onnx")),
            "is not a recorded model: its format is not \"shardloom-graph\"; make one with tools/record_model.py");
  EXPECT_EQ(refusal(changed("/version", 7)), "version 7; this program reads versions 0 to 1");
  EXPECT_EQ(refusal(changed("/events/2", {"jump", 0})), "events[2]: unknown event 'jump'" + again);
  EXPECT_EQ(refusal(changed("/events/3/2/0", 9)), "events[3]: tensor 9 of 4" + again);
  EXPECT_EQ(refusal(changed("/events/0/1", -1)), "events[0]: module -1 of 2" + again);
  EXPECT_EQ(refusal(changed("/tensors/0/0", 4)), "tensors[0]: storage 4 of 4" + again);
  EXPECT_EQ(refusal(changed("/tensors/0/1", "float3")), "tensors[0]: unknown dtype 'float3'" + again);
  EXPECT_EQ(refusal(changed("/tensors/0/2", {std::int64_t{1} << 40, std::int64_t{1} << 40})),
            "tensors[0]: size 1099511627776" + again);
  EXPECT_EQ(refusal(changed("/storages/0/0", -4)), "storages[0]: -4 bytes" + again);
  EXPECT_EQ(refusal(changed("/storages/0/1", "disk")), "storages[0]: unknown kind of storage 'disk'" + again);
  EXPECT_EQ(refusal(changed("/forms/3/3", {1, 3}), {{"B", 2}}), "forms[3]: is no whole number at these sizes" + again);
  EXPECT_EQ(refusal(changed("/tensors/1/2/0", {{"f", 9}})), "tensors[1]: form 9 of 4" + again);
  EXPECT_EQ(refusal(changed("/events/4", {"exit", 0, {2}})), "'' is left, but 'linear' was entered last");
  EXPECT_EQ(refusal(changed("/tensors/3/2", {8, 2})),
            "MmBackward0 makes no gradient of shape [8, 1] for its input of aten.mm.default");
}

TEST_F(RecordingFile, AForwardWithoutALossIsRefused) {
  json graph = small();
  graph["events"].erase(6);
  EXPECT_EQ(refusal(graph), "the forward does not call the model once and end with its loss");
}

TEST_F(RecordingFile, DamagedGzipIsRefused) {
  const std::string truncated("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56", 12);
  EXPECT_THROW(
      {
        try {
          GraphFile(write(truncated));
        } catch (const ConfigError& error) {
          EXPECT_EQ(std::string(error.what()),
                    (folder_ / "graph.json").string() + ": is cut off: its gzip data ends before the end of the text");
          throw;
        }
      },
      ConfigError);
}

TEST_F(RecordingFile, OperatorsWithoutAPriceAreNamedWithTheirShare) {
  const GraphProgram program =
      make_graph_program(GraphFile(write(changed("/ops/0", "my.fused_thing.default").dump())).at());
  ASSERT_EQ(program.unknown.size(), 1U);
  EXPECT_EQ(program.unknown[0].name, "my.fused_thing.default");
  EXPECT_EQ(program.unknown[0].share, 1.0);
}

TEST_F(RecordingFile, ACallHasWhatItReadsAsArguments) {
  const GraphProgram program = make_graph_program(GraphFile(write(small().dump())).at());
  ASSERT_EQ(program.calls.size(), 3U);  // around the model, the model, the layer
  EXPECT_EQ(program.calls[1].arguments, std::vector<int>{1});
  EXPECT_EQ(program.calls[2].arguments, std::vector<int>{1});
  EXPECT_EQ(program.operations[0].saved_before, std::vector<int>{1});
  EXPECT_EQ(program.operations[0].node_inputs, std::vector<int>{0});
}

}  // namespace
}  // namespace loom::models
