// The two losses of training, differentiable.
#pragma once

#include <ATen/ATen.h>

namespace lapidary::reference {

// Mean over the T - 1 predictions of -log softmax(logits[t])[ids[t + 1]]. logits [T, V], ids [T].
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& ids);

// t² * mean over all positions of KL(softmax(teacher / t) || softmax(student / t)) (Hinton et al. 2015), both
// logits after their softcap, [T, V]. No gradient flows to the teacher.
at::Tensor distillation_loss(const at::Tensor& student, const at::Tensor& teacher, double temperature);

}  // namespace lapidary::reference
