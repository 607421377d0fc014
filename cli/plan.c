/*
 * plan.c - `pith plan`: the KV memory of a model, from the full cache to a sixteenth of it.
 * Each line is a plan of --kv: bytes, the speed that they allow, the loss that was measured, and
 * the options that make it.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "budget.h"
#include "command.h"
#include "session.h"
#include "pith/inspect.h"

struct options {
    struct model_options model;
    int32_t n_ctx;
    bool json;
};

#define AT(member) .offset = offsetof(struct options, member)
static const struct option table[] = {
    {"--ctx-size", "-c", "N", OPTION_INT, AT(n_ctx), .min = 1, .max = INT32_MAX,
     .absent = "the model's context", .help = "tokens of a conversation",
     .env = "LLAMA_ARG_CTX_SIZE"},
    {"--json", NULL, NULL, OPTION_FLAG, AT(json), .help = "print JSON"},
    {0},
};
#undef AT

static const struct option_group groups[] = {
    {"Model", model_option_table, offsetof(struct options, model)},
    {"Plan", table, 0},
    LLAMA_GROUP,
    {0},
};

/* Of the full f16 cache: one of each step between types, and then halves. */
static const double shares[] = {1.0, 0.6, 0.45, 0.4, 0.25, 0.125, 0.0625};
#define N_SHARE (sizeof(shares) / sizeof(shares[0]))

struct frontier {
    const struct options *o;
    struct session s;
    const char *stats;       /* NULL: none */
    double read_bytes_per_s; /* 0: there was no memory to measure it */
    int32_t n_token;
};

static pith_engine_params params_of(const struct frontier *f)
{
    pith_engine_params p;
    pith_engine_params_default(&p);
    p.n_thread = f->o->model.n_thread;
    session_place(&f->o->model, &p);
    p.type_k = p.type_v = NULL;
    return p;
}

/* Generated tokens a second behind n_token tokens, if reading were all. */
static double speed_of(const struct frontier *f, const pith_plan *plan)
{
    int64_t pages = 0;
    pith_error err;
    pith_engine_params p = params_of(f);
    pith_plan_apply(plan, &p);
    cli_check(pith_kv_estimate(f->s.model, &p, f->n_token, &pages, &err), &err);
    return f->read_bytes_per_s / ((double)f->s.info.token_bytes + (double)pages);
}

/* "-ctk q8_0 -ctv turbo3 --keep ..." */
static void write_options(const pith_plan *plan, char *out, size_t cap)
{
    pith_engine_params usual;
    pith_engine_params_default(&usual);
    int n = snprintf(out, cap, "-ctk %s -ctv %s", plan->type_k, plan->type_v);
    if (plan->keep[0] != '\0')
        n += snprintf(out + n, cap - (size_t)n, " --keep %s", plan->keep);
    if (plan->keep[0] != '\0')
        n += snprintf(out + n, cap - (size_t)n, " --recall %s",
                      plan->recall[0] != '\0' ? plan->recall : "none");
    if (plan->chunk != usual.chunk)
        n += snprintf(out + n, cap - (size_t)n, " --chunk %d", plan->chunk);
    snprintf(out + n, cap - (size_t)n, " --kv-memory %lldKiB",
             (long long)((plan->bytes + 1023) / 1024));
}

static void print_row(const struct frontier *f, const pith_plan *plan)
{
    char bytes[32], speed[32] = "-", options[1200];
    write_options(plan, options, sizeof(options));
    if (f->read_bytes_per_s > 0.0)
        snprintf(speed, sizeof(speed), "%.1f", speed_of(f, plan));
    printf("%-11s %5.1f %%  %7s  %s\n             %s\n", cli_bytes(plan->bytes, bytes),
           100.0 * (double)plan->bytes / (double)plan->full_bytes, speed, plan->loss, options);
}

static json_t *row_json(const struct frontier *f, const pith_plan *plan)
{
    char options[1200];
    write_options(plan, options, sizeof(options));
    json_t *o = json_pack("{s:I, s:f, s:i, s:s, s:s}", "bytes", (json_int_t)plan->bytes, "share",
                          (double)plan->bytes / (double)plan->full_bytes, "entries",
                          (int)plan->n_entry, "options", options, "line", plan->line);
    if (o != NULL && f->read_bytes_per_s > 0.0)
        json_object_set_new(o, "tokens_per_s", json_real(speed_of(f, plan)));
    if (o != NULL && plan->on != NULL && plan->facts >= 0.0f)
        json_object_set_new(o, "facts", json_real((double)plan->facts));
    if (o != NULL && plan->on != NULL && !isnan(plan->perplexity))
        json_object_set_new(o, "perplexity", json_real((double)plan->perplexity));
    return o;
}

