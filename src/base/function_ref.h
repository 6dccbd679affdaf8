// A non-owning reference to something callable: no allocation, valid only while the callee lives. For
// parameters, never for members.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace lapidary {

template <typename Signature>
class FunctionRef;

template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef>>>
  FunctionRef(F&& f)  // NOLINT(google-explicit-constructor): lambdas convert silently, as with std::function
      : object_(
            (void*)std::addressof(f)),  // NOLINT: the one cast that takes objects, const ones and functions
        call_([](void* object, Args... args) -> R {
          return (*reinterpret_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
        }) {}
  R operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

}  // namespace lapidary
