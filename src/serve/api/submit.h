// From an endpoint to the scheduler: what every request that runs the model has in common.
#pragma once

#include <vector>

#include "serve/api/endpoints.h"
#include "serve/api/fields.h"

namespace lapidary::serve {

// Reads `model`: absent, or the name of what is served; else 404.
void check_model(Fields& fields, const Service& service);

// A job with what the request says of it: id, client, deadline.
Job new_job(const Call& call, int64_t index);

// Hands the request's texts to the scheduler; they are cancelled when the client goes. 429 when the queue has
// no room for all of them, 503 when the server goes down; errors of the scheduler are the client's (400).
std::vector<Ticket> submit(const Call& call, std::vector<Scheduler::Order> orders);

// For a job that ended before it had what was asked for, when nothing was sent yet.
void answer_end(Reply& reply, const JobEnd& end);

}  // namespace lapidary::serve
