#include "kvlab/bandwidth.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/team.h"
#include "kernels/kernels.h"
#include "kernels/machine_probe.h"
#include "kvlab/fit.h"

namespace lapidary::kvlab {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 7;
constexpr int64_t kMiB = int64_t{1} << 20;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "48K", "2048K", "32M"
int64_t size_of(const std::string& text) {
  const int64_t number = std::atoll(text.c_str());
  if (text.ends_with('K')) return number << 10;
  if (text.ends_with('M')) return number << 20;
  return number;
}

ReadPoint point(const kernels::ReadProbe& probe, Team& team, int64_t bytes) {
  const std::vector<double> rates = probe.rates(team, kernels::kernels().isa, bytes, kRounds);
  return {bytes, quantile(rates, 0.5), *std::max_element(rates.begin(), rates.end())};
}

// Powers of two from 128 KiB on, and the whole.
std::vector<int64_t> sweep_sizes(int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t size = 128 << 10; size < most; size *= 2) sizes.push_back(size);
  sizes.push_back(most);
  return sizes;
}

void choose_size(Bandwidth& out, int64_t megabytes) {
  const int64_t four = 4 * out.last_level;
  int64_t wanted = megabytes * kMiB;
  if (megabytes == 0) wanted = four > 0 ? std::max(four, 256 * kMiB) : 1024 * kMiB;
  const int64_t most = available_memory_bytes() / 2 / kMiB * kMiB;
  out.probe_bytes = std::max(kMiB, std::min(wanted, most));
  if (out.last_level == 0) {
    out.note = "the system does not say how large the last cache is";
  } else if (out.probe_bytes < wanted) {
    out.note = fmt::format("capped at {} MiB by half of the available memory; {} MiB were wanted",
                           out.probe_bytes / kMiB, wanted / kMiB);
  } else if (out.probe_bytes < four) {
    out.note = fmt::format(
        "{} MiB are less than four times the last cache ({} MiB): part of what is read may come "
        "from it",
        out.probe_bytes / kMiB, four / kMiB);
  }
}

}  // namespace

std::vector<CacheLevel> cache_levels() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  // A cache is known by its level, its type and the CPUs that share it.
  std::map<std::tuple<int, std::string, int64_t>, std::set<std::string>> found;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &allowed) == 0) continue;
    for (int index = 0;; ++index) {
      const fs::path folder = fmt::format("/sys/devices/system/cpu/cpu{}/cache/index{}", cpu, index);
      std::error_code error;
      if (!fs::exists(folder, error)) break;
      const std::string type = first_line(folder / "type");
      const int64_t bytes = size_of(first_line(folder / "size"));
      if (type == "Instruction" || bytes <= 0) continue;
      found[{std::atoi(first_line(folder / "level").c_str()), type, bytes}].insert(
          first_line(folder / "shared_cpu_list"));
    }
  }
  std::vector<CacheLevel> out;
  for (const auto& [key, instances] : found)
    out.push_back(
        {std::get<0>(key), std::get<1>(key), std::get<2>(key), static_cast<int64_t>(instances.size())});
  return out;
}

int64_t last_level_bytes(const std::vector<CacheLevel>& caches) {
  int64_t bytes = 0;
  for (const CacheLevel& cache : caches)
    if (cache.level == caches.back().level) bytes += cache.all_bytes();
  return bytes;
}

int64_t available_memory_bytes() {
  int64_t available = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("MemAvailable:")) available = std::atoll(line.c_str() + 13) * 1024;
  ensure(available > 0, ErrorCode::io, "/proc/meminfo does not say how much memory is available");
  // Version 2 of the control groups, as seen from inside a container; elsewhere the files are not there.
  const std::string limit = first_line("/sys/fs/cgroup/memory.max"),
                    used = first_line("/sys/fs/cgroup/memory.current");
  if (!limit.empty() && limit != "max" && !used.empty())
    available =
        std::min(available, std::max<int64_t>(0, std::atoll(limit.c_str()) - std::atoll(used.c_str())));
  return available;
}

Bandwidth measure_bandwidth(const std::vector<int>& threads, int64_t megabytes, OnProbe on_probe) {
  Bandwidth out;
  out.caches = cache_levels();
  out.last_level = last_level_bytes(out.caches);
  choose_size(out, megabytes);
  const std::vector<int64_t> sizes = sweep_sizes(out.probe_bytes);
  std::map<int, bool> sweeps;  // of each number of threads, whether it is swept
  for (int count = 1; count < *std::max_element(threads.begin(), threads.end()); count *= 2)
    sweeps[count] = false;
  for (const int count : threads) sweeps[count] = true;
  int64_t total = 0, done = 0;
  for (const auto& [count, sweep] : sweeps) total += sweep ? static_cast<int64_t>(sizes.size()) + 1 : 2;
  for (const auto& [count, sweep] : sweeps) {
    Team team(count);
    ReadMeasure measure;
    measure.threads = count;
    {
      const kernels::ReadProbe probe(team, out.probe_bytes, kernels::PageSize::huge);
      for (const int64_t size : sizes) {
        if (!sweep && size != sizes.back()) continue;
        on_probe(done++, total);
        measure.sweep.push_back(point(probe, team, size));
      }
    }
    measure.huge = measure.sweep.back();
    measure.before = measure.huge.best_per_second;
    measure.float_ops = kernels::arithmetic_peak(team, kernels::kernels().isa, kRounds).float_ops;
    on_probe(done++, total);
    const kernels::ReadProbe probe(team, out.probe_bytes, kernels::PageSize::small);
    measure.small = point(probe, team, out.probe_bytes);
    out.measures.push_back(std::move(measure));
  }
  return out;
}

void measure_again(ReadMeasure& measure) {
  Team team(measure.threads);
  const kernels::ReadProbe probe(team, measure.huge.bytes, kernels::PageSize::huge);
  for (ReadPoint& p : measure.sweep) {
    const ReadPoint again = point(probe, team, p.bytes);
    if (p.bytes == measure.huge.bytes) measure.after = again.best_per_second;
    p.best_per_second = std::max(p.best_per_second, again.best_per_second);
    p.median_per_second = std::max(p.median_per_second, again.median_per_second);
  }
  measure.huge = measure.sweep.back();
}

int64_t ReadMeasure::cached_up_to() const {
  int64_t bytes = 0;
  for (const ReadPoint& p : sweep)
    if (p.best_per_second >= 1.5 * huge.best_per_second) bytes = p.bytes;
  return bytes;
}

double rate_at(const std::vector<ReadPoint>& sweep, double bytes) {
  const auto above = std::find_if(sweep.begin(), sweep.end(),
                                  [&](const ReadPoint& p) { return static_cast<double>(p.bytes) >= bytes; });
  if (above == sweep.begin()) return sweep.front().best_per_second;
  if (above == sweep.end()) return sweep.back().best_per_second;
  const ReadPoint& below = *(above - 1);
  const double share = std::log(bytes / static_cast<double>(below.bytes)) /
                       std::log(static_cast<double>(above->bytes) / static_cast<double>(below.bytes));
  return below.best_per_second + share * (above->best_per_second - below.best_per_second);
}

}  // namespace lapidary::kvlab