/* Each plan once: a smaller share may fit the choice of a larger one. */
static size_t make_plans(const struct frontier *f, pith_plan *plans)
{
    pith_engine_params p = params_of(f);
    pith_error err;
    size_t n = 0;
    p.chunk = 0;
    for (size_t i = 0; i < N_SHARE; i++) {
        const pith_plan_goal goal = {.n_token = f->n_token, .share = shares[i], .stats = f->stats};
        if (pith_plan_make(f->s.model, &p, &goal, &plans[n], &err) == PITH_OK)
            n += n == 0 || plans[n].bytes < plans[n - 1].bytes;
        else if (i == 0)
            cli_check(err.status, &err);
    }
    return n;
}

static void print_head(const struct frontier *f, const pith_plan *full)
{
    char bytes[32], weights[32], time[32];
    printf("%s: the full f16 cache of %d tokens takes %s, beside %s of weights.\n",
           f->s.info.name[0] != '\0' ? f->s.info.name : f->s.path, f->n_token,
           cli_bytes(full->full_bytes, bytes), cli_bytes(f->s.info.weight_bytes, weights));
    if (f->stats != NULL)
        printf("Its statistics: %s\n", f->stats);
    else
        printf("%s: \"pith calibrate %s\" makes %s in about %s.\n",
               f->s.stats_are_bad ? "Its statistics cannot be used"
                                  : "There are no statistics of it",
               f->s.path, f->s.stats_are_bad ? "new ones" : "them",
               budget_calibration_time(&f->s.info, time));
    printf("\nKV memory    of f16  tokens/s  loss\n");
}

static void print_foot(const struct frontier *f, const pith_plan *plans, size_t n)
{
    const char *other = NULL;
    for (size_t i = 0; i < n; i++)
        if (plans[i].on != NULL && !plans[i].on_its_kind)
            other = plans[i].on;
    if (f->read_bytes_per_s == 0.0)
        printf("\ntokens/s: there is no memory to measure how fast this machine reads.\n");
    else
        printf("\ntokens/s: generated behind %d tokens, if reading weights and KV memory at the "
               "measured "
               "%.1f GB/s\nwere all the work.\n",
               f->n_token, 1e-9 * f->read_bytes_per_s);
    if (other != NULL)
        printf("Loss is that of %s, the nearest model that was measured.\n", other);
}

static void print_json(const struct frontier *f, const pith_plan *plans, size_t n)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(rows, row_json(f, &plans[i]));
    cli_json_print(json_pack("{s:s, s:i, s:I, s:f, s:o}", "model", f->s.info.name, "tokens",
                             (int)f->n_token, "full_bytes", (json_int_t)plans[0].full_bytes,
                             "read_bytes_per_s", f->read_bytes_per_s, "plans", rows),
                   JSON_INDENT(1));
}

static int run(void *options)
{
    struct options *o = options;
    struct frontier f = {.o = o};
    pith_plan plans[N_SHARE];
    pith_machine machine;
    pith_error err;
    f.s.n_ctx = o->n_ctx;
    session_load(&f.s, &o->model, false);
    f.n_token = o->n_ctx > 0 ? o->n_ctx : f.s.info.n_ctx_train;
    session_note_context(&f.s, f.n_token);
    f.stats = budget_find_stats(&f.s);
    pith_status status =
        pith_device_measure(session_device(&o->model), o->model.n_thread, &machine, &err);
    if (status != PITH_NOMEM)
        cli_check(status, &err);
    if (status == PITH_OK)
        f.read_bytes_per_s = machine.read_bytes_per_s;
    size_t n = make_plans(&f, plans);
    if (o->json) {
        print_json(&f, plans, n);
    } else {
        print_head(&f, &plans[0]);
        for (size_t i = 0; i < n; i++)
            print_row(&f, &plans[i]);
        print_foot(&f, plans, n);
    }
    session_free(&f.s);
    return EXIT_SUCCESS;
}

const struct command command_plan = {
    .name = "plan",
    .summary = "show how a model's KV memory can be less, and what that loses",
    .synopsis = "MODEL [-c N]",
    .notes = "Each row is what --kv chooses at that many bytes, with the options to paste.\n"
             "docs/memory.md says how it chooses.\n"
             "\n"
             "  pith plan model.gguf -c 32768",
    .groups = groups,
    .options_size = sizeof(struct options),
    .run = run,
};
