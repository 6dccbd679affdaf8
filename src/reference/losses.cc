#include "reference/losses.h"

namespace lapidary::reference {

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& ids) {
  const int64_t n = logits.size(0) - 1;
  const at::Tensor log_p = at::log_softmax(logits.narrow(0, 0, n), -1);
  return -log_p.gather(1, ids.narrow(0, 1, n).unsqueeze(1)).mean();
}

at::Tensor distillation_loss(const at::Tensor& student, const at::Tensor& teacher, double temperature) {
  const at::Tensor log_q = at::log_softmax(student / temperature, -1);
  const at::Tensor log_p = at::log_softmax(teacher.detach() / temperature, -1);
  return temperature * temperature * (log_p.exp() * (log_p - log_q)).sum(-1).mean();
}

}  // namespace lapidary::reference
