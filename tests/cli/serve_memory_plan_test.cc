// What `lapidary serve` plans to take, and what it refuses to begin with.
#include <gtest/gtest.h>

#include "base/error.h"
#include "cli/serve/memory_plan.h"
#include "engine/engine.h"
#include "support/golden_models.h"
#include "support/temp_dir.h"

namespace lapidary::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

MachineMemory machine_with(int64_t available) {
  return {16 * kGiB, available, false};
}

PlanRequest request_for(const Checkpoint& checkpoint) {
  PlanRequest request;
  request.context = checkpoint.spec.max_position;
  request.running = 4;
  request.cached = 8;
  request.types = kv_types_from_name("f16", "types");
  return request;
}

std::string refusal(const Checkpoint& checkpoint, const MachineMemory& machine, const PlanRequest& request) {
  try {
    plan_memory(checkpoint, machine, request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::limit);
    return error.what();
  }
  return "";
}

class MemoryPlanTest : public testing::Test {
 protected:
  const Checkpoint checkpoint_ = open_golden_model("gemma4-e2b-tiny");
};

TEST_F(MemoryPlanTest, NoMoreThanAllTextsCanUse) {
  const PlanRequest request = request_for(checkpoint_);
  const MemoryPlan plan = plan_memory(checkpoint_, machine_with(8 * kGiB), request);
  EXPECT_EQ(plan.context, request.context);
  EXPECT_EQ(plan.kv_bytes, plan.text_bytes * (request.running + request.cached));
  EXPECT_GE(plan.kv_tokens, plan.context);
  EXPECT_LE(plan.total(), plan.machine.available);
}

TEST_F(MemoryPlanTest, HalfOfWhatIsLeft) {
  PlanRequest request = request_for(checkpoint_);
  request.running = 1000;
  request.cached = 4000;
  const int64_t fixed = plan_memory(checkpoint_, machine_with(8 * kGiB), request).total() -
                        plan_memory(checkpoint_, machine_with(8 * kGiB), request).kv_bytes;
  const MemoryPlan plan = plan_memory(checkpoint_, machine_with(fixed + 20 * kMiB), request);
  EXPECT_EQ(plan.kv_bytes, 10 * kMiB);
}

TEST_F(MemoryPlanTest, ARoomThatIsAskedForIsTakenAsItIs) {
  PlanRequest request = request_for(checkpoint_);
  request.kv_bytes = 100 * kMiB;
  EXPECT_EQ(plan_memory(checkpoint_, machine_with(8 * kGiB), request).kv_bytes, 100 * kMiB);
  EXPECT_NE(refusal(checkpoint_, machine_with(250 * kMiB), request).find("are missing"), std::string::npos);
  request.kv_bytes = 1000;
  request.context_asked = true;
  EXPECT_NE(refusal(checkpoint_, machine_with(8 * kGiB), request).find("do not hold one text"),
            std::string::npos);
}

TEST_F(MemoryPlanTest, AModelThatDoesNotFitIsRefusedByHowMuch) {
  const std::string message = refusal(checkpoint_, machine_with(100 * kMiB), request_for(checkpoint_));
  EXPECT_NE(message.find("the model does not fit"), std::string::npos) << message;
  EXPECT_NE(message.find("100 MiB are available"), std::string::npos) << message;
  EXPECT_NE(message.find("are missing"), std::string::npos) << message;
}

