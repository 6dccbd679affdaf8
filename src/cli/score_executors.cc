#include "cli/score_executors.h"

#include <unistd.h>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/probe.h"
#include "spec/footprint.h"

namespace lapidary {
namespace {

class EngineDump : public Probe {
 public:
  explicit EngineDump(ScoreDump& dump) : dump_(dump) {}
  void on_hidden(int64_t layer, std::span<const RowId> rows, std::span<const float> hidden) override {
    const size_t width = hidden.size() / rows.size();
    for (size_t r = 0; r < rows.size(); ++r) {
      dump_.put_hidden(layer, rows[r].position, hidden.subspan(r * width, width));
    }
  }
  void on_final_norm(std::span<const RowId> rows, std::span<const float> values) override {
    const size_t width = values.size() / rows.size();
    for (size_t r = 0; r < rows.size(); ++r) {
      dump_.put_final_norm(rows[r].position, values.subspan(r * width, width));
    }
  }
  void on_kv(int64_t layer, RowId row, std::span<const float> k, std::span<const float> v) override {
    dump_.put_kv(layer, row.position, k, v);
  }
  void on_scores(int64_t, RowId, int64_t, int64_t, std::span<const float>) override {}
  bool wants_scores() const override { return false; }

 private:
  ScoreDump& dump_;
};

class EngineExecutor : public ScoreExecutor {
 public:
  explicit EngineExecutor(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  void begin() override {
    if (sequence_ >= 0) engine_->close(sequence_);
    sequence_ = engine_->open();
  }
  void feed(std::span<const int32_t> tokens, bool wanted, ScoreDump* dump, OnLogits on_logits) override {
    const Feed feeds[] = {{sequence_, tokens, wanted ? Want::all : Want::none}};
    std::optional<EngineDump> probe;
    if (dump != nullptr) probe.emplace(*dump);
    engine_->forward(
        feeds,
        [&](size_t, int64_t index, std::span<const float> logits) {
          wide_.assign(logits.begin(), logits.end());
          on_logits(index, wide_);
        },
        probe ? &*probe : nullptr);
  }
  int threads() const override { return engine_->threads(); }
  std::string numeric_mode() const override { return engine_->numeric_mode(); }

 private:
  std::unique_ptr<Engine> engine_;
  int32_t sequence_ = -1;
  std::vector<double> wide_;
};

class ReferenceFeed : public ReferenceObserver {
 public:
  ReferenceFeed(int64_t first_row, ScoreDump* dump, ScoreExecutor::OnLogits on_logits)
      : first_row_(first_row), dump_(dump), on_logits_(on_logits) {}
  void on_hidden(int64_t layer, std::span<const double> hidden) override {
    each_row(hidden, [&](int64_t row, std::span<const double> x) { dump_->put_hidden(layer, row, x); });
  }
  void on_final_norm(std::span<const double> values) override {
    each_row(values, [&](int64_t row, std::span<const double> x) { dump_->put_final_norm(row, x); });
  }
  void on_kv(int64_t layer, std::span<const double> k, std::span<const double> v) override {
    const size_t width = k.size() / static_cast<size_t>(rows_);
    each_row(k, [&](int64_t row, std::span<const double> x) {
      dump_->put_kv(layer, row, x, v.subspan(static_cast<size_t>(row - first_row_) * width, width));
    });
  }
  void on_logits(int64_t row, std::span<const double> logits) override { on_logits_(row, logits); }
  void set_rows(int64_t rows) { rows_ = rows; }

 private:
  void each_row(std::span<const double> matrix, FunctionRef<void(int64_t, std::span<const double>)> f) {
    if (dump_ == nullptr) return;
    const size_t width = matrix.size() / static_cast<size_t>(rows_);
    for (int64_t r = 0; r < rows_; ++r)
      f(first_row_ + r, matrix.subspan(static_cast<size_t>(r) * width, width));
  }
  int64_t first_row_, rows_ = 0;
  ScoreDump* dump_;
  ScoreExecutor::OnLogits on_logits_;
};

class PlainExecutor : public ScoreExecutor {
 public:
  PlainExecutor(std::unique_ptr<Reference> reference, ReferenceType type, int threads)
      : reference_(std::move(reference)), type_(type), threads_(threads) {}

  void begin() override { reference_->reset(); }
  void feed(std::span<const int32_t> tokens, bool wanted, ScoreDump* dump, OnLogits on_logits) override {
    ReferenceFeed observer(reference_->length(), dump, on_logits);
    const auto rows = static_cast<int64_t>(tokens.size());
    observer.set_rows(rows);
    reference_->forward(tokens, wanted ? 0 : rows, observer);
  }
  int threads() const override { return threads_; }
  std::string numeric_mode() const override {
    return fmt::format("reference (libtorch), {}", reference_type_name(type_));
  }

 private:
  std::unique_ptr<Reference> reference_;
  ReferenceType type_;
  int threads_;
};

}  // namespace

std::unique_ptr<ScoreExecutor> engine_executor(const Checkpoint& checkpoint, const EngineFlags& flags) {
  LoadTimes times;
  return std::make_unique<EngineExecutor>(load_engine(checkpoint, flags, times));
}

std::unique_ptr<ScoreExecutor> reference_executor(const Checkpoint& checkpoint, ReferenceType type,
                                                  int threads) {
  ensure(checkpoint.tensors != nullptr, ErrorCode::usage, "{} holds no weights", checkpoint.path.string());
  if (threads == 0) threads = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const ReferenceOptions options{type, reference_weights_fit(checkpoint.spec, type), threads};
  return std::make_unique<PlainExecutor>(open_reference(checkpoint.spec, *checkpoint.tensors, options), type,
                                         threads);
}

bool reference_weights_fit(const ModelSpec& spec, ReferenceType type) {
  const int64_t bytes_each = type == ReferenceType::f64 ? 8 : type == ReferenceType::f32 ? 4 : 2;
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return count_parameters(spec).resident * bytes_each < memory / 2;
}

}  // namespace lapidary
