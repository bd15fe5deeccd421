#include "cli/shell/commands.h"

int main(int argc, char** argv) { return tilewise::cli::run_program(argc, argv); }