TEST_F(MemoryPlanTest, AContextThatWasNotAskedForIsLoweredToWhatFits) {
  Checkpoint checkpoint = open_golden_model("llama-tiny");
  checkpoint.spec.max_position = int64_t{1} << 24;
  PlanRequest request = request_for(checkpoint);
  const MemoryPlan roomy = plan_memory(checkpoint, machine_with(int64_t{1} << 50), request);
  const int64_t fixed = roomy.total() - roomy.kv_bytes;
  const MachineMemory machine = machine_with(fixed + roomy.text_bytes / 4);
  const MemoryPlan plan = plan_memory(checkpoint, machine, request);
  EXPECT_LT(plan.context, request.context);
  EXPECT_GT(plan.context, request.context / 5);
  EXPECT_EQ(plan.context % 256, 0);
  EXPECT_EQ(plan.made_for, request.context);
  EXPECT_EQ(plan.kv_bytes, plan.text_bytes);
  EXPECT_LE(plan.total(), machine.available);
  request.context_asked = true;
  const std::string message = refusal(checkpoint, machine, request);
  EXPECT_NE(message.find("one text of 16,777,216 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("lower --context"), std::string::npos) << message;
}

// The engine's own arithmetic of pages is never above the plan's.
TEST_F(MemoryPlanTest, AgreesWithTheEngine) {
  for (const char* name : {"gemma4-e2b-tiny", "gemma3-tiny", "llama-tiny"}) {
    const Checkpoint checkpoint = open_golden_model(name);
    const PlanRequest request = request_for(checkpoint);
    const MemoryPlan plan = plan_memory(checkpoint, machine_with(8 * kGiB), request);
    EngineOptions options;
    options.threads = 1;
    options.chunk = request.step_rows;
    options.max_sequences = 2;
    options.kv_dtype = request.types;
    const Engine engine(checkpoint.spec, *checkpoint.tensors, options);
    EXPECT_LE(engine.kv_bytes_at_length(engine.context()), plan.text_bytes) << name;
    EXPECT_LE(engine.stats().workspace_bytes, plan.workspace_bytes + kProgramBytes) << name;
    const EngineStats stats = engine.stats();
    EXPECT_LE(plan.weight_bytes, stats.weight_bytes + stats.mapped_bytes + kMiB) << name;
  }
}

class MachineMemoryTest : public testing::Test {
 protected:
  MachineMemoryTest() {
    write("proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n");
  }
  void write(const std::string& name, const std::string& text) { root_.write(name, std::string_view(text)); }
  TempDir root_;
};

TEST_F(MachineMemoryTest, WithoutGroupsIsTheMachines) {
  const MachineMemory memory = read_machine_memory(root_.path());
  EXPECT_EQ(memory.total, int64_t{16'000'000} * 1024);
  EXPECT_EQ(memory.available, int64_t{8'000'000} * 1024);
  EXPECT_FALSE(memory.limited);
}

TEST_F(MachineMemoryTest, TheTightestGroupOnTheWayUpCounts) {
  write("proc/self/cgroup", "0::/system.slice/lapidary.service\n");
  write("sys/fs/cgroup/system.slice/memory.max", "4294967296\n");
  write("sys/fs/cgroup/system.slice/memory.current", "1073741824\n");
  write("sys/fs/cgroup/system.slice/memory.stat", "anon 1\nfile 536870912\n");
  write("sys/fs/cgroup/system.slice/lapidary.service/memory.max", "max\n");
  const MachineMemory memory = read_machine_memory(root_.path());
  EXPECT_TRUE(memory.limited);
  EXPECT_EQ(memory.total, 4 * kGiB);
  EXPECT_EQ(memory.available, 4 * kGiB - kGiB / 2);  // pages of files make way
}

TEST_F(MachineMemoryTest, VersionOneOfTheGroupsToo) {
  write("proc/self/cgroup", "5:cpu:/x\n4:memory:/x/y\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "2147483648\n");
  write("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1048576\n");
  const MachineMemory memory = read_machine_memory(root_.path());
  EXPECT_EQ(memory.total, 2 * kGiB);
  EXPECT_EQ(memory.available, 2 * kGiB - kMiB);
}

TEST(MachineMemoryFailure, IsNamed) {
  const TempDir root;
  EXPECT_THROW(read_machine_memory(root.path()), Error);
}

}  // namespace
}  // namespace lapidary::test
