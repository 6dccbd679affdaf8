#include "cli/serve/server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <future>
#include <memory>
#include <optional>

#include "base/error.h"
#include "cli/byte_sizes.h"
#include "cli/commands.h"
#include "cli/numbers.h"
#include "cli/serve/key_file.h"
#include "cli/serve/memory_plan.h"
#include "cli/serve/served_model.h"
#include "cli/serve/server_log.h"
#include "cli/serve/signals.h"
#include "cli/serve/state_folder.h"
#include "cli/terminal.h"
#include "serve/api/api.h"
#include "serve/api/api_error.h"
#include "serve/api/endpoints.h"
#include "serve/http/http_server.h"
#include "serve/metrics/metrics.h"
#include "serve/page/page.h"
#include "serve/scheduler/scheduler.h"

namespace lapidary {
namespace {

namespace json = boost::json;
using Level = ServerLog::Level;

// Positions behind a window that every text keeps, so that a prompt that is asked again can begin with all of
// its pages but the last.
constexpr int64_t kServeKeepBehind = 32;

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string url_of(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("http://{}:{}", host, port)
                                             : fmt::format("http://[{}]:{}", host, port);
}

// Everything that lives as long as the server. Parts are declared in the order in which they come to be:
// what is below may use what is above.
class Server {
 public:
  Server(const ServeFlags& flags, std::string version);
  int run();

 private:
  void open();    // model, keys, plan: whatever can be wrong is found before weights are read
  void listen();  // answers "loading" from here on
  void load();    // engine, grammars, hash, state
  void start();   // scheduler and API
  void say_ready();
  bool watch();  // until a signal; false when the engine failed
  void shut_down();
  void handle(serve::HttpRequest request, std::shared_ptr<serve::Exchange> exchange);
  void plan();

