#include "kvlab/recompute/record.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "kvlab/sequence.h"

namespace lapidary::kvlab {
namespace {

constexpr std::array<std::string_view, 14> kStages = {"attention_input", "key",          "value",
                                                      "stored key",      "stored value", "query",
                                                      "turned_query",    "attended",     "attention_output",
                                                      "ffn_input",       "gated",        "ffn_output",
                                                      "ple_output",      "hidden"};

int stage_index(std::string_view name) {
  const auto found = std::find(kStages.begin(), kStages.end(), name);
  ensure(found != kStages.end(), ErrorCode::internal, "the stage {} has no place", name);
  return static_cast<int>(found - kStages.begin());
}

template <typename Number>
uint64_t hash_of(std::span<const Number> row) {
  const Hash128 hash = hash128(std::as_bytes(row));
  uint64_t first = 0;
  std::memcpy(&first, hash.bytes.data(), sizeof first);
  return first;
}

template <typename Number>
void put(std::vector<double>& matrix, int64_t row, std::span<const Number> values) {
  std::copy(values.begin(), values.end(), matrix.begin() + row * static_cast<int64_t>(values.size()));
}

// Both executors report through these.
class Recorder {
 public:
  explicit Recorder(Record& record) : record_(record) {}
  template <typename Number>
  void stage(int64_t layer, int index, int64_t position, std::span<const Number> row) {
    std::vector<uint64_t>& hashes = record_.stages[{layer, index}];
    hashes.resize(static_cast<size_t>(record_.positions));
    hashes[static_cast<size_t>(position)] = hash_of(row);
  }
  template <typename Number>
  void kv(int64_t layer, int64_t position, std::span<const Number> k, std::span<const Number> v) {
    Record::Kv& to = record_.kv.at(layer);
    put(to.k, position, k);
    put(to.v, position, v);
    stage(layer, stored_key_, position, k);
    stage(layer, stored_value_, position, v);
  }
  template <typename Number>
  void hidden(int64_t layer, int64_t position, std::span<const Number> row) {
    put(record_.hidden[static_cast<size_t>(layer)], position, row);
    stage(layer, hidden_, position, row);
  }
  template <typename Number>
  void final_norm(int64_t position, std::span<const Number> row) {
    put(record_.final_norm, position, row);
  }
  template <typename Number>
  void logits(int64_t position, std::span<const Number> row) {
    record_.logits_hash[static_cast<size_t>(position)] = hash_of(row);
    if (position >= record_.first_logits) put(record_.logits, position - record_.first_logits, row);
  }

 private:
  const int stored_key_ = stage_index("stored key"), stored_value_ = stage_index("stored value"),
            hidden_ = stage_index("hidden");
  Record& record_;
};

template <typename Number>
void each_row(std::span<const Number> matrix, size_t rows,
              FunctionRef<void(size_t, std::span<const Number>)> f) {
  const size_t width = matrix.size() / rows;
  for (size_t r = 0; r < rows; ++r) f(r, matrix.subspan(r * width, width));
}

// Of one sequence: rows of the others in a step are passed over.
class EngineWatch : public Probe {
 public:
  EngineWatch(Record& record, int32_t sequence) : recorder_(record), sequence_(sequence) {}
  void on_hidden(int64_t layer, std::span<const RowId> rows, std::span<const float> hidden) override {
    each_row<float>(hidden, rows.size(), [&](size_t r, std::span<const float> row) {
      if (mine(rows[r])) recorder_.hidden(layer, rows[r].position, row);
    });
  }
  void on_final_norm(std::span<const RowId> rows, std::span<const float> values) override {
    each_row<float>(values, rows.size(), [&](size_t r, std::span<const float> row) {
      if (mine(rows[r])) recorder_.final_norm(rows[r].position, row);
    });
  }
  void on_kv(int64_t layer, RowId row, std::span<const float> k, std::span<const float> v) override {
    if (mine(row)) recorder_.kv(layer, row.position, k, v);
  }
  void on_scores(int64_t, RowId, int64_t, int64_t, std::span<const float>) override {}
  bool wants_scores() const override { return false; }
  void on_op(const OpRows& op) override {
    const int index = stage_index(op_name(op.op));
    for (size_t r = 0; r < op.rows.size(); ++r)
      if (mine(op.rows[r])) recorder_.stage(op.layer, index, op.rows[r].position, op.row(r));
  }
  bool wants_ops() const override { return true; }
  Recorder& recorder() { return recorder_; }

