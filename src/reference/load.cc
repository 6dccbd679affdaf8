// The program's side: finds the module beside the program (or where LAPIDARY_REFERENCE says) and opens it
// once.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "reference/module.h"

namespace lapidary {
namespace {

struct Loaded {
  const reference::Module* module = nullptr;
  std::string problem;
};

constexpr const char* kRemedy =
    "install libtorch-dev and libopenblas0-openmp (tools/bootstrap reference does) and build it: make "
    "reference";

std::filesystem::path module_path() {
  if (const char* path = std::getenv("LAPIDARY_REFERENCE")) return path;
  std::error_code problem;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", problem);
  return program.parent_path() / reference::kModuleFile;
}

Loaded load() {
  const std::filesystem::path path = module_path();
  std::error_code untold;
  if (!std::filesystem::exists(path, untold)) {
    return {nullptr,
            fmt::format("this build has no reference executor: {} is not there; {}", path.string(), kRemedy)};
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {nullptr, fmt::format("the reference executor does not load: {}; {}", dlerror(), kRemedy)};
  }
  const auto* module = static_cast<const reference::Module*>(dlsym(library, reference::kModuleSymbol));
  if (module == nullptr) {
    return {nullptr, fmt::format("{} is no reference executor: it lacks the symbol {}", path.string(),
                                 reference::kModuleSymbol)};
  }
  if (std::strcmp(module->build, LAPIDARY_BUILD) != 0) {
    return {nullptr,
            fmt::format("{} belongs to another build: expected {}, got {}; build both: make reference",
                        path.string(), LAPIDARY_BUILD, module->build)};
  }
  return {module, ""};
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

std::string_view reference_type_name(ReferenceType type) {
  switch (type) {
    case ReferenceType::f64: return "f64";
    case ReferenceType::f32: return "f32";
    case ReferenceType::bf16: return "bf16";
  }
  fail(ErrorCode::internal, "a reference type without a name");
}

ReferenceType reference_type(std::string_view name) {
  for (const ReferenceType type : {ReferenceType::f64, ReferenceType::f32, ReferenceType::bf16}) {
    if (reference_type_name(type) == name) return type;
  }
  fail(ErrorCode::usage, "dtype of the reference: expected f64, f32 or bf16, got \"{}\"", name);
}

std::string why_no_reference() {
  return loaded().problem;
}

std::unique_ptr<Reference> open_reference(const ModelSpec& spec, const TensorSource& source,
                                          const ReferenceOptions& options) {
  const Loaded& library = loaded();
  ensure(library.module != nullptr, ErrorCode::unsupported, "{}", library.problem);
  return library.module->open(spec, source, options);
}

}  // namespace lapidary
