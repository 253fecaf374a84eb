// Promise: a pickle becomes a tree that says what is written there, and nothing of it runs; whatever else the bytes
//          are, the answer is an error that names the offset, and memory stays in proportion to them.
#include <cmath>
#include <limits>

#include "engine/formats/dcp/dcp_metadata.h"
#include "engine/formats/torch/pickle_reader.h"
#include "engine/formats/torch/pickle_writer.h"
#include "tests/formats/archives.h"

namespace loom::io {
namespace {

using namespace std::string_literals;
using namespace loom::io::testing;

bool any_class(std::string_view, std::string_view) { return true; }

// The tree as a text: None, true, 3, 1.5, 'a', b'a', (..), [..], {k: v}, <m.n>, <m.n>(..){state}, @identifier.
std::string shown(const PickleNode& node);

std::string shown_items(const PickleNode& node) {
  std::string text;
  for (const PickleNode* item : node.items) text += (text.empty() ? "" : " ") + shown(*item);
  return text;
}

std::string shown(const PickleNode& node) {
  switch (node.kind) {
    case PickleNode::Kind::kNone:
      return "None";
    case PickleNode::Kind::kBool:
      return node.whole != 0 ? "true" : "false";
    case PickleNode::Kind::kWhole:
      return std::to_string(node.whole);
    case PickleNode::Kind::kReal:
      return fmt::format("{}", node.real);
    case PickleNode::Kind::kText:
      return fmt::format("'{}'", node.text);
    case PickleNode::Kind::kBytes:
      return fmt::format("b'{}'", node.text);
    case PickleNode::Kind::kTuple:
      return "(" + shown_items(node) + ")";
    case PickleNode::Kind::kList:
      return "[" + shown_items(node) + "]";
    case PickleNode::Kind::kDict:
      return "{" + shown_items(node) + "}";
    case PickleNode::Kind::kSet:
      return "set(" + shown_items(node) + ")";
    case PickleNode::Kind::kClass:
      return fmt::format("<{}.{}>", node.text, node.name);
    case PickleNode::Kind::kObject:
      return shown(*node.of_class) + "(" + shown_items(node) + ")" +
             (node.state != nullptr ? " state " + shown(*node.state) : "");
    case PickleNode::Kind::kPersistent:
      return "@" + shown(*node.state);
  }
  return "?";
}

// Of the opcodes behind PROTO 4 and in front of STOP.
std::string read(const std::string& opcodes) {
  const std::string bytes = "\x80\x04"s + opcodes + ".";
  const Pickle pickle(bytes_of(bytes), "p", any_class);
  EXPECT_EQ(pickle.size_bytes(), bytes.size());
  return shown(pickle.root());
}

std::string refusal(const std::string& bytes, const AllowClass& allow = any_class) {
  return message_of<FileDamage>([&] { Pickle(bytes_of(bytes), "p", allow); });
}

// As above, of opcodes behind PROTO 4: offsets begin at 2.
std::string refused(const std::string& opcodes) { return refusal("\x80\x04"s + opcodes); }

TEST(Pickle, ReadsEveryOpcodeOfValues) {
  EXPECT_EQ(read("N"), "None");
  EXPECT_EQ(read("\x88"), "true");
  EXPECT_EQ(read("\x89"), "false");
  EXPECT_EQ(read("K\xff"), "255");
  EXPECT_EQ(read("M\x01\x02"), "513");
  EXPECT_EQ(read("J\xfe\xff\xff\xff"), "-2");
  EXPECT_EQ(read("\x8a\x00"s), "0");
  EXPECT_EQ(read("\x8a\x01\xff"), "-1");
  EXPECT_EQ(read("\x8a\x02\xff\x00"s), "255");
  EXPECT_EQ(read("\x8a\x05\x00\x00\x00\x00\x01"s), "4294967296");
  EXPECT_EQ(read("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"s), "-9223372036854775808");
  EXPECT_EQ(read("G\x3f\xf8\x00\x00\x00\x00\x00\x00"s), "1.5");
  EXPECT_EQ(read("\x8c\x01x"), "'x'");
  EXPECT_EQ(read("X\x01\x00\x00\x00x"s), "'x'");
  EXPECT_EQ(read("\x8d\x01\x00\x00\x00\x00\x00\x00\x00x"s), "'x'");
  EXPECT_EQ(read("C\x01x"), "b'x'");
  EXPECT_EQ(read("B\x01\x00\x00\x00x"s), "b'x'");
  EXPECT_EQ(read("\x8e\x01\x00\x00\x00\x00\x00\x00\x00x"s), "b'x'");
  EXPECT_EQ(read("\x95\x02\x00\x00\x00\x00\x00\x00\x00N"s), "None");  // a frame
}

TEST(Pickle, ReadsEveryOpcodeOfContainers) {
  EXPECT_EQ(read(")"), "()");
  EXPECT_EQ(read("N\x85"), "(None)");
  EXPECT_EQ(read("NK\x01\x86"), "(None 1)");
  EXPECT_EQ(read("NK\x01K\x02\x87"), "(None 1 2)");
  EXPECT_EQ(read("(NNNNt"), "(None None None None)");
  EXPECT_EQ(read("(t"), "()");
  EXPECT_EQ(read("]"), "[]");
  EXPECT_EQ(read("]Na"), "[None]");
  EXPECT_EQ(read("](K\x01K\x02\x65"), "[1 2]");
  EXPECT_EQ(read("(NNl"), "[None None]");
  EXPECT_EQ(read("}"), "{}");
  EXPECT_EQ(read("}\x8c\x01kNs"), "{'k' None}");
  EXPECT_EQ(read("}(\x8c\x01kN\x8c\x01lNu"), "{'k' None 'l' None}");
  EXPECT_EQ(read("(\x8c\x01kNd"), "{'k' None}");
  EXPECT_EQ(read("\x8f(K\x01\x90"), "set(1)");
  EXPECT_EQ(read("NK\x01\x30"), "None");  // POP
  EXPECT_EQ(read("N(NN\x31"), "None");    // POP_MARK
}

TEST(Pickle, ReadsEveryOpcodeOfObjectsAndOfTheMemo) {
  EXPECT_EQ(read("cmod\nname\n"), "<mod.name>");
  EXPECT_EQ(read("\x8c\x03mod\x8c\x04name\x93"), "<mod.name>");
  EXPECT_EQ(read("cm\nn\n)R"), "<m.n>()");
  EXPECT_EQ(read("cm\nn\nK\x01\x85\x81"), "<m.n>(1)");
  EXPECT_EQ(read("cm\nn\n)\x81}b"), "<m.n>() state {}");
  EXPECT_EQ(read("ccollections\nOrderedDict\n)R\x8c\x01kNs"), "<collections.OrderedDict>('k' None)");
  EXPECT_EQ(read("ccollections\nOrderedDict\n)R(\x8c\x01kNu"), "<collections.OrderedDict>('k' None)");
  EXPECT_EQ(read("\x8c\x01iQ"), "@'i'");
  EXPECT_EQ(read("Nq\x00"
                 "0h\x00"s),
            "None");
  EXPECT_EQ(read("Nr\x00\x00\x00\x00"
                 "0j\x00\x00\x00\x00"s),
            "None");
  EXPECT_EQ(read("K\x07\x94N\x94"
                 "00h\x00"s),
            "7");
  EXPECT_EQ(read("K\x07q\x00"
                 "0Nq\x00"
                 "0h\x00"s),
            "None");  // kept again under the same number
}

TEST(Pickle, FindsTheLastValueUnderAKey) {
  const std::string bytes = "\x80\x04}(\x8c\x01kK\x01\x8c\x01kK\x02u."s;
  const Pickle pickle(bytes_of(bytes), "p", any_class);
  EXPECT_EQ(pickle.root().find("k")->whole, 2);
  EXPECT_EQ(pickle.root().find("l"), nullptr);
  EXPECT_EQ(pickle.root().find("k")->find("k"), nullptr);  // of what is no dict
}

TEST(Pickle, RefusesOtherProtocolsAndOpcodes) {
  EXPECT_EQ(refusal(""), "p: offset 0: the pickle takes 1 bytes here, but 0 are left; the file is cut short");
  EXPECT_EQ(refusal("(lp0\n."), "p: offset 0: no pickle of protocol 2 or later begins with 0x28");   // protocol 0
  EXPECT_EQ(refusal("}q\x00."s), "p: offset 0: no pickle of protocol 2 or later begins with 0x7d");  // protocol 1
  EXPECT_EQ(refusal("\x80\x01N."), "p: offset 0: a pickle of protocol 1; 2 to 5 are read");
  EXPECT_EQ(refusal("\x80\x06N."), "p: offset 0: a pickle of protocol 6; 2 to 5 are read");
  // PROTO again; text opcodes of protocol 0; PERSID; INST, OBJ, NEWOBJ_EX; EXT1, EXT2, EXT4; LONG4; BYTEARRAY8, buffers
  // from the outside; DUP.
  for (const char* opcode : {"\x80\x04", "I1\n", "L1L\n", "F1\n",          "S'x'\n", "Vx\n", "T\x01\0\0\0x", "U\x01x",
                             "p0\n",     "g0\n", "Px\n",  "ios\nsystem\n", "o",      "\x92", "\x82\x01",     "\x83\x01",
                             "\x84\x01", "\x8b", "\x96",  "\x97",          "\x98",   "2",    "\xff"}) {
    EXPECT_EQ(refused("(N"s + opcode), fmt::format("p: offset 4: opcode {:#04x}, which no file of this format has",
                                                   static_cast<unsigned char>(*opcode)));
  }
}

TEST(Pickle, RefusesClassesThatAreNotAllowedByNameAndOffset) {
  const AllowClass only = [](std::string_view module, std::string_view name) {
    return module == "torch" && name == "Size";
  };
  const auto text = [](const std::string& name, int offset) {
    return fmt::format(
        "p: offset {}: the pickle names {}, which this file has no use for; nothing of it was run. Take the file from "
        "where "
        "it was made, and only from someone you trust",
        offset, name);
  };
  EXPECT_EQ(refusal("\x80\x02"
                    "cos\nsystem\n(X\x04\0\0\0lstR."s,
                    only),
            text("os.system", 2));
  EXPECT_EQ(refusal("\x80\x02"
                    "cposix\nsystem\n."s,
                    only),
            text("posix.system", 2));
  EXPECT_EQ(refusal("\x80\x02"
                    "cbuiltins\neval\n."s,
                    only),
            text("builtins.eval", 2));
  EXPECT_EQ(refusal("\x80\x02"
                    "c__builtin__\nexec\n."s,
                    only),
            text("__builtin__.exec", 2));
  EXPECT_EQ(refusal("\x80\x02"
                    "ccopyreg\n_reconstructor\n."s,
                    only),
            text("copyreg._reconstructor", 2));
  EXPECT_EQ(refusal("\x80\x04\x8c\x02os\x8c\x06system\x93."s, only), text("os.system", 14));
  EXPECT_EQ(refusal("\x80\x02"
                    "ctorch\nSize.__init__\n."s,
                    only),
            text("torch.Size.__init__", 2));
  EXPECT_EQ(refusal("\x80\x02"
                    "ctorch\r\nSize\n."s,
                    only),
            text("torch\\r.Size", 2));
  EXPECT_EQ(refusal("\x80\x02"
                    "ctorch\nSi\x1bze\n."s,
                    only),
            text("torch.Si\\x1bze", 2));
}

TEST(Pickle, TheReadersOfCheckpointsAllowTheClassesOfTheFormatAlone) {
  for (const char* name : {"os\nsystem", "posix\nsystem", "subprocess\nPopen", "builtins\neval", "builtins\ngetattr",
                           "__builtin__\napply", "copyreg\n_reconstructor", "torch._utils\n_import_dotted_name",
                           "torch._utils\n_rebuild_tensor_v3", "torch.storage\n_load_from_bytes", "torch\nload",
                           "torch.serialization\nload", "runpy\n_run_code", "functools\npartial"}) {
    const std::string pickle =
        "\x80\x02"
        "c"s +
        name + "\n)R.";
    std::string shown_name = name;
    shown_name[shown_name.find('\n')] = '.';
    const std::string expected = "the pickle names " + shown_name + ", which this file has no use for";
    EXPECT_NE(
        message_of<FileDamage>([&] { read_dcp_metadata(bytes_of(pickle), "m"); }).find("m: offset 2: " + expected),
        std::string::npos);
    EXPECT_NE(message_of<FileDamage>([&] { value_of(archive_of(pickle, "")); }).find("data.pkl: offset 2: " + expected),
              std::string::npos);
  }
}

TEST(Pickle, RefusesAStackThatIsNotAsItShouldBe) {
  const std::string empty = "the pickle takes a value from an empty stack";
  EXPECT_EQ(refused("0"), "p: offset 2: " + empty);
  EXPECT_EQ(refused("."), "p: offset 2: " + empty);
  EXPECT_EQ(refused("(."), "p: offset 3: " + empty);
  EXPECT_EQ(refused("N\x86"), "p: offset 3: " + empty);
  EXPECT_EQ(refused("q\x00"s), "p: offset 2: " + empty);
  EXPECT_EQ(refused("Ns"), "p: offset 3: " + empty);
  EXPECT_EQ(refused("NNR"), "p: offset 4: the pickle calls a value that is not a class");
  EXPECT_EQ(refused("cm\nn\nNR"), "p: offset 8: the pickle calls a class with a value that is not a tuple");
  EXPECT_EQ(refused("N}b"), "p: offset 4: the pickle gives a state to what takes none");
  EXPECT_EQ(refused("cm\nn\n)\x81}b}b"), "p: offset 12: the pickle gives a state to what takes none");
  EXPECT_EQ(refused("NN."), "p: offset 4: the pickle ends with values left on its stack");
  EXPECT_EQ(refused("NNt"), "p: offset 4: the pickle takes values down to a mark, but there is none");
  EXPECT_EQ(refused("}Na"), "p: offset 4: the pickle adds items to a value that is not a container of that kind");
  EXPECT_EQ(refused("](NNu"), "p: offset 6: the pickle adds items to a value that is not a container of that kind");
  EXPECT_EQ(refused(")Na"), "p: offset 4: the pickle adds items to a value that is not a container of that kind");
  EXPECT_EQ(refused("}(Nu"), "p: offset 5: a dict has a key without a value");
  EXPECT_EQ(refused("(Nd"), "p: offset 4: a dict has a key without a value");
  EXPECT_EQ(refused("NN\x93"), "p: offset 4: the pickle names a class by no text");
}

TEST(Pickle, RefusesAMemoThatIsNotAsItShouldBe) {
  EXPECT_EQ(refused("h\x00"s), "p: offset 2: the pickle refers to value 0, which it has not kept");
  EXPECT_EQ(refused("Nq\x00"
                    "0h\x01"s),
            "p: offset 6: the pickle refers to value 1, which it has not kept");
  EXPECT_EQ(refused("j\xff\xff\xff\xff"), "p: offset 2: the pickle refers to value 4294967295, which it has not kept");
  EXPECT_EQ(refused("Nr\xff\xff\xff\xff"), "p: offset 3: the pickle keeps value 4294967295, but only 0 before it");
}

TEST(Pickle, ClaimedSizesAreComparedWithWhatIsThereBeforeMemoryIsTaken) {
  const auto short_by = [](int offset, const std::string& count) {
    return fmt::format("p: offset {}: the pickle takes {} bytes here, but 1 are left; the file is cut short", offset,
                       count);
  };
  EXPECT_EQ(refused("X\xff\xff\xff\xff."s), short_by(2, "4294967295"));
  EXPECT_EQ(refused("B\xff\xff\xff\xff."s), short_by(2, "4294967295"));
  EXPECT_EQ(refused("\x8d\xff\xff\xff\xff\xff\xff\xff\x7f."s), short_by(2, "9223372036854775807"));
  EXPECT_EQ(refused("\x8e\xff\xff\xff\xff\xff\xff\xff\xff."s), short_by(2, "18446744073709551615"));
  EXPECT_EQ(refused("\x95\xff\xff\xff\xff\xff\xff\xff\xff."s),
            "p: offset 2: a frame of 18446744073709551615 bytes, but 1 are left; the file is cut short");
  EXPECT_EQ(refused("\x8a\x09."), "p: offset 2: an integer of 9 bytes; 8 is the most here");
  EXPECT_EQ(refused("cos"), "p: offset 2: a name has no end; the file is cut short");
  EXPECT_EQ(refused("\x8c\x01\xff."), "p: offset 2: a text that is not UTF-8");
}

TEST(Pickle, HasABoundForItsNodes) {
  const std::string bytes = "\x80\x04(NNNNt."s;
  EXPECT_EQ(message_of<FileDamage>([&] { Pickle(bytes_of(bytes), "p", any_class, 4); }),
            "p: offset 7: a pickle of more than 4 values");
  EXPECT_EQ(Pickle(bytes_of(bytes), "p", any_class, 5).root().items.size(), 4u);
}

TEST(Pickle, NestingAndLoopsAreReadWithoutRecursion) {
  constexpr std::size_t kDeep = 200'000;
  const std::string deep = "\x80\x04" + std::string(kDeep, ']') + std::string(kDeep - 1, 'a') + ".";
  EXPECT_EQ(Pickle(bytes_of(deep), "p", any_class).root().items.size(), 1u);
  EXPECT_NE(message_of<FileDamage>([&] { value_of(archive_of(deep, "")); }).find("a value of more than 64 levels"),
            std::string::npos);
  const std::string loop = "\x80\x04]q\0h\0a."s;
  const Pickle itself(bytes_of(loop), "p", any_class);
  EXPECT_EQ(itself.root().items.front(), &itself.root());
  EXPECT_NE(message_of<FileDamage>([&] { value_of(archive_of(loop, "")); }).find("a value of more than 64 levels"),
            std::string::npos);
}

// Lists that hold the one before ten times: 10^9 items out of 250 bytes.
TEST(Pickle, WhatIsSharedDoesNotGrowWithoutBoundAsAValue) {
  std::string laughs = "\x80\x04(]q\0"s;
  for (char level = 0; level < 9; ++level) {
    laughs += "](";
    for (int i = 0; i < 10; ++i) laughs += "h"s + level;
    laughs += "eq"s + static_cast<char>(level + 1);
  }
  laughs += "t.";
  EXPECT_EQ(Pickle(bytes_of(laughs), "p", any_class).root().items.size(), 10u);
  EXPECT_NE(
      message_of<FileDamage>([&] { value_of(archive_of(laughs, "")); }).find("a value of more than 1000000 items"),
      std::string::npos);
}

TEST(Pickle, ATextThatIsReferredToManyTimesIsCopiedWithinABound) {
  std::string pickle = "\x80\x04(X"s + little(1 << 20, 4) + std::string(1 << 20, 'x') + "q\0"s;
  for (int i = 0; i < 1000; ++i) pickle += "h\0"s;
  EXPECT_NE(message_of<FileDamage>([&] {
              value_of(archive_of(pickle + "t.", ""));
            }).find("a value whose texts have more than "),
            std::string::npos);
}

// --- real files, damaged

TEST(Pickle, EveryTruncationOfRealFilesIsRefused) {
  const std::string metadata = read_file(golden("dcp/.metadata"));
  for (std::size_t size = 0; size < metadata.size(); ++size) {
    EXPECT_THROW(read_dcp_metadata(bytes_of(metadata).first(size), "m"), FileDamage) << size;
  }
  for (const char* name : {"transposed.pt", "value.pt"}) {
    const std::string archive = read_file(golden(name));
    const MemorySource source(bytes_of(archive), name);
    const TorchZip zip(source);
    const std::string pickle = text_of(zip.content(zip.at("data.pkl"), 1 << 20));
    for (std::size_t size = 0; size < pickle.size(); ++size) {
      EXPECT_THROW(value_of(archive_of(pickle.substr(0, size), "")), FileDamage) << name << size;
    }
  }
}

TEST(Pickle, EveryByteOfARealFileMayChangeAndItIsReadOrRefused) {
  const std::string good = read_file(golden("dcp/.metadata"));
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ change);
      try {
        read_dcp_metadata(bytes_of(bad), "m");
      } catch (const FileDamage& error) {
        ++refused;
        EXPECT_TRUE(std::string_view(error.what()).starts_with("m: ")) << error.what();
      }
    }
  }
  EXPECT_GT(refused, static_cast<int>(good.size()));  // names and offsets may change, and figures nobody reads
}

