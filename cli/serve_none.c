/*
 * serve_none.c - `pith serve` in a build without libmicrohttpd: it says so.
 */
#include "command.h"
#include "io.h"

static const struct option_group groups[] = {{0}};

static int run(void *options)
{
    (void)options;
    cli_fail("this build has no server: install libmicrohttpd (libmicrohttpd-dev) and build again");
}

const struct command command_serve = {
    .name = "serve",
    .summary = "answer requests over HTTP (not in this build)",
    .synopsis = "",
    .groups = groups,
    .options_size = 1,
    .run = run,
};
