/* quantize.c - `pith quantize`: a GGUF file with its matrices in another type. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "session.h"
#include "pith/inspect.h"

struct options {
    const char *in;
    const char *out;
    const char *type;
    int32_t n_thread;
    bool progress;
    bool quiet;
};

static const char *const types[] = {"Q4_K_M", "Q8_0", "Q6_K", "Q5_K", "Q4_K",
                                    "Q3_K",   "Q2_K", "Q5_1", "Q5_0", "Q4_1",
                                    "Q4_0",   "BF16", "F16",  "F32",  NULL};

#define AT(member) .offset = offsetof(struct options, member)
static const struct option table[] = {
    {"IN", NULL, NULL, OPTION_TEXT, AT(in), .required = true, .help = "the GGUF file to read"},
    {"OUT", NULL, NULL, OPTION_TEXT, AT(out), .required = true,
     .help = "the GGUF file to write; it appears when it is whole"},
    {"TYPE", NULL, NULL, OPTION_CHOICE, AT(type), .choices = types, .required = true,
     .help = "the type of the matrices"},
    {"--threads", "-t", "N", OPTION_INT, AT(n_thread), .max = 1024, .absent = "all processors",
     .help = "threads that compute"},
    {"--progress", NULL, NULL, OPTION_FLAG, AT(progress), .absent = "on a terminal",
     .help = "show how much is done"},
    {"--quiet", "-q", NULL, OPTION_FLAG, AT(quiet), .help = "say nothing"},
    {0},
};
#undef AT

static const struct option_group groups[] = {{NULL, table, 0}, {0}};

static void print_line(void *user, pith_log_level level, const char *line)
{
    const struct options *o = user;
    if (level >= PITH_LOG_INFO && !o->quiet) {
        cli_progress_hide();
        fprintf(stderr, "%s\n", line);
    }
}

/* -1: it is no regular file. */
static int64_t file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
}

static void report(const struct options *o, double seconds)
{
    char in[32], out[32];
    int64_t size = file_size(o->out);
    fprintf(stderr, "%s: %s%sfrom %s in %.1f s\n", o->out, size >= 0 ? cli_bytes(size, out) : "",
            size >= 0 ? ", " : "", cli_bytes(file_size(o->in), in), seconds);
}

static int run(void *options)
{
    struct options *o = options;
    pith_error err;
    struct cli_progress progress = {.what = "quantizing",
                                    .bytes = file_size(o->in),
                                    .on = o->progress || cli_progress_wanted()};
    pith_log_set(print_line, o);
    cli_interrupt_catch();
    double start = clock_s();
    pith_status status =
        pith_quantize(o->in, o->out, o->type, o->n_thread, cli_progress_step, &progress, &err);
    cli_progress_end(&progress);
    if (status == PITH_CANCELLED)
        return EXIT_INTERRUPTED;
    cli_check(status, &err);
    if (!o->quiet)
        report(o, clock_s() - start);
    return EXIT_SUCCESS;
}

const struct command command_quantize = {
    .name = "quantize",
    .summary = "rewrite a model's matrices in another type",
    .synopsis = "IN OUT TYPE",
    .notes =
        "Vectors stay F32; a matrix whose rows do not fit the type falls back to one they fit.\n"
        "\n"
        "  pith quantize model-f16.gguf model-q4.gguf Q4_K_M",
    .groups = groups,
    .options_size = sizeof(struct options),
    .run = run,
};