// --- writing

std::vector<PlainValue> samples() {
  std::vector<PlainValue> values{PlainValue(), PlainValue::boolean(true), PlainValue::boolean(false)};
  for (const std::int64_t whole :
       {std::int64_t{0}, std::int64_t{255}, std::int64_t{256}, std::int64_t{65535}, std::int64_t{65536},
        std::int64_t{-1}, std::int64_t{1} << 31, -(std::int64_t{1} << 31) - 1, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()}) {
    values.push_back(PlainValue::whole(whole));
  }
  for (const double real : {0.0, 1e-8, -2.5, std::numeric_limits<double>::infinity()}) {
    values.push_back(PlainValue::real(real));
  }
  std::string all_bytes;
  for (int byte = 0; byte < 256; ++byte) all_bytes.push_back(static_cast<char>(byte));
  for (const std::string& text : {""s, "a"s, "\xc3\xbc"s, std::string(300, 'x'), "\0\n"s}) {
    values.push_back(PlainValue::text(text));
  }
  values.push_back(PlainValue::bytes(""));
  values.push_back(PlainValue::bytes(all_bytes));
  return values;
}

TEST(PickleWriter, WritesWhatIsReadAgainInBothProtocols) {
  const std::vector<PlainValue> leaves = samples();
  std::vector<std::pair<PlainValue, PlainValue>> entries;
  for (std::size_t i = 0; i < leaves.size(); ++i)
    entries.emplace_back(PlainValue::text(fmt::format("k{}", i)), leaves[i]);
  entries.emplace_back(PlainValue::whole(7), PlainValue::tuple({}));
  const PlainValue value =
      PlainValue::dict({{PlainValue::text("tuple"), PlainValue::tuple(leaves)},
                        {PlainValue::text("list"), PlainValue::list(leaves)},
                        {PlainValue::text("dict"), PlainValue::dict(std::move(entries))},
                        {PlainValue::text("empty"),
                         PlainValue::list({PlainValue::list({}), PlainValue::dict({}), PlainValue::tuple({})})}});
  for (const int protocol : {2, 4}) {
    PickleWriter out(protocol);
    out.value(value);
    EXPECT_EQ(value_of(archive_of(out.finish(), "")), value) << protocol;
  }
}

TEST(PickleWriter, RefersToAClassItHasWritten) {
  for (const int protocol : {2, 4}) {
    PickleWriter out(protocol);
    out.begin_tuple();
    for (const char* name : {"a", "b", "a"}) out.global("m", name);
    out.end_tuple();
    const std::string bytes = out.finish();
    EXPECT_EQ(shown(Pickle(bytes_of(bytes), "p", any_class).root()), "(<m.a> <m.b> <m.a>)");
    EXPECT_NE(bytes.find("j\0\0\0\0"s), std::string::npos);
  }
}

}  // namespace
}  // namespace loom::io
