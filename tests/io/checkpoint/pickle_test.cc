#include "io/checkpoint/pickle.h"

#include <fmt/format.h>

#include "tests/io/checkpoint/files.h"

namespace sluice::io {
namespace {

using std::string;

// Pickles put together by hand, opcode by opcode (the names are pickletools').
string text(const string& value) {
  const auto size = static_cast<uint32_t>(value.size());
  string bytes = "X";
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(size >> (8 * i));
  return bytes + value;
}
string integer(int64_t value) {
  string bytes = "\x8a\x08";
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  return bytes;
}
string global(const string& module, const string& symbol) {
  return "c" + module + "\n" + symbol + "\n";
}
string tuple(const string& items) { return "(" + items + "t"; }
string tuple_of(std::initializer_list<int64_t> values) {
  string items;
  for (const int64_t value : values) items += integer(value);
  return tuple(items);
}
string storage(const string& type, int64_t elements, const string& key = "0") {
  return tuple(text("storage") + global("torch", type) + text(key) + text("cpu") +
               integer(elements)) +
         "Q";
}
string tensor(const string& storage_bytes, int64_t offset, std::initializer_list<int64_t> shape,
              std::initializer_list<int64_t> strides) {
  return global("torch._utils", "_rebuild_tensor_v2") +
         tuple(storage_bytes + integer(offset) + tuple_of(shape) + tuple_of(strides) + "\x89" +
               global("collections", "OrderedDict") + ")R") +
         "R";
}
string entry(const string& name, const string& value) { return text(name) + value + "s"; }
string pickle(const string& value) { return "\x80\x02" + value + "."; }
string dict(const string& entries) { return "}" + entries; }

std::vector<PickledTensor> read(const string& bytes) {
  return read_torch_pickle(std::as_bytes(std::span(bytes)), "m/x.bin");
}

void expect_pickle_refused(const string& bytes, std::initializer_list<std::string_view> words) {
  expect_refusal([&] { read(bytes); }, ErrorKind::kFile, {"m/x.bin"});
  expect_refusal([&] { read(bytes); }, ErrorKind::kFile, words);
}

const string kTensor = tensor(storage("FloatStorage", 6), 0, {2, 3}, {3, 1});

TEST(Pickle, ReadsATensor) {
  const auto tensors = read(
      pickle(dict(entry("w", tensor(storage("BFloat16Storage", 10, "7"), 4, {2, 3}, {3, 1})))));
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].name, "w");
  EXPECT_EQ(tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensors[0].storage_key, "7");
  EXPECT_EQ(tensors[0].storage_offset, 4);
  EXPECT_EQ(tensors[0].storage_elements, 10);
}

TEST(Pickle, KnowsEveryStorageClass) {
  const std::pair<const char*, DType> kClasses[] = {
      {"FloatStorage", DType::kF32},     {"HalfStorage", DType::kF16},
      {"BFloat16Storage", DType::kBF16}, {"DoubleStorage", DType::kF64},
      {"LongStorage", DType::kI64},      {"IntStorage", DType::kI32},
      {"ShortStorage", DType::kI16},     {"CharStorage", DType::kI8},
      {"ByteStorage", DType::kU8},       {"BoolStorage", DType::kBool}};
  for (const auto& [name, dtype] : kClasses)
    EXPECT_EQ(read(pickle(dict(entry("w", tensor(storage(name, 1), 0, {1}, {1}))))).at(0).dtype,
              dtype)
        << name;
}

TEST(Pickle, ReadsUntypedStorageWithAnElementType) {
  const string value =
      global("torch._utils", "_rebuild_tensor_v3") +
      tuple(tuple(text("storage") + global("torch.storage", "UntypedStorage") + text("0") +
                  text("cpu") + integer(12)) +
            "Q" + integer(1) + tuple_of({5}) + tuple_of({1}) + "\x89" +
            global("collections", "OrderedDict") + ")R" + global("torch", "float16")) +
      "R";
  const auto tensors = read(pickle(dict(entry("w", value))));
  EXPECT_EQ(tensors.at(0).dtype, DType::kF16);
  EXPECT_EQ(tensors.at(0).storage_elements, 6);
}

TEST(Pickle, UnwrapsParametersAndStateDicts) {
  const string parameter = global("torch._utils", "_rebuild_parameter") +
                           tuple(kTensor + "\x88" + global("collections", "OrderedDict") + ")R") +
                           "R";
  EXPECT_EQ(read(pickle(dict(entry("w", parameter)))).size(), 1u);
  for (const char* wrapper :
       {"state_dict", "model", "module", "model_state_dict", "any other name"})
    EXPECT_EQ(
        read(pickle(dict(entry("epoch", integer(3)) + entry(wrapper, dict(entry("w", kTensor))))))
            .size(),
        1u)
        << wrapper;
  // With several candidates the usual name wins, and without a usual name nobody guesses.
  const string two =
      entry("ema", dict(entry("e", kTensor))) + entry("model", dict(entry("m", kTensor)));
  EXPECT_EQ(read(pickle(dict(two))).at(0).name, "m");
  expect_pickle_refused(pickle(dict(entry("one", dict(entry("e", kTensor))) +
                                    entry("two", dict(entry("m", kTensor))))),
                        {"no tensors by name"});
}

