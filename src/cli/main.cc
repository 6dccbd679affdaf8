#include "cli/commands.h"

int main(int argc, char** argv) {
  return lapidary::run_program(argc, argv);
}
