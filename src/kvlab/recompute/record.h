// What a run of a sequence shows, kept by position: so two runs can be held against each other however each
// was cut into calls. The engine and the reference fill the same form.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "engine/engine.h"
#include "reference/reference.h"
#include "spec/model_spec.h"

namespace lapidary::kvlab {

// What a layer shows of a row, in the order in which it is computed: the operations that the engine's Probe
// reports, with the stored key and value, and the stream after the whole layer.
struct Stage {
  int64_t layer = 0;
  int index = 0;  // place in stage_names()
  auto operator<=>(const Stage&) const = default;
};
std::span<const std::string_view> stage_names();  // "attention_input", "key", ..., "hidden"

struct Record {
  // Room for `positions` of a model; logits are kept from `first_logits` on.
  Record(const ModelSpec& spec, int64_t positions, int64_t first_logits);
  static int64_t bytes_needed(const ModelSpec& spec, int64_t positions, int64_t first_logits);

  struct Kv {
    std::vector<double> k, v;  // [R, K * Hd]
    int64_t width = 0, head_dim = 0;
  };
  int64_t positions = 0, first_logits = 0, vocab = 0, d_model = 0;
  std::map<int64_t, Kv> kv;                       // by owner layer
  std::vector<std::vector<double>> hidden;        // [L] of [R, D]
  std::vector<double> final_norm;                 // [R, D]
  std::vector<double> logits;                     // [R - first_logits, V]
  std::vector<uint64_t> logits_hash;              // [R]
  std::map<Stage, std::vector<uint64_t>> stages;  // hashes of the bits of each row, [R]; what was seen
  int64_t calls = 0;

  std::span<const double> logits_at(int64_t position) const;  // REQUIRES: position >= first_logits
};

// What runs a sequence: one executor in one numeric mode.
class Subject {
 public:
  virtual ~Subject() = default;
  // An empty sequence, and `batch` - 1 others that are fed other tokens, as many in the same calls.
  virtual void begin(int64_t batch) = 0;
  // Feeds the tokens in one call; what they show goes to positions `first`, `first` + 1, ... of the record.
  virtual void feed(std::span<const int32_t> tokens, int64_t first, Record& record) = 0;
};

std::unique_ptr<Subject> engine_subject(std::unique_ptr<Engine> engine);
// Knows no batches: Error(usage) on more than one sequence.
std::unique_ptr<Subject> reference_subject(std::unique_ptr<Reference> reference);

struct Cut {
  int64_t chunk = 0;  // tokens of a call; 0: all
  int64_t batch = 1;  // sequences of a call
};
Record record_run(Subject& subject, const ModelSpec& spec, std::span<const int32_t> tokens, Cut cut,
                  int64_t first_logits);

}  // namespace lapidary::kvlab
