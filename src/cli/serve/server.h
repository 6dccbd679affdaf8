// A server from its flags to its end: model, scheduler, API and HTTP put together.
#pragma once

#include "cli/serve/flags.h"

namespace lapidary {

// Serves until a signal asks it to stop; returns the exit code. Error as everything that is opened has it.
int run_server(const ServeFlags& flags, const std::string& version);

}  // namespace lapidary
