// Promise: a tensor of torch.save is read bit for bit, whole or in boxes, whatever its dtype, shape and strides;
//          values come back as they were; what is no such file, or lies about its storage, is refused with file and
//          offset.
#include "engine/formats/torch/torch_file.h"

#include <limits>

#include "engine/core/error.h"
#include "engine/formats/torch/pickle_writer.h"
#include "tests/formats/archives.h"

namespace loom::io {
namespace {

using namespace std::string_literals;
using namespace loom::io::testing;

// What _rebuild_tensor_v2 is given.
struct TensorPickle {
  std::string storage = "FloatStorage";
  std::string key = "0";
  std::int64_t begin = 0;
  std::vector<std::int64_t> sizes = {2, 3};
  std::vector<std::int64_t> strides = {3, 1};
};

void write(PickleWriter& out, const TensorPickle& tensor) {
  out.global("torch._utils", "_rebuild_tensor_v2");
  out.begin_tuple();
  out.begin_tuple();
  out.text("storage");
  out.global("torch", tensor.storage);
  out.text(tensor.key);
  out.text("cuda:3");
  out.whole(6);
  out.end_tuple();
  out.persistent();
  out.whole(tensor.begin);
  out.wholes(tensor.sizes);
  out.wholes(tensor.strides);
  out.boolean(false);
  out.none();
  out.end_tuple();
  out.reduce();
}

std::string pickle_of(const TensorPickle& tensor) {
  PickleWriter out(2);
  write(out, tensor);
  return out.finish();
}

std::string floats(std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(i);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return bytes;
}

std::vector<float> read(const TensorPickle& tensor, std::size_t elements = 6) {
  return elements_of<float>(archive_of(pickle_of(tensor), floats(elements)));
}

// Behind "t.pt: offset N, data.pkl: offset M: ".
std::string archive_refusal(const std::string& archive) {
  const std::string message = message_of<FileDamage>([&] {
    const MemorySource source(bytes_of(archive), "t.pt");
    TorchTensor{source};
  });
  EXPECT_TRUE(message.starts_with("t.pt: offset 64, data.pkl: offset ")) << message;
  const std::size_t text = message.find(": ", message.find("data.pkl: offset ") + 17);
  return text == std::string::npos ? message : message.substr(text + 2);
}

std::string refusal(const TensorPickle& tensor, std::size_t elements = 6) {
  return archive_refusal(archive_of(pickle_of(tensor), floats(elements)));
}

std::vector<float> box_of(const std::string& archive, const Offset& offset, const Shape& box, bool verify = true) {
  const MemorySource source(bytes_of(archive), "t.pt");
  std::vector<float> elements(static_cast<std::size_t>(box.numel()));
  TorchTensor(source).read_box(offset, box, std::as_writable_bytes(std::span(elements)), verify);
  return elements;
}

template <class T>
void expect_round_trip(const std::vector<T>& elements) {
  EXPECT_EQ(elements_of<T>(tensor_archive<T>({static_cast<std::int64_t>(elements.size())}, elements)), elements);
}

TEST(TorchFile, WritesAndReadsEveryDtype) {
  expect_round_trip<float>({0, -1.5f, std::numeric_limits<float>::max()});
  expect_round_trip<double>({0, -1.5, std::numeric_limits<double>::min()});
  expect_round_trip<std::int8_t>({0, -128, 127});
  expect_round_trip<std::int16_t>({0, -32768, 32767});
  expect_round_trip<std::int32_t>({0, std::numeric_limits<std::int32_t>::min()});
  expect_round_trip<std::int64_t>({0, std::numeric_limits<std::int64_t>::min()});
  expect_round_trip<std::uint8_t>({0, 255});
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kBool}) {
    std::string archive;
    write_torch_tensor(into(archive), dtype, {2}, [&](const ByteSink& sink) {
      sink(bytes_of("\1\0\1\0"s.substr(0, static_cast<std::size_t>(2 * element_bytes(dtype)))));
    });
    const MemorySource source(bytes_of(archive), "t.pt");
    EXPECT_EQ(TorchTensor(source).dtype(), dtype);
  }
  for (const char* name : {"complex64", "float8_e4m3fn", "uint16", "Float32", ""}) {
    EXPECT_FALSE(parse_torch_dtype(name)) << name;
  }
}