TEST(Pickle, IgnoresValuesThatAreNoTensors) {
  const string clutter =
      entry("none", "N") + entry("float", "G12345678") +
      entry("list",
            "](K\x01K\x02"
            "e") +
      entry("big",
            "\x8a\x0a"
            "1234567890") +
      entry("true", "\x88") + integer(4) + "K\x05s" + entry("tuple", tuple_of({1, 2})) +
      entry("device", global("torch", "device") + text("cpu") + "\x85R") +
      entry("size", global("torch", "Size") + tuple_of({2}) + "\x85R") +
      entry("text", text("hello")) + entry("set", "\x8f(K\x01\x90") + entry("frozen", "(K\x01\x91");
  EXPECT_EQ(read(pickle(dict(clutter + entry("w", kTensor)))).size(), 1u);
}

TEST(Pickle, AnythingThatCouldRunIsRefusedByName) {
  const std::pair<string, string> kNames[] = {{"os", "system"},
                                              {"posix", "system"},
                                              {"builtins", "eval"},
                                              {"builtins", "getattr"},
                                              {"subprocess", "Popen"},
                                              {"torch", "load"},
                                              {"torch.storage", "_load_from_bytes"},
                                              {"numpy.core.multiarray", "_reconstruct"},
                                              {"__builtin__", "exec"},
                                              {"collections", "OrderedDict.__class__"},
                                              {"torch._utils", "_rebuild_tensor_v2.__globals__"},
                                              {"", ""}};
  for (const auto& [module, symbol] : kNames) {
    const string name = module + "." + symbol;
    expect_pickle_refused(
        pickle(dict(entry("w", kTensor) +
                    entry("x", global(module, symbol) + tuple(text("touch x")) + "R"))),
        {name, "refused"});
    expect_pickle_refused(pickle(dict(entry("x", text(module) + text(symbol) + "\x93"))),
                          {name, "refused"});
  }
}

TEST(Pickle, OpcodesThatMakeObjectsAreRefused) {
  // INST, OBJ, NEWOBJ_EX, EXT1, EXT2, EXT4, PERSID, NEXT_BUFFER, READONLY_BUFFER, and bytes that
  // are no opcode.
  for (const char* opcode : {"(ios\nsystem\n", "(o", "\x92", "\x82\x01", "\x83\x01\x01",
                             "\x84\x01\x01\x01\x01", "Pstorage\n", "\x97", "\x98", "\x7f", "\xff"})
    expect_pickle_refused(pickle(dict(entry("x", opcode))), {"opcode", "refused"});
}

TEST(Pickle, NamesAreCalledOnlyWithWhatTheyTake) {
  const string rebuild = global("torch._utils", "_rebuild_tensor_v2");
  for (const string& call :
       {rebuild + ")R", rebuild + tuple_of({1, 2, 3, 4}) + "R", rebuild + "NR", string("K\x01)R"),
        global("torch", "FloatStorage") + ")R", global("torch", "float32") + ")R",
        global("torch", "Size") + ")R", global("collections", "OrderedDict") + tuple_of({1}) + "R",
        global("torch._utils", "_rebuild_parameter") + tuple_of({1}) + "R",
        global("torch", "Size") + "Nb"})
    expect_pickle_refused(pickle(dict(entry("x", call))), {"pickle at byte"});
  for (const string& id :
       {text("storage") + "Q", tuple(text("storage")) + "Q",
        tuple(text("module") + global("torch", "FloatStorage") + text("0") + text("cpu") +
              integer(1)) +
            "Q",
        tuple(text("storage") + global("torch", "Size") + text("0") + text("cpu") + integer(1)) +
            "Q",
        tuple(text("storage") + global("torch", "FloatStorage") + text("0") + text("cpu") +
              integer(-1)) +
            "Q"})
    expect_pickle_refused(pickle(dict(entry("x", id))), {"pickle at byte"});
}

TEST(Pickle, RefusesTensorsThatAreNotWhatTheySay) {
  const auto refused = [](const string& value, std::initializer_list<std::string_view> words) {
    expect_pickle_refused(pickle(dict(entry("layer.weight", value))), {"\"layer.weight\""});
    expect_pickle_refused(pickle(dict(entry("layer.weight", value))), words);
  };
  refused(tensor(storage("FloatStorage", 6), 0, {3, 2}, {1, 3}),
          {"not contiguous", "[3, 2]", "[1, 3]"});
  refused(tensor(storage("FloatStorage", 6), 0, {2, 3}, {0, 1}), {"not contiguous"});
  refused(tensor(storage("FloatStorage", 6), 1, {2, 3}, {3, 1}),
          {"6 elements from 1", "storage of 6"});
  refused(tensor(storage("FloatStorage", 6), -1, {2, 3}, {3, 1}), {"storage"});
  refused(tensor(storage("FloatStorage", 6), INT64_MAX, {1}, {1}), {"storage"});
  refused(tensor(storage("FloatStorage", 6), 0, {-2, 3}, {3, 1}), {"shape"});
  refused(tensor(storage("FloatStorage", 6), 0, {2, 3}, {1}), {"makes no sense"});
  refused(tensor(storage("FloatStorage", INT64_MAX), 0, {INT64_MAX, 2}, {2, 1}),
          {"makes no sense"});
  refused(tensor(storage("FloatStorage", INT64_MAX), 0, {INT64_MAX}, {1}), {"makes no sense"});
  refused(tensor(storage("FloatStorage", 6, string(300, '0')), 0, {6}, {1}), {"storage's name"});
  expect_pickle_refused(pickle(dict(entry("w", kTensor) + entry("w", kTensor))),
                        {"\"w\"", "twice"});
}

