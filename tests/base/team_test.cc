#include "base/team.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"

namespace lapidary {
namespace {

TEST(Team, CoversEveryIndexExactlyOnceForAnySizeGrainAndNumberOfThreads) {
  for (int threads : {1, 2, 3, 8}) {
    Team team(threads);
    for (int64_t n : {1, 2, 7, 63, 64, 65, 1000})
      for (int64_t grain : {1, 4, 16, 2000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        std::atomic<bool> aligned{true};
        team.parallel_for(n, grain, [&](int64_t begin, int64_t end, int thread) {
          if (begin % grain != 0 || thread < 0 || thread >= threads) aligned = false;
          for (int64_t i = begin; i < end; i++) seen[static_cast<size_t>(i)]++;
        });
        ASSERT_TRUE(aligned);
        for (int64_t i = 0; i < n; i++)
          ASSERT_EQ(seen[static_cast<size_t>(i)], 1) << "index " << i << " of " << n << ", grain " << grain;
      }
  }
}

TEST(Team, EveryCallEndsAfterItsWorkAndBeforeTheNext) {
  Team team(4);
  std::vector<int64_t> values(256);
  for (int64_t round = 1; round <= 20000; round++) {
    team.parallel_for(256, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) values[static_cast<size_t>(i)] += round;
    });
    ASSERT_EQ(values[0], round * (round + 1) / 2);
    ASSERT_EQ(values[255], values[0]);
  }
}

TEST(Team, WorkersThatFellAsleepComeBack) {
  Team team(2);
  std::atomic<int> ran{0};
  for (int round = 0; round < 3; round++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    team.parallel_for(2, 1, [&](int64_t begin, int64_t end, int) { ran += static_cast<int>(end - begin); });
  }
  EXPECT_EQ(ran, 6);
}

TEST(Team, TwoThreadsNeverShareAnIndexOfTheirOwn) {
  Team team(4);
  std::atomic<int> inside[4] = {};
  std::atomic<bool> clash{false};
  team.parallel_for(4000, 1, [&](int64_t begin, int64_t end, int thread) {
    if (inside[thread].fetch_add(1) != 0) clash = true;
    for (int64_t i = begin; i < end; i++) std::this_thread::yield();
    inside[thread].fetch_sub(1);
  });
  EXPECT_FALSE(clash);
}

cpu_set_t affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

TEST(Team, PinnedThreadsHaveACoreEachAndTheCallerIsFreeAgainAfterwards) {
  const cpu_set_t before = affinity();
  {
    Team team(usable_cores(), true);
    std::vector<std::atomic<int>> cpu_of(static_cast<size_t>(team.size()));
    for (int round = 0; round < 50; round++) {
      team.parallel_for(team.size(), 1, [&](int64_t, int64_t, int thread) {
        const cpu_set_t mine = affinity();
        EXPECT_EQ(CPU_COUNT(&mine), 1) << "thread " << thread;
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
          if (CPU_ISSET(cpu, &mine)) cpu_of[static_cast<size_t>(thread)] = cpu + 1;
      });
    }
    std::set<int> cpus;
    int seen = 0;
    for (const std::atomic<int>& cpu : cpu_of)
      if (cpu > 0) seen++, cpus.insert(cpu);
    EXPECT_EQ(static_cast<int>(cpus.size()), seen) << "two threads on one core";
    EXPECT_GT(cpu_of[0], 0);
  }
  const cpu_set_t after = affinity();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
  EXPECT_THROW(Team(4096, true), Error);
}

TEST(Team, RefusesASizeThatMakesNoSense) {
  EXPECT_THROW(Team(0), Error);
  EXPECT_THROW(Team(-3), Error);
  EXPECT_GE(usable_cores(), 1);
}

}  // namespace
}  // namespace lapidary