  ServeFlags flags_;
  std::string version_;
  SignalWatch signals_;  // before any thread is started
  ServerLog log_;
  std::optional<KeyFile> keys_;
  std::optional<OpenedModel> opened_;
  std::optional<StateFolder> store_;
  serve::ServedModel model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<serve::Scheduler> scheduler_;
  std::unique_ptr<serve::Metrics> metrics_;
  std::unique_ptr<serve::Api> api_;
  std::atomic<serve::Api*> answering_ = nullptr;  // api_, once it may be asked
  std::atomic<bool> ready_ = false;
  std::unique_ptr<serve::HttpServer> http_;  // last: its threads use all of the above
};

Server::Server(const ServeFlags& flags, std::string version)
    : flags_(flags),
      version_(std::move(version)),
      signals_(!flags.keys_file.empty()),
      log_(log_format_from_name(flags.log_format)) {}

void Server::plan() {
  const Checkpoint& checkpoint = opened_->model.checkpoint;
  EngineFlags& engine = flags_.engine;
  ensure(engine.chunk > flags_.parallel, ErrorCode::usage,
         "--chunk {}: a step has a row for each of --parallel {} texts, and must have room for a prompt's",
         engine.chunk, flags_.parallel);
  PlanRequest request;
  request.context = context_of(checkpoint, engine);
  request.context_asked = engine.context != 0;
  if (!flags_.kv_bytes.empty()) {
    request.kv_bytes = parse_byte_size(flags_.kv_bytes, "--kv-bytes");
    ensure(request.kv_bytes > 0, ErrorCode::usage, "--kv-bytes: expected more than nothing");
  }
  request.running = flags_.parallel;
  request.cached = flags_.no_prefix_cache ? 0 : flags_.cache_entries;
  request.step_rows = engine.chunk;
  request.keep_behind = kServeKeepBehind;
  request.types = kv_types_from_name(engine.kv_dtype, "--kv-dtype");
  const MemoryPlan plan = plan_memory(checkpoint, read_machine_memory(), request);
  engine.context = plan.context;
  engine.keep_behind = kServeKeepBehind;
  engine.kv_bytes = plan.kv_bytes;
  engine.sequences = request.running + request.cached + 1;
  log_.write(Level::info, "memory",
             log_.format() == LogFormat::text
                 ? fmt::format("{}\n{}", opened_->name, plan_text(plan, Style::for_fd(STDERR_FILENO)))
                 : "",
             plan_json(plan));
  if (plan.context < plan.made_for) {
    log_.write(Level::warning, "context_lowered",
               fmt::format("the context is {} tokens and not the model's {}: the memory holds no more",
                           grouped(plan.context), grouped(plan.made_for)),
               {{"context", plan.context}, {"made_for", plan.made_for}});
  }
}

void Server::open() {
  api_limits(flags_);  // flags that make no sense are told first
  if (!flags_.keys_file.empty()) {
    keys_.emplace(flags_.keys_file,
                  [this](const std::string& text) { log_.write(Level::warning, "api_keys", text); });
  }
  opened_.emplace(open_served_model(flags_));
  model_ = describe_model(*opened_);
  plan();
  if (!flags_.kv_folder.empty()) store_.emplace(flags_.kv_folder);
}

void Server::handle(serve::HttpRequest request, std::shared_ptr<serve::Exchange> exchange) {
  if (serve::Api* api = answering_) return api->handle(std::move(request), std::move(exchange));
  serve::HttpAnswer answer;
  if (request.path == "/health") {
    answer.body = R"({"status":"loading"})";
  } else {
    answer.status = 503;
    answer.body = serve::error_body(503, "loading", "the model is being loaded; try again soon");
    answer.headers.emplace_back("Retry-After", "1");
  }
  exchange->answer(std::move(answer));
}

void Server::listen() {
  serve::HttpOptions options = http_options(flags_);
  options.error_body = serve::error_body;
  for (std::string& path : serve::page_paths()) options.open_paths.push_back(std::move(path));
  options.on_throw = [this](std::string_view id, std::string_view what) {
    log_.write(Level::error, "handler", std::string(what), {{"id", id}});
  };
  if (keys_) {
    options.authenticate = [this](std::string_view authorization) { return keys_->find(authorization); };
  } else if (!is_loopback(flags_.host)) {
    log_.write(Level::warning, "open_to_all",
               fmt::format("whoever reaches {} may use the model: there is no --api-keys", flags_.host));
  }
  http_ = std::make_unique<serve::HttpServer>(
      std::move(options), [this](serve::HttpRequest request, std::shared_ptr<serve::Exchange> exchange) {
        handle(std::move(request), std::move(exchange));
      });
  http_->start();
}

void Server::load() {
  const Checkpoint& checkpoint = opened_->model.checkpoint;
  // Beside the weights, for both take their time. Quantising while reading is dear: then the hash is left out
  // where no saved state needs it.
  const bool hashed = flags_.engine.quantise.empty() || store_;
  auto hash = std::async(std::launch::async,
                         [&] { return hashed ? std::optional(hash_of_model(checkpoint)) : std::nullopt; });
  auto grammars =
      std::async(std::launch::async, [&] { return GrammarEnv(opened_->model.tokenizer, model_.stop_ids); });
  engine_ = load_engine(checkpoint, flags_.engine, opened_->model.times);
  model_.grammars = grammars.get();
  model_.context = engine_->context();
  model_.numeric_mode = engine_->numeric_mode();
  const std::optional<Hash128> known = hash.get();
  if (known) model_.hash = hash_text(*known);

  serve::SchedulerOptions options;
  options.max_running = flags_.parallel;
  options.max_queued = flags_.queue;
  options.step_rows = std::min(flags_.engine.chunk, engine_->context() * flags_.engine.sequences);
  options.step_seconds = flags_.step_milliseconds / 1000;
  options.vocab_size = model_.words;
  options.cache.enabled = !flags_.no_prefix_cache;
  options.cache.max_entries = flags_.cache_entries;
  if (known) options.model = *known;
  options.store = store_ ? &*store_ : nullptr;
  options.log = [this](const std::string& text) { log_.write(Level::info, "scheduler", text); };
  scheduler_ = std::make_unique<serve::Scheduler>(*engine_, std::move(options));

  const EngineStats stats = engine_->stats();
  log_.write(
      Level::info, "loaded",
      fmt::format("loaded in {}: {} of weights, {} of workspace; {} threads; {}",
                  seconds_text(stats.load_seconds), binary_text(stats.weight_bytes + stats.mapped_bytes),
                  binary_text(stats.workspace_bytes), engine_->threads(), model_.numeric_mode),
      {{"seconds", stats.load_seconds},
       {"weight_bytes", stats.weight_bytes},
       {"mapped_bytes", stats.mapped_bytes},
       {"workspace_bytes", stats.workspace_bytes},
       {"threads", engine_->threads()},
       {"numeric_mode", model_.numeric_mode}});
}

void Server::start() {
  serve::Metrics::About about{model_.name, version_, model_.numeric_mode, {}};
  for (const serve::Endpoint& endpoint : serve::all_endpoints()) about.endpoints.push_back(endpoint.path);
  metrics_ = std::make_unique<serve::Metrics>(about);
  serve::Service service;
  service.model = model_;
  service.limits = api_limits(flags_);
  service.scheduler = scheduler_.get();
  service.observers = {metrics_.get(), &log_};
  service.metrics = [this] { return metrics_->text(scheduler_->view(), http_->stats()); };
  service.ready = [this] { return ready_ && !scheduler_->failed(); };
  service.version = version_;
  api_ = std::make_unique<serve::Api>(std::move(service));
  ready_ = true;
  answering_ = api_.get();
}

void Server::say_ready() {
  const std::string url = url_of(flags_.host, http_->port());
  const json::object fields{{"url", url},
                            {"model", model_.name},
                            {"pid", getpid()},
                            {"context", model_.context},
                            {"chat", model_.chat != nullptr},
                            {"numeric_mode", model_.numeric_mode},
                            {"version", version_}};
  log_.write(Level::info, "ready",
             fmt::format("ready: {} answers as {}, context {}{}", url, model_.name, grouped(model_.context),
                         model_.chat ? "" : "; no chat template: completions only"),
             fields);
  json::object line{{"event", "ready"}};
  line.insert(fields.begin(), fields.end());
  try {
    write_out(json::serialize(line) + "\n");
  } catch (const Error& error) {  // nobody listens there: no reason not to serve
    log_.write(Level::warning, "stdout", error.what());
  }
}

bool Server::watch() {
  for (;;) {
    const SignalWatch::Event event = signals_.wait(std::chrono::milliseconds(500));
    if (event == SignalWatch::Event::stop) return true;
    if (scheduler_->failed()) {
      log_.write(Level::error, "engine_failed", "the engine failed: the server ends");
      return false;
    }
    if (!keys_) continue;
    const bool fresh = event == SignalWatch::Event::hang_up ? keys_->reload() : keys_->reload_if_changed();
    if (fresh)
      log_.write(Level::info, "api_keys", fmt::format("{} API keys were read", keys_->size()),
                 {{"keys", keys_->size()}});
  }
}

void Server::shut_down() {
  ready_ = false;
  http_->close_listener();
  const serve::SchedulerView view = scheduler_->view();
  log_.write(Level::info, "draining",
             fmt::format("stopping: {} running and {} waiting get {} seconds; a second signal ends at once",
                         view.running, view.queued, flags_.drain_seconds),
             {{"running", view.running}, {"queued", view.queued}, {"seconds", flags_.drain_seconds}});
  const auto now = serve::Clock::now();
  const auto deadline = now + std::chrono::duration_cast<serve::Clock::duration>(
                                  std::chrono::duration<double>(flags_.drain_seconds));
  const bool all = scheduler_->drain(deadline);
  // The last answers are on their way; a reader that does not take them has no more than this.
  constexpr auto kLastBytes = std::chrono::seconds(2);
  http_->wait_idle(std::max(deadline, serve::Clock::now() + kLastBytes));
  scheduler_->stop();  // saves the cache
  http_->stop();
  log_.write(Level::info, "stopped", all ? "stopped" : "stopped; what was not through by then was ended",
             {{"drained", all}});
}

int Server::run() {
  umask(S_IRWXG | S_IRWXO);  // saved states hold what clients asked and were told
  open();
  listen();
  load();
  start();
  signals_.stop_softly();
  say_ready();
  const bool asked = watch();
  shut_down();
  return asked ? kExitOk : kExitFailure;
}

}  // namespace

int run_server(const ServeFlags& flags, const std::string& version) {
  Server server(flags, version);
  return server.run();
}

}  // namespace lapidary