TEST(Pickle, AcceptsAnyStrideWhereItDoesNotMatter) {
  EXPECT_EQ(
      read(pickle(dict(entry("w", tensor(storage("FloatStorage", 6), 0, {1, 6}, {99, 1}))))).size(),
      1u);
  EXPECT_EQ(
      read(pickle(dict(entry("w", tensor(storage("FloatStorage", 0), 0, {0, 6}, {1, 1}))))).size(),
      1u);
  EXPECT_EQ(read(pickle(dict(entry("w", tensor(storage("FloatStorage", 1), 0, {}, {}))))).size(),
            1u);
}

TEST(Pickle, RefusesPicklesThatAreNotWhole) {
  const string whole = pickle(dict(entry("w", kTensor)));
  for (size_t size = 0; size < whole.size(); ++size)
    expect_pickle_refused(whole.substr(0, size), {"pickle at byte"});
  for (const char* bytes : {"N.",
                            "}K\x01.",
                            "(.",
                            "0.",
                            "1.",
                            "t.",
                            "\x86.",
                            "s.",
                            "u.",
                            "e.",
                            "R.",
                            "b.",
                            "Q.",
                            "h\x05.",
                            "2.",
                            "j\x01\x02\x03\x04.",
                            "q\x01.",
                            "\x94.",
                            "(}0s.",
                            "](K\x01u.",
                            "}(K\x01u.",
                            "}K\x01"
                            "a.",
                            "\x93."})
    expect_pickle_refused(string("\x80\x02") + bytes, {"m/x.bin"});
  expect_pickle_refused("\x80\x01N.", {"protocol 1"});
  expect_pickle_refused("\x80\x06N.", {"protocol 6"});
  expect_pickle_refused(pickle("N"), {"no dict"});
}

TEST(Pickle, LengthsThatLieCostNothing) {
  for (const char* bytes :
       {"X\xff\xff\xff\xff", "B\xff\xff\xff\x7f", "\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
        "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", "\x96\x00\x00\x00\x00\x00\x01\x00\x00",
        "\x8b\xff\xff\xff\x7f",
        "U\xff"
        "abc"})
    expect_pickle_refused(string("\x80\x02") + bytes, {"ends in the middle"});
  expect_pickle_refused("\x80\x02}r\xff\xff\xff\xff.", {"memo slot"});
  expect_pickle_refused(string("\x80\x02}r\xff\xff\x0f\x00.", 9), {"memo slot"});
}

TEST(Pickle, BoundsHoldAgainstExpandingPickles) {
  // A million nested tuples, lists of themselves, and more values than are allowed: errors, no
  // recursion, no explosion.
  expect_pickle_refused(pickle("N" + string(1'000'000, '\x85')), {"no dict"});
  expect_pickle_refused(pickle("]q" + string(1, '\0') + string("h\0a", 3)), {"no dict"});
  expect_pickle_refused("\x80\x02" + string(kMaxPickleNodes + 10, ']'), {"more than"});
  expect_pickle_refused("\x80\x02" + string(kMaxPickleNodes + 10, '('), {"too many marks"});
  string doubling = "]q" + string(1, '\0');
  for (int i = 1; i < 200; ++i)
    doubling += string("h") + static_cast<char>(i - 1) + "2\x86q" + static_cast<char>(i);
  expect_pickle_refused("\x80\x02" + doubling + ".", {"m/x.bin"});
  // A dict inside itself, and one dict under very many names.
  expect_pickle_refused(pickle("}q" + string(1, '\0') + text("model") + string("h\0s", 3)),
                        {"no tensors"});
  string large = "}q" + string(1, '\0') + "}q\x01";
  for (int i = 0; i < 20000; ++i) large += text(fmt::format("a{}", i)) + "Ns";
  large += "0";
  for (int i = 0; i < 20000; ++i) large += text(fmt::format("b{}", i)) + "h\x01s";
  expect_pickle_refused(pickle(large), {"no tensors"});
}

TEST(Pickle, RefusesMoreBytesThanItPromises) {
  const string large(kMaxPickleBytes + 1, 'N');
  expect_pickle_refused(large, {"not read"});
}

}  // namespace
}  // namespace sluice::io