TEST(TorchFile, ScalarsAndEmptyTensorsAreTensors) {
  EXPECT_EQ(elements_of<double>(tensor_archive<double>({}, {2.5})), std::vector<double>{2.5});
  EXPECT_EQ(elements_of<float>(tensor_archive<float>({0, 3}, {})), std::vector<float>{});
  EXPECT_EQ(elements_of<float>(tensor_archive<float>({2, 0}, {})), std::vector<float>{});
  EXPECT_EQ(read({.begin = 4, .sizes = {}, .strides = {}}), std::vector<float>{4});
  EXPECT_EQ(read({.begin = 6, .sizes = {0}, .strides = {1}}), std::vector<float>{});
}

TEST(TorchFile, ReadsAnyBoxByItsRuns) {
  const std::string archive = tensor_archive<float>({2, 3}, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(box_of(archive, {1, 0}, {1, 3}), (std::vector<float>{3, 4, 5}));
  EXPECT_EQ(box_of(archive, {0, 1}, {2, 2}), (std::vector<float>{1, 2, 4, 5}));
  EXPECT_EQ(box_of(archive, {2, 0}, {0, 3}), std::vector<float>{});
  const MemorySource source(bytes_of(archive), "t.pt");
  std::vector<std::byte> one(4);
  EXPECT_THROW(TorchTensor(source).read_box({2, 0}, {1, 1}, one, true), InvariantError);
  EXPECT_THROW(TorchTensor(source).read_box({0, 0}, {1, 2}, one, true), InvariantError);
}

TEST(TorchFile, ReadsStridesAndPlacesInAStorage) {
  EXPECT_EQ(read({.sizes = {3, 2}, .strides = {1, 3}}), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(read({.begin = 2, .sizes = {4}, .strides = {1}}), (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ(read({.begin = 1, .sizes = {2}, .strides = {3}}), (std::vector<float>{1, 4}));
  EXPECT_EQ(read({.sizes = {1, 6}, .strides = {100, 1}}),
            (std::vector<float>{0, 1, 2, 3, 4, 5}));  // one row: no stride
  const std::string transposed = archive_of(pickle_of({.sizes = {3, 2}, .strides = {1, 3}}), floats(6));
  EXPECT_EQ(box_of(transposed, {1, 1}, {2, 1}), (std::vector<float>{4, 5}));
  EXPECT_EQ(elements_of<float>(read_file(golden("transposed.pt"))), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(elements_of<float>(read_file(golden("sliced.pt"))), (std::vector<float>{1, 4}));
  EXPECT_EQ(elements_of<float>(read_file(golden("parameter.pt"))), (std::vector<float>{0, 1, 2}));
}

TEST(TorchFile, ReadsTheRowsOfAPartOfAWiderStorage) {
  const TensorPickle right{.begin = 64, .sizes = {3, 64}, .strides = {128, 1}};  // 3 rows of 128, their second half
  const std::string archive = archive_of(pickle_of(right), floats(384));
  const std::vector<float> row = box_of(archive, {1, 0}, {1, 64});
  EXPECT_EQ(row.front(), 192);
  EXPECT_EQ(row.back(), 255);
  const std::vector<float> all = box_of(archive, {0, 0}, {3, 64});
  EXPECT_EQ(all[64], 192);
  EXPECT_EQ(all.back(), 383);
  EXPECT_EQ(box_of(archive, {1, 1}, {2, 2}), (std::vector<float>{193, 194, 321, 322}));
  std::string damaged = archive;
  damaged[damaged.find(floats(2).substr(0, 8)) + 4 * 200] ^= 1;
  EXPECT_THROW(box_of(damaged, {0, 0}, {3, 64}), FileDamage);
}

TEST(TorchFile, ADamagedTensorIsFoundByItsChecksum) {
  std::string archive = tensor_archive<float>({2, 3}, {0, 1, 2, 3, 4, 5});
  const MemorySource good(bytes_of(archive), "t.pt");
  const std::uint64_t begin = TorchZip(good).at("data/0").begin;
  archive[begin + 20] = static_cast<char>(archive[begin + 20] ^ 1);  // element 5
  const std::string message = message_of<FileDamage>([&] { elements_of<float>(archive); });
  EXPECT_TRUE(message.starts_with(fmt::format("t.pt: offset {}: the content of 'data/0' has the checksum ", begin)))
      << message;
  EXPECT_NE(message.find("was written; the file is damaged"), std::string::npos);
  EXPECT_THROW(box_of(archive, {0, 0}, {1, 3}, true), FileDamage);  // a box is verified where that is asked for
  EXPECT_EQ(box_of(archive, {0, 0}, {1, 3}, false), (std::vector<float>{0, 1, 2}));
}

TEST(TorchFile, AnArchiveWithoutChecksumsIsReadAndNotCompared) {
  std::string archive = read_file(golden("unsummed.pt"));
  EXPECT_EQ(elements_of<float>(archive), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  const MemorySource source(bytes_of(archive), "t.pt");
  const TorchZip zip(source);
  EXPECT_FALSE(zip.has_checksums());
  const std::uint64_t at = zip.at("data/0").begin + 20;
  archive[at] = static_cast<char>(archive[at] ^ 1);
  EXPECT_NE(elements_of<float>(archive)[5], 5);
  // One checksum, and all are compared.
  const std::size_t record = archive.find("PK\1\2");
  archive[record + 16] = 1;
  EXPECT_THROW(elements_of<float>(archive), FileDamage);
  const std::string summed = read_file(golden("parameter.pt"));
  EXPECT_TRUE(TorchZip(MemorySource(bytes_of(summed), "t.pt")).has_checksums());
}

TEST(TorchFile, RefusesATensorThatIsMoreThanItsStorage) {
  const auto text = [](const std::string& shape) {
    return "a tensor " + shape + " that needs more than the 6 elements of its storage";
  };
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_EQ(refusal({.sizes = {7}, .strides = {1}}), text("[7]"));
  EXPECT_EQ(refusal({.begin = 1}), text("[2, 3]"));
  EXPECT_EQ(refusal({.begin = 7, .sizes = {0}, .strides = {1}}), text("[0]"));
  EXPECT_EQ(refusal({.strides = {4, 1}}), text("[2, 3]"));
  EXPECT_EQ(refusal({.sizes = {huge, huge}, .strides = {huge, huge}}), text(fmt::format("[{0}, {0}]", huge)));
  EXPECT_EQ(refusal({.sizes = {huge, huge}, .strides = {0, 0}}), text(fmt::format("[{0}, {0}]", huge)));
  EXPECT_EQ(refusal({.sizes = {0, huge, huge}, .strides = {0, 0, 0}}), text(fmt::format("[0, {0}, {0}]", huge)));
  EXPECT_EQ(refusal({.begin = std::numeric_limits<std::int64_t>::max()}), text("[2, 3]"));
  EXPECT_EQ(refusal({.begin = 1}, 0), "a tensor [2, 3] that needs more than the 0 elements of its storage");
  EXPECT_EQ(archive_refusal(read_file(golden("expanded.pt"))),
            "a tensor [1000, 1000] that needs more than the 1 elements of its storage");
}

TEST(TorchFile, RefusesWhatIsNoTensor) {
  EXPECT_EQ(refusal({.begin = -1}), "a place in the storage that is not a number");
  EXPECT_EQ(refusal({.sizes = {2, -3}}), "a size that is not a size");
  EXPECT_EQ(refusal({.strides = {-3, 1}}), "a stride that is not a size");
  EXPECT_EQ(refusal({.strides = {1}}), "a tensor with as many strides as sizes is needed");
  EXPECT_EQ(refusal({.sizes = std::vector<std::int64_t>(65, 1), .strides = std::vector<std::int64_t>(65, 1)}),
            "a tensor of 65 dims; 64 is the most");
  EXPECT_EQ(refusal({.storage = "float32"}), "a storage of another dtype");
  EXPECT_EQ(archive_refusal(archive_of("\x80\x02N."s, "")), "expected a tensor here");
  EXPECT_EQ(archive_refusal(archive_of("\x80\x02]."s, "")), "expected a tensor here");
  EXPECT_EQ(message_of<FileDamage>([] { read({.key = "1"}); }),
            "t.pt: offset 0: the archive has no entry 'data/1'; it is none of torch.save");
}

TEST(TorchFile, RefusesOtherByteOrdersAndOtherStoragesByName) {
  EXPECT_EQ(message_of<FileDamage>([] {
              elements_of<float>(archive_of(pickle_of({}), floats(6), "big"));
            }).substr(std::string_view("t.pt: offset 320: ").size()),
            "the byte order is 'big'; only little-endian archives are read");
  EXPECT_TRUE(refusal({.storage = "ComplexFloatStorage"}).starts_with("the pickle names torch.ComplexFloatStorage, "));
  EXPECT_TRUE(refusal({.storage = "UntypedStorage"}).starts_with("the pickle names torch.UntypedStorage, "));
  EXPECT_TRUE(archive_refusal(read_file(golden("uint16.pt")))
                  .starts_with("the pickle names torch._utils._rebuild_tensor_v3, "));
}

TEST(TorchFile, NothingOfAHostileFileRuns) {
  const std::filesystem::path evidence = "evil_was_here";  // "touch evil_was_here" is what it would run
  const std::string evil = read_file(golden("evil.pt"));
  EXPECT_TRUE(archive_refusal(evil).starts_with(
      "the pickle names posix.system, which this file has no use for; nothing of it was "));
  EXPECT_THROW(value_of(evil), FileDamage);
  EXPECT_FALSE(std::filesystem::exists(evidence));
}

TEST(TorchFile, ReadsEveryKindOfValue) {
  EXPECT_EQ(
      value_of(read_file(golden("value.pt"))).repr(1000),
      "{'none': None, 'bools': [True, False], 'whole': [0, -1, 255, 65536, 1099511627776, -4611686018427387904], "
      "'real': 1e-08, 'text': '\xc3\xbc', 'bytes': <3 bytes>, 'pair': (1,), 'size': (2, 3), 'dtype': 'torch.float16', "
      "'ordered': {'a': 1}, 'args': {'lr': 0.5, 'name': 'x'}}");
  EXPECT_EQ(value_of(read_file(golden("value.pt"))).find("bytes")->as_text(), "\0\x80\xff"s);
  EXPECT_EQ(value_of(archive_of("\x80\x04\x8f(K\x01\x90."s, "")), PlainValue::list({PlainValue::whole(1)}));
}

TEST(TorchFile, RefusesValuesThatAreNoneByWhatTheyAre) {
  const auto text = [](const std::string& pickle) {
    const std::string message = message_of<FileDamage>([&] { value_of(archive_of(pickle, floats(6))); });
    return message.substr(message.rfind(": ") + 2);
  };
  EXPECT_EQ(text(pickle_of({})), "an object of torch._utils._rebuild_tensor_v2, instead of a plain value");
  EXPECT_EQ(text("\x80\x02\x8c\1xQ."s), "a tensor is inside a value that must not have any");
  EXPECT_EQ(text("\x80\x02"
                 "cargparse\nNamespace\n)\x81."s),
            "an object of argparse.Namespace, instead of a plain value");
  EXPECT_EQ(text("\x80\x02"
                 "c_codecs\nencode\n\x8c\x03\xe2\x82\xac\x8c\x06latin1\x86R."s),
            "bytes that are not text in latin1");
  EXPECT_EQ(text("\x80\x02"
                 "c_codecs\nencode\n\x8c\x01x\x8c\x04zlib\x86R."s),
            "bytes that are not text in latin1");
  EXPECT_EQ(text("\x80\x02"
                 "c_codecs\nencode\n\x8c\x01x\x85R."s),
            "bytes that are not text in latin1");
}

TEST(TorchFile, AnArchiveOfAValueHasTheEntriesOfTorchSave) {
  std::string archive;
  const std::uint64_t size = write_torch_value(into(archive), PlainValue::whole(3));
  EXPECT_EQ(size, archive.size());
  const MemorySource source(bytes_of(archive), "v.pt");
  const TorchZip zip(source);
  for (const char* name : {"data.pkl", ".format_version", ".storage_alignment", "byteorder", "version"}) {
    EXPECT_NE(zip.find(name), nullptr) << name;
  }
  EXPECT_EQ(text_of(zip.content(zip.at("version"), 10)), "3\n");
  EXPECT_EQ(value_of(archive), PlainValue::whole(3));
}

// --- mappings

std::string mapping_archive(const std::vector<std::string>& names) {
  const std::string elements = floats(6);
  std::vector<TensorToWrite> tensors;
  for (const std::string& name : names) tensors.push_back({name, DType::kF32, {2, 3}, bytes_of(elements)});
  std::string archive;
  write_torch_mapping(into(archive),
                      {{.key = "args",
                        .value = PlainValue::dict({{PlainValue::text("num_layers"), PlainValue::whole(2)}}),
                        .as_attributes = true},
                       {.key = "iteration", .value = PlainValue::whole(1)},
                       {.key = "model", .tensors = tensors}});
  return archive;
}

TEST(TorchMapping, HoldsTheTensorsUnderEachKey) {
  const std::string archive = mapping_archive({"a", "b", "c._extra_state"});
  const MemorySource source(bytes_of(archive), "m.pt");
  const TorchMapping mapping(source);
  EXPECT_EQ(mapping.keys(), (std::vector<std::string>{"args", "iteration", "model"}));
  EXPECT_TRUE(mapping.tensors("args").empty());
  EXPECT_FALSE(mapping.has("iteration"));
  ASSERT_EQ(mapping.tensors("model").size(), 2u);
  const TorchTensor& b = mapping.tensors("model").find("b")->second;
  EXPECT_EQ(b.shape(), (Shape{2, 3}));
  EXPECT_NE(b.storage_begin(), mapping.tensors("model").find("a")->second.storage_begin());
  std::vector<float> row(2);
  b.reshaped({3, 2})->read_box({2, 0}, {1, 2}, std::as_writable_bytes(std::span(row)), true);
  EXPECT_EQ(row, (std::vector<float>{4, 5}));
  EXPECT_FALSE(b.reshaped({4, 2}));
}

TEST(TorchMapping, ReadsADefaultdict) {
  PickleWriter out(4);
  out.begin_dict();
  out.text("model");
  out.global("collections", "defaultdict");
  out.begin_tuple();
  out.global("builtins", "dict");
  out.end_tuple();
  out.reduce();
  out.begin_items();
  out.text("a");
  write(out, {});
  out.end_dict();
  out.end_dict();
  const std::string archive = archive_of(out.finish(), floats(6));
  const MemorySource source(bytes_of(archive), "m.pt");
  const TorchMapping mapping(source);
  ASSERT_EQ(mapping.tensors("model").size(), 1u);
  EXPECT_EQ(mapping.tensors("model").at("a").shape(), (Shape{2, 3}));
}

// {"args": MODULE.NAME("touch evil_was_here"), "model": {}}
std::string archive_that_calls(const std::string& module, const std::string& name) {
  PickleWriter out(2);
  out.begin_dict();
  out.text("args");
  out.global(module, name);
  out.begin_tuple();
  out.text("touch evil_was_here");
  out.end_tuple();
  out.reduce();
  out.text("model");
  out.begin_dict();
  out.end_dict();
  out.end_dict();
  return archive_of(out.finish(), "");
}

TEST(TorchMapping, PassesOverClassesAndRefusesThoseThatRunThings) {
  const auto keys = [](const std::string& archive) {
    const MemorySource source(bytes_of(archive), "m.pt");
    return TorchMapping(source).keys();
  };
  EXPECT_EQ(keys(archive_that_calls("argparse", "Namespace")), (std::vector<std::string>{"args", "model"}));
  EXPECT_EQ(keys(archive_that_calls("megatron.core.enums", "ModelType")).size(), 2u);
  EXPECT_EQ(keys(archive_that_calls("numpy.core.multiarray", "_reconstruct")).size(), 2u);
  for (const auto& [module, name] :
       {std::pair("os", "system"), std::pair("posix", "system"), std::pair("subprocess", "Popen"),
        std::pair("builtins", "eval"), std::pair("__builtin__", "exec"), std::pair("os.path", "join")}) {
    const std::string message = message_of<FileDamage>([&] { keys(archive_that_calls(module, name)); });
    EXPECT_NE(message.find(fmt::format("the pickle names {}.{}, ", module, name)), std::string::npos) << message;
    EXPECT_EQ(message.rfind("m.pt: offset 64, data.pkl: offset ", 0), 0u) << message;
  }
  EXPECT_FALSE(std::filesystem::exists("evil_was_here"));
}

TEST(TorchMapping, RefusesWhatIsNoneAndNamesGivenTwice) {
  const auto refusal = [](const std::string& archive, const char* key = "model") {
    return message_of<FileDamage>([&] {
      const MemorySource source(bytes_of(archive), "m.pt");
      TorchMapping(source).tensors(key);
    });
  };
  EXPECT_EQ(refusal(mapping_archive({"a"}), "model0"),
            "m.pt: offset 0: no mapping of names to tensors under 'model0'; there are: args, iteration, model");
  EXPECT_TRUE(refusal(mapping_archive({"a", "a"})).ends_with(": 'a' occurs twice"));
  EXPECT_TRUE(refusal(tensor_archive<float>({1}, {1})).ends_with(": expected a mapping of names here"));
}

TEST(PlainValue, IsShownAsPythonShowsIt) {
  const auto text = [](const std::string& of) { return PlainValue::text(of).repr(); };
  EXPECT_EQ(text("a'b"), "\"a'b\"");
  EXPECT_EQ(text("a\n\x1b"), "'a\\n\\x1b'");
  EXPECT_EQ(PlainValue::real(3).repr(), "3.0");
  EXPECT_EQ(PlainValue::real(1e300).repr(), "1e+300");
  EXPECT_EQ(PlainValue::tuple({PlainValue(), PlainValue::boolean(false)}).repr(), "(None, False)");
  EXPECT_EQ(PlainValue::tuple({}).repr(), "()");
  EXPECT_EQ(text(std::string(300, 'x')).substr(195), "xxxxx...");
  EXPECT_EQ(PlainValue::dict({{PlainValue::whole(1), PlainValue::list({})}}).repr(), "{1: []}");
}

TEST(PlainValue, IsNotTakenForAnotherKind) {
  EXPECT_THROW(PlainValue::whole(1).as_bool(), InvariantError);
  EXPECT_THROW(PlainValue::boolean(true).as_whole(), InvariantError);
  EXPECT_THROW(PlainValue::text("1").as_real(), InvariantError);
  EXPECT_THROW(PlainValue().as_text(), InvariantError);
  EXPECT_THROW(PlainValue().items(), InvariantError);
  EXPECT_EQ(PlainValue::whole(2).as_real(), 2.0);
  EXPECT_EQ(PlainValue::list({}).find("k"), nullptr);
  EXPECT_NE(PlainValue::text("a"), PlainValue::bytes("a"));
}

}  // namespace
}  // namespace loom::io
