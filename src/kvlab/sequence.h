// A sequence of an engine that is closed when its owner goes, by an exception too.
#pragma once

#include "engine/engine.h"

namespace lapidary::kvlab {

class OpenSequence {
 public:
  explicit OpenSequence(Engine& engine) : engine_(engine), id_(engine.open()) {}
  OpenSequence(Engine& engine, int32_t fork_of) : engine_(engine), id_(engine.fork(fork_of)) {}
  ~OpenSequence() { engine_.close(id_); }
  OpenSequence(const OpenSequence&) = delete;
  int32_t id() const { return id_; }

 private:
  Engine& engine_;
  int32_t id_;
};

}  // namespace lapidary::kvlab
