// The module's side: Reference over the torch model.
#include "reference/module.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "reference/model.h"

namespace lapidary::reference {
namespace {

at::ScalarType scalar_type(ReferenceType type) {
  switch (type) {
    case ReferenceType::f64: return at::kDouble;
    case ReferenceType::f32: return at::kFloat;
    case ReferenceType::bf16: return at::kBFloat16;
  }
  fail(ErrorCode::internal, "a reference type without a torch type");
}

std::unique_ptr<Parameters> parameters(const ModelSpec& spec, const TensorSource& source,
                                       const ReferenceOptions& options) {
  const at::ScalarType type = scalar_type(options.type);
  if (options.hold_weights) return std::make_unique<HeldParameters>(spec, source, type);
  return std::make_unique<StreamedParameters>(spec, source, type);
}

std::span<const double> span_of(const at::Tensor& contiguous_double) {
  return {contiguous_double.data_ptr<double>(), static_cast<size_t>(contiguous_double.numel())};
}

at::Tensor doubles(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).contiguous();
}

class TorchReference : public Reference {
 public:
  TorchReference(const ModelSpec& spec, const TensorSource& source, const ReferenceOptions& options)
      : spec_(spec),
        parameters_(parameters(spec_, source, options)),
        model_(spec_, *parameters_, scalar_type(options.type)),
        cache_(model_.empty_cache()) {
    if (options.threads > 0) at::set_num_threads(options.threads);
  }

  void forward(std::span<const int32_t> tokens, int64_t first_logits, ReferenceObserver& observer) override {
    const at::NoGradGuard no_gradients;
    std::vector<int64_t> wide(tokens.begin(), tokens.end());
    for (size_t i = 0; i < wide.size(); ++i) {
      ensure(wide[i] >= 0 && wide[i] < spec_.vocab_size, ErrorCode::usage,
             "token {} is {}, outside the vocabulary of {}", i, wide[i], spec_.vocab_size);
    }
    if (wide.empty()) return;
    const at::Tensor ids = at::tensor(wide, at::kLong);
    const at::Tensor last = model_.forward(ids, cache_, [&](int64_t layer, const at::Tensor& hidden) {
      report_kv(layer, ids.size(0), observer);
      observer.on_hidden(layer, span_of(doubles(hidden)));
    });
    observer.on_final_norm(span_of(doubles(last)));
    report_logits(last, first_logits, observer);
  }

  void reset() override { cache_ = model_.empty_cache(); }
  int64_t length() const override { return cache_.length; }

 private:
  void report_kv(int64_t layer, int64_t n, ReferenceObserver& observer) const {
    if (!spec_.layers[static_cast<size_t>(layer)].owns_kv(layer)) return;
    const Cache::Entry& entry = cache_.layers[static_cast<size_t>(layer)];
    const auto rows = [&](const at::Tensor& t) {
      return doubles(t.narrow(1, t.size(1) - n, n).transpose(0, 1));
    };
    const at::Tensor k = rows(entry.k), v = rows(entry.v);
    observer.on_kv(layer, span_of(k), span_of(v));
  }

  // A few rows at a time: [T, V] in double is gigabytes for a long text.
  void report_logits(const at::Tensor& last, int64_t first, ReferenceObserver& observer) const {
    constexpr int64_t kRows = 64;
    for (int64_t begin = first; begin < last.size(0); begin += kRows) {
      const int64_t n = std::min(kRows, last.size(0) - begin);
      const at::Tensor z = doubles(model_.logits(last.narrow(0, begin, n)));
      for (int64_t r = 0; r < n; ++r) observer.on_logits(begin + r, span_of(z[r]));
    }
  }

  ModelSpec spec_;
  std::unique_ptr<Parameters> parameters_;
  Model model_;
  Cache cache_;
};

// What libtorch throws must not leave it: its types end at this border.
std::unique_ptr<Reference> open(const ModelSpec& spec, const TensorSource& source,
                                const ReferenceOptions& options) {
  try {
    return std::make_unique<TorchReference>(spec, source, options);
  } catch (const c10::Error& error) {
    fail(ErrorCode::internal, "the reference executor failed: {}", error.what_without_backtrace());
  }
}

}  // namespace
}  // namespace lapidary::reference

extern "C" __attribute__((visibility("default"))) const lapidary::reference::Module lapidary_reference_module;
const lapidary::reference::Module lapidary_reference_module = {LAPIDARY_BUILD, lapidary::reference::open};
