// `lapidary convert` as a user runs it: what it prints and refuses, and what stays when it is stopped.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cmath>
#include <csignal>
#include <limits>
#include <random>
#include <thread>

#include "cli/convert_tool.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/small_files.h"

namespace lapidary::test {
namespace {

namespace fs = std::filesystem;

std::string model(const std::string& name) {
  return data_path("models/" + name).string();
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(ConvertCommand, ReportsWhatItWrote) {
  const Program program;
  const auto report = program.json(
      {"convert", model("gemma4-e2b-mm-tiny"), "out.gguf", "--type", "Q8_0", "--json", "--threads", "1"});
  EXPECT_EQ(report.at("format").as_string(), "gguf");
  EXPECT_TRUE(report.at("written").as_bool());
  const fs::path out = program.folder().path() / "out.gguf";
  EXPECT_EQ(report.at("bytes").to_number<uintmax_t>(), fs::file_size(out));
  const auto& types = report.at("types").as_object();
  EXPECT_TRUE(types.contains("q8_0") && types.contains("f32"));
  int64_t bytes = 0, weights = 0;
  for (const auto& [type, count] : types) {
    bytes += count.at("bytes").as_int64();
    weights += count.at("elements").as_int64();
  }
  EXPECT_EQ(bytes, report.at("tensor_bytes").as_int64());
  EXPECT_NEAR(report.at("bits_per_weight").as_double(),
              8.0 * static_cast<double>(bytes) / static_cast<double>(weights), 1e-9);
  const Checkpoint source = open_checkpoint(model("gemma4-e2b-mm-tiny"));
  EXPECT_EQ(report.at("not_carried_over").as_array().size(), source.skipped.size());
  const Outcome text =
      program.run({"convert", model("gemma4-e2b-mm-tiny"), "second.gguf", "--type", "q4_k_m"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const std::string part : {"bits per weight", "not carried over: vision tower",
                                 "q5_0 instead: q4_k needs rows", "note: no tokenizer"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  }
}

TEST(ConvertCommand, ShowsAPlanAndWritesNothing) {
  const Program program;
  const Outcome outcome =
      program.run({"convert", model("llama-tiny"), "out.gguf", "--type", "Q8_0", "--dry-run"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("blk.0.attn_q.weight"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("nothing written"), std::string::npos) << outcome.out;
  EXPECT_TRUE(names_in(program.folder().path()).empty());
  // What would become of OUT is part of the plan.
  program.folder().write("out.gguf", std::string_view("mine"));
  std::vector<std::string> arguments = {"convert", model("llama-tiny"), "out.gguf", "--dry-run"};
  EXPECT_NE(program.run(arguments).out.find("note: without --dry-run this would be refused: out.gguf: "
                                            "expected nothing there, got a file"),
            std::string::npos)
      << program.run(arguments).out;
  arguments.emplace_back("--force");
  EXPECT_NE(program.run(arguments).out.find("note: out.gguf is replaced"), std::string::npos);
  EXPECT_EQ(read_text_file(program.folder().path() / "out.gguf"), "mine");
}

TEST(ConvertCommand, RefusesInWords) {
  const Program program;
  const auto refused = [&](std::vector<std::string> arguments, int code, const std::string& part) {
    arguments.insert(arguments.begin(), "convert");
    expect_refusal(program.run(arguments), code, part);
    for (const std::string& name : names_in(program.folder().path())) EXPECT_EQ(name, "there.gguf") << name;
  };
  refused({model("llama-tiny"), "out.gguf", "--type", "q5_km"}, 2, "did you mean Q5_K_M?");
  refused({model("llama-tiny"), "out.gguf", "--type", "float"}, 2, "--type: expected one of F32, F16, BF16");
  refused({model("llama-tiny"), "out", "--type", "Q8_0"}, 2, "a model folder holds floats");
  refused({model("llama-tiny"), "out", "--shard-size", "big"}, 2, "--shard-size: expected a size such as");
  refused({model("llama-tiny"), "out", "--shard-size", "banana", "--dry-run"}, 2, "got \"banana\"");
  refused({model("llama-tiny"), ""}, 2, "expected the name of a folder to write, got an empty one");
  refused({model("llama-tiny"), "out/", "--format", "gguf"}, 2, "got one that ends in a slash");
  refused({model("llama-tiny"), std::string(300, 'x')}, 1, "x: cannot look at: File name too long");
  refused({model("llama-tiny"), std::string(300, 'x') + ".gguf"}, 1, "cannot look at: File name too long");
  refused({model("llama-tiny"), "nodir/out"}, 1, "nodir: no such folder");
  refused({model("llama-tiny"), "nodir/out/"}, 1, "nodir: no such folder");
  refused({model("llama-tiny"), "nodir/out.gguf"}, 1, "nodir: no such folder");
  refused({model("llama-tiny"), "out.gguf", "--shard-size", "1GB"}, 2, "--shard-size is for model folders");
  refused({"absent", "out.gguf"}, 1, "absent");
  refused({std::string(300, 'x'), "out.gguf"}, 1, "x: cannot look at: File name too long");
  refused({model("llama-tiny"), "no/such/folder/out.gguf"}, 1, "no/such/folder");
  refused({model("llama-tiny"), "no/such/folder/out"}, 1, "no/such/folder");
  refused({model("gemma3-tiny"), "out.gguf"}, 1, "layers[0].attention.scale");
  program.folder().write("there.gguf", std::string_view("mine"));
  refused({model("llama-tiny"), "there.gguf"}, 1, "there.gguf: expected nothing there");
  EXPECT_EQ(read_text_file(program.folder().path() / "there.gguf"), "mine");
  EXPECT_EQ(program.run({"convert", model("llama-tiny"), "there.gguf", "--force"}).exit_code, 0);
  EXPECT_EQ(open_checkpoint(program.folder().path() / "there.gguf").family, "llama");
}

TEST(ConvertCommand, ReplacesModelFoldersOnly) {
  const Program program;
  const fs::path home = program.folder().path() / "home";
  program.folder().write("home/letter.txt", std::string_view("dear"));
  const std::vector<std::string> forced = {"convert", model("llama-tiny"), "home", "--force"};
  expect_refusal(program.run({"convert", model("llama-tiny"), "home"}), 1, "home: expected nothing there");
  expect_refusal(program.run(forced), 2, "only a model folder can be replaced");
  program.folder().write("home/config.json", std::string_view("{}"));
  expect_refusal(program.run(forced), 2, "holds the file \"letter.txt\"");
  EXPECT_TRUE(fs::exists(home / "letter.txt"));
  fs::remove(home / "letter.txt");
  fs::create_directories(home / "photos");
  expect_refusal(program.run(forced), 2, "holds the folder \"photos\"");
  fs::remove(home / "photos");
  program.folder().write("home/model-00001-of-00002.safetensors", std::string_view("old"));
  EXPECT_EQ(program.run(forced).exit_code, 0);
  EXPECT_FALSE(fs::exists(home / "model-00001-of-00002.safetensors"));
  EXPECT_EQ(open_checkpoint(home).family, "llama");
}

TEST(ConvertCommand, ReplacesLikeByLikeOnly) {
  const Program program;
  program.folder().write("file", std::string_view("mine"));
  program.folder().write("dir.gguf/config.json", std::string_view("{}"));
  expect_refusal(program.run({"convert", model("llama-tiny"), "file", "--force"}), 1,
                 "file: expected a folder or nothing there, got a file");
  expect_refusal(program.run({"convert", model("llama-tiny"), "dir.gguf", "--force"}), 1,
                 "dir.gguf: expected a file or nothing there, got a folder");
  EXPECT_EQ(read_text_file(program.folder().path() / "file"), "mine");
  EXPECT_EQ(names_in(program.folder().path() / "dir.gguf"), std::vector<std::string>{"config.json"});
}

TEST(ConvertCommand, TakesFolderNamesWithASlash) {
  const Program program;
  const Outcome outcome = program.run({"convert", model("llama-tiny"), "out/"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(open_checkpoint(program.folder().path() / "out").family, "llama");
}

TEST(ConvertCommand, NamesNumbersThatAreNone) {
  const Program program;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Golden weights(data_path("models/llama-tiny/model.safetensors"));
    auto tensors = weights.file().tensors;
    const std::string name = "model.layers.2.mlp.down_proj.weight";
    std::vector<float> values = weights.floats(name);
    const auto columns = static_cast<size_t>(weights.shape(name).back());
    values.at(5 * columns + 7) = bad;
    tensors.at(name).bytes = std::as_bytes(std::span(values));
    program.folder().write("bad/model.safetensors", write_safetensors(tensors));
    program.folder().write("bad/config.json", read_text_file(data_path("models/llama-tiny/config.json")));
    for (const std::string type : {"Q8_0", "F32", "BF16"}) {
      expect_refusal(program.run({"convert", "bad", "out.gguf", "--type", type}), 1,
                     "layers.2.down (to be written as \"blk.2.ffn_down.weight\"): row 5, column 7");
      EXPECT_FALSE(fs::exists(program.folder().path() / "out.gguf"));
    }
  }
  // Finite, and beyond what half precision holds.
  const Golden weights(data_path("models/llama-tiny/model.safetensors"));
  auto tensors = weights.file().tensors;
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  std::vector<float> values = weights.floats(name);
  values.at(3) = 1e6f;
  tensors.at(name).bytes = std::as_bytes(std::span(values));
  program.folder().write("bad/model.safetensors", write_safetensors(tensors));
  expect_refusal(
      program.run({"convert", "bad", "out.gguf", "--type", "F16"}), 1,
      "layers.0.query (to be written as \"blk.0.attn_q.weight\"): row 0, column 3: expected a number "
      "that f16 can hold, got 1000000");
}

TEST(ConvertCommand, LeavesNothingWhenTheDiskIsFull) {
  const Program program;
  Outcome file, folder;
  {
    const SmallFiles full_disk(100'000);
    file = program.run({"convert", model("llama-tiny"), "out.gguf"});
    folder = program.run({"convert", model("llama-tiny"), "out"});
  }
  expect_refusal(file, 1, "out.gguf: cannot write: File too large (");
  expect_refusal(folder, 1, "cannot write: File too large (");
  EXPECT_TRUE(names_in(program.folder().path()).empty());
}

// A small disk of memory; only a privileged user may have one.
class SmallDisk {
 public:
  SmallDisk(const fs::path& path, unsigned long flags, const char* options) : path_(path) {
    fs::create_directories(path);
    mounted_ = ::mount("tmpfs", path.c_str(), "tmpfs", flags, options) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  fs::path path_;
  bool mounted_ = false;
};

TEST(ConvertCommand, ChecksTheRoomBeforeItStarts) {
  const Program program;
  const fs::path path = program.folder().path() / "disk";
  const SmallDisk disk(path, 0, "size=256k");
  if (!disk.mounted()) GTEST_SKIP() << "this user may not mount a disk";
  for (const std::string out : {"disk/out.gguf", "disk/out"}) {
    const Outcome outcome = program.run({"convert", model("llama-tiny"), out});
    expect_refusal(outcome, 1, "the disk has room for ");
    EXPECT_NE(outcome.err.find(" bytes, "), std::string::npos);
    EXPECT_NE(outcome.err.find(" are needed"), std::string::npos);
    EXPECT_TRUE(names_in(path).empty());
  }
}

TEST(ConvertCommand, SaysThatADiskIsReadOnly) {
  const Program program;
  expect_refusal(program.run({"convert", model("llama-tiny"), "/proc/self/out.gguf"}), 1,
                 "/proc/self/out.gguf: the disk has room for 0 bytes");
  const SmallDisk disk(program.folder().path() / "disk", MS_RDONLY, "size=16m");
  if (!disk.mounted()) GTEST_SKIP() << "this user may not mount a disk";
  for (const std::string out : {"disk/out.gguf", "disk/out"}) {
    expect_refusal(program.run({"convert", model("llama-tiny"), out}), 1,
                   "cannot create: Read-only file system");
  }
}

std::string whole(const fs::path& path) {
  return read_text_file(fs::is_directory(path) ? path / "model.safetensors" : path);
}

std::vector<std::string> temporaries_in(const fs::path& folder) {
  std::vector<std::string> names = names_in(folder);
  std::erase_if(names,
                [](const std::string& name) { return !name.starts_with('.') || !name.ends_with(".tmp"); });
  return names;
}

bool has_ended(int process) {
  siginfo_t status{};
  return ::waitid(P_PID, static_cast<id_t>(process), &status, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         status.si_pid != 0;
}

// Runs until it has a temporary of its own, then kills it within `longest` seconds, at random. False: it was
// through before it was seen.
bool kill_while_writing(const Program& program, const std::vector<std::string>& command, double longest,
                        std::mt19937& random) {
  const fs::path& folder = program.folder().path();
  const std::vector<std::string> left = temporaries_in(folder);
  const TerminalSession session(program, {.arguments = command});
  for (;;) {
    const std::vector<std::string> now = temporaries_in(folder);
    if (!now.empty() && now != left) break;
    if (has_ended(session.process())) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  for (const std::string& name : left) EXPECT_FALSE(fs::exists(folder / name)) << "a leftover stayed";
  std::this_thread::sleep_for(
      std::chrono::duration<double>(std::uniform_real_distribution<double>(0, longest)(random)));
  ::kill(session.process(), SIGKILL);
  return true;
}

// Killed twenty times at random moments of writing: the target is what it was, or the whole new model, and
// the next run removes what is left.
class KilledConvert : public testing::TestWithParam<std::string> {};

TEST_P(KilledConvert, LeavesTheOldOrTheNewModel) {
  const Program program;
  const fs::path folder = program.folder().path(), target = folder / GetParam();
  const bool gguf = target.extension() == ".gguf";
  std::vector<std::string> command = {"convert", model("gemma4-e2b-wide"), GetParam(), "--type",
                                      gguf ? "Q6_K" : "F32"};
  const Outcome whole_run = program.run(command);
  ASSERT_EQ(whole_run.exit_code, 0) << whole_run.err;
  const std::string made = whole(target);
  fs::remove_all(target);
  command.emplace_back("--force");
  std::mt19937 random(gguf ? 2 : 1);
  int hits = 0, finished = 0;
  double longest = whole_run.seconds;
  std::string old;
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    if (round == 10) {  // from here on there is a model to be replaced
      fs::remove_all(target);
      ASSERT_EQ(program.run({"convert", model("llama-tiny"), GetParam()}).exit_code, 0);
      EXPECT_TRUE(temporaries_in(folder).empty()) << "leftovers";
      old = whole(target);
    }
    const bool killed = kill_while_writing(program, command, longest, random);
    const size_t left = temporaries_in(folder).size();
    EXPECT_LE(left, 1u) << "leftovers pile up";
    if (killed && left == 1) ++hits;
    if (!fs::exists(target)) {
      EXPECT_LT(round, 10);
      continue;
    }
    const std::string now = whole(target);
    EXPECT_TRUE(now == made || (!old.empty() && now == old)) << "a damaged model";
    EXPECT_NO_THROW(open_checkpoint(target));
    if (now != made) continue;
    ++finished;
    longest *= 0.7;  // writing takes less than a whole run, and the machine is faster than it was
    if (round < 10) fs::remove_all(target);
  }
  std::printf("%d runs were killed while they wrote, %d had come to their end\n", hits, finished);
  EXPECT_GE(hits, 5) << "too few kills met a run that wrote";
  ASSERT_EQ(program.run(command).exit_code, 0);
  EXPECT_EQ(whole(target), made);
  EXPECT_EQ(names_in(folder), std::vector<std::string>{GetParam()}) << "leftovers";
}

INSTANTIATE_TEST_SUITE_P(Targets, KilledConvert, testing::Values("model.gguf", "model"),
                         [](const auto& test) { return test.param == "model" ? "folder" : "gguf"; });

TEST(ConvertCommand, EndsCleanlyOnCtrlC) {
  const Program program;
  TerminalSession session(program, {.arguments = {"convert", model("gemma4-e2b-wide"), "out.gguf", "--type",
                                                  "Q6_K", "--threads", "1"}});
  const auto started = [&] { return !names_in(program.folder().path()).empty(); };
  for (int i = 0; i < 2000 && !started(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ::kill(session.process(), SIGINT);
  const int code = session.wait_for_exit();
  // On a busy machine the signal may come when all is done.
  EXPECT_TRUE(code == 130 || (code == 0 && fs::exists(program.folder().path() / "out.gguf"))) << code;
  if (code == 130) {
    EXPECT_TRUE(names_in(program.folder().path()).empty());
  }
}

// Memory: three times the largest tensor, and what the program needs anyway.
TEST(ConvertCommand, StreamsInLittleMemory) {
  const Program program;
  const auto small = program.json({"convert", model("llama-tiny"), "small.gguf", "--json"});
  const auto report =
      program.json({"convert", model("gemma4-e2b-wide"), "out.gguf", "--type", "Q8_0", "--json"});
  const int64_t beyond = report.at("peak_memory_bytes").as_int64() - small.at("peak_memory_bytes").as_int64();
  constexpr int64_t kBuffers = 10 << 20;  // a stretch of rows of 4 MB, and the allocator's slack
  EXPECT_LT(beyond, 3 * report.at("largest_tensor_bytes").as_int64() + kBuffers);
}

}  // namespace
}  // namespace lapidary::test