 private:
  bool mine(const RowId& row) const { return row.sequence == sequence_; }
  Recorder recorder_;
  int32_t sequence_;
};

class EngineSubject : public Subject {
 public:
  explicit EngineSubject(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  void begin(int64_t batch) override {
    sequences_.clear();
    for (int64_t i = 0; i < batch; ++i) sequences_.push_back(std::make_unique<OpenSequence>(*engine_));
  }
  void feed(std::span<const int32_t> tokens, int64_t first, Record& record) override {
    EngineWatch watch(record, sequences_.front()->id());
    std::vector<std::vector<int32_t>> others;
    std::vector<Feed> feeds{{sequences_.front()->id(), tokens, Want::all}};  // no row leaves early
    for (size_t i = 1; i < sequences_.size(); ++i) {
      others.emplace_back(tokens.begin(), tokens.end());
      for (int32_t& token : others.back())
        token = static_cast<int32_t>((token + static_cast<int64_t>(i)) % record.vocab);
      feeds.push_back({sequences_[i]->id(), others.back(), Want::all});
    }
    engine_->forward(
        feeds,
        [&](size_t feed, int64_t index, std::span<const float> logits) {
          if (feed == 0) watch.recorder().logits(first + index, logits);
        },
        &watch);
    ++record.calls;
  }

 private:
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<OpenSequence>> sequences_;  // the first is watched
};

class ReferenceWatch : public ReferenceObserver {
 public:
  ReferenceWatch(int64_t first, size_t rows, Record& record)
      : first_(first), rows_(rows), recorder_(record) {}
  void on_hidden(int64_t layer, std::span<const double> hidden) override {
    each_row<double>(hidden, rows_, [&](size_t r, std::span<const double> row) {
      recorder_.hidden(layer, first_ + static_cast<int64_t>(r), row);
    });
  }
  void on_final_norm(std::span<const double> values) override {
    each_row<double>(values, rows_, [&](size_t r, std::span<const double> row) {
      recorder_.final_norm(first_ + static_cast<int64_t>(r), row);
    });
  }
  void on_kv(int64_t layer, std::span<const double> k, std::span<const double> v) override {
    const size_t width = k.size() / rows_;
    each_row<double>(k, rows_, [&](size_t r, std::span<const double> row) {
      recorder_.kv(layer, first_ + static_cast<int64_t>(r), row, v.subspan(r * width, width));
    });
  }
  void on_logits(int64_t row, std::span<const double> logits) override {
    recorder_.logits(first_ + row, logits);
  }

 private:
  int64_t first_;
  size_t rows_;
  Recorder recorder_;
};

class ReferenceSubject : public Subject {
 public:
  explicit ReferenceSubject(std::unique_ptr<Reference> reference) : reference_(std::move(reference)) {}
  void begin(int64_t batch) override {
    ensure(batch == 1, ErrorCode::usage, "the reference runs one sequence, not {}", batch);
    reference_->reset();
  }
  void feed(std::span<const int32_t> tokens, int64_t first, Record& record) override {
    ReferenceWatch watch(first, tokens.size(), record);
    reference_->forward(tokens, 0, watch);
    ++record.calls;
  }

 private:
  std::unique_ptr<Reference> reference_;
};

}  // namespace

std::span<const std::string_view> stage_names() {
  return kStages;
}

Record::Record(const ModelSpec& spec, int64_t n_positions, int64_t first)
    : positions(n_positions), first_logits(first), vocab(spec.vocab_size), d_model(spec.d_model) {
  const auto matrix = [](int64_t rows, int64_t width) {
    return std::vector<double>(static_cast<size_t>(rows * width));
  };
  hidden.assign(spec.layers.size(), matrix(positions, d_model));
  final_norm = matrix(positions, d_model);
  logits = matrix(positions - first_logits, vocab);
  logits_hash.resize(static_cast<size_t>(positions));
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (!layer.owns_kv(i)) continue;
    const int64_t width = layer.attention->n_kv_heads * layer.attention->head_dim;
    kv[i] = {matrix(positions, width), matrix(positions, width), width, layer.attention->head_dim};
  }
}

int64_t Record::bytes_needed(const ModelSpec& spec, int64_t positions, int64_t first_logits) {
  int64_t numbers = (spec.n_layers() + 1) * spec.d_model;  // of a position
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (layer.owns_kv(i)) numbers += 2 * layer.attention->n_kv_heads * layer.attention->head_dim;
    numbers += static_cast<int64_t>(kStages.size());
  }
  const auto size = static_cast<int64_t>(sizeof(double));
  return size * (positions * numbers + (positions - first_logits) * spec.vocab_size);
}

std::span<const double> Record::logits_at(int64_t position) const {
  return std::span(logits).subspan(static_cast<size_t>((position - first_logits) * vocab),
                                   static_cast<size_t>(vocab));
}

std::unique_ptr<Subject> engine_subject(std::unique_ptr<Engine> engine) {
  return std::make_unique<EngineSubject>(std::move(engine));
}

std::unique_ptr<Subject> reference_subject(std::unique_ptr<Reference> reference) {
  return std::make_unique<ReferenceSubject>(std::move(reference));
}

Record record_run(Subject& subject, const ModelSpec& spec, std::span<const int32_t> tokens, Cut cut,
                  int64_t first_logits) {
  Record record(spec, static_cast<int64_t>(tokens.size()), first_logits);
  const size_t step = cut.chunk == 0 ? tokens.size() : static_cast<size_t>(cut.chunk);
  subject.begin(cut.batch);
  for (size_t at = 0; at < tokens.size(); at += step) {
    subject.feed(tokens.subspan(at, std::min(step, tokens.size() - at)), static_cast<int64_t>(at), record);
  }
  return record;
}

}  // namespace lapidary::kvlab
