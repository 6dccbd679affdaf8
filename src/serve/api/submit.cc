#include "serve/api/submit.h"

#include <chrono>
#include <utility>

#include "base/quote.h"

namespace lapidary::serve {
namespace {

[[noreturn]] void refuse_busy(const Service& service) {
  if (service.scheduler->failed() || !service.ready()) {
    throw ApiError(503, "server_error", "not_ready", "", "the server takes no requests now");
  }
  throw ApiError(429, "rate_limit_error", "queue_full", "", "the queue is full: try again later");
}

}  // namespace

void check_model(Fields& fields, const Service& service) {
  const std::optional<std::string> name = fields.text("model");
  if (!name || *name == service.model.name) return;
  throw ApiError(
      404, "not_found_error", "model_not_found", fields.path("model"),
      fmt::format("there is no model {}; this server has {}", quoted(*name), quoted(service.model.name)));
}

Job new_job(const Call& call, int64_t index) {
  Job job;
  job.request = call.request.id;
  job.client = call.request.client;
  job.index = index;
  if (const double seconds = call.service->limits.request_seconds; seconds > 0) {
    job.deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  return job;
}

std::vector<Ticket> submit(const Call& call, std::vector<Scheduler::Order> orders) {
  Scheduler* scheduler = call.service->scheduler;
  const size_t n = orders.size();
  if (!scheduler->has_room_for(n)) refuse_busy(*call.service);
  std::vector<Ticket> tickets;
  try {
    tickets = scheduler->submit(std::move(orders));
  } catch (const Error& error) {
    // Others may have taken the room since.
    if (error.code() == ErrorCode::limit && !scheduler->has_room_for(n)) refuse_busy(*call.service);
    throw;
  }
  call.reply->exchange().when_gone([scheduler, tickets] {
    for (const Ticket ticket : tickets) scheduler->cancel(ticket);
  });
  return tickets;
}

void answer_end(Reply& reply, const JobEnd& end) {
  switch (end.reason) {
    case EndReason::error: reply.internal_error(end.error); return;
    case EndReason::deadline:
      reply.error(
          ApiError(503, "server_error", "timeout", "", "the request took longer than this server allows"));
      return;
    default:
      reply.error(ApiError(503, "server_error", "cancelled", "",
                           fmt::format("the request was ended: {}", end_reason_name(end.reason))));
  }
}

}  // namespace lapidary::serve
