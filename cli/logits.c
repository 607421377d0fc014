/*
 * logits.c - `pith logits`: what the model thinks of each position, for comparison with other
 * engines and other builds. Ids go in as they are: no token is added.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/new_file.h"
#include "budget.h"
#include "command.h"
#include "ranks.h"
#include "session.h"
#include "pith/inspect.h"

struct logits_options {
    const char *ids;
    int32_t top;
    bool json;
    const char *out;
};

struct options {
    struct model_options model;
    struct logits_options logits;
    struct memory_options memory;
};

#define AT(member) .offset = offsetof(struct logits_options, member)
static const struct option logits_option_table[] = {
    {"--ids", NULL, "IDS", OPTION_TEXT, AT(ids), .required = true,
     .help = "token ids as 1,2,3, or @FILE that holds them"},
    {"--top", NULL, "N", OPTION_INT, AT(top), .max = INT32_MAX,
     .help = "greatest logits to print of each position"},
    {"--json", NULL, NULL, OPTION_FLAG, AT(json), .help = "print JSON"},
    {"--out", "-o", "FILE", OPTION_TEXT, AT(out), .absent = "", .writes = true,
     .help = "write all logits too, as little-endian f32 [position][token]"},
    {0},
};
#undef AT

static const struct option_group groups[] = {
    {"Model", model_option_table, offsetof(struct options, model)},
    {"Logits", logits_option_table, offsetof(struct options, logits)},
    {"KV memory", memory_option_table, offsetof(struct options, memory)},
    LLAMA_GROUP,
    {0},
};

static void defaults(void *options)
{
    struct options *o = options;
    o->logits.top = 10;
    memory_options_default(&o->memory);
}

struct collector {
    int32_t n_vocab;
    int32_t n_top;
    int32_t *top;      /* [n_top] the greatest ids so far, greatest first */
    json_t *positions; /* NULL: print text */
    bool writes;       /* all logits, too: */
    struct pi_new_file out;
    pith_status out_status; /* of the last write; otherwise out_err says why not */
    pith_error out_err;
    const pith_model *model;
    int32_t bad_pos; /* the first whose logits are not finite; -1: none */
    pith_error bad;  /* what is wrong with them */
};

/* Insertion into the short list of the best; ties go to the lower id, which comes first. */
static int32_t find_top(struct collector *c, const float *logits)
{
    int32_t n = 0;
    for (int32_t id = 0; id < c->n_vocab; id++) {
        if (n == c->n_top && (n == 0 || !(logits[id] > logits[c->top[n - 1]])))
            continue;
        int32_t at = n < c->n_top ? n++ : n - 1;
        for (; at > 0 && logits[id] > logits[c->top[at - 1]]; at--)
            c->top[at] = c->top[at - 1];
        c->top[at] = id;
    }
    return n;
}

/* JSON has no infinities: they and NaN become null. */
static json_t *json_logit(float logit)
{
    json_t *number = json_real((double)logit);
    return number != NULL ? number : json_null();
}

static void add_json(struct collector *c, int32_t pos, const float *logits, int32_t n,
                     const char *hash)
{
    json_t *top = json_array();
    for (int32_t i = 0; i < n; i++)
        json_array_append_new(top,
                              json_pack("[i, o]", (int)c->top[i], json_logit(logits[c->top[i]])));
    if (json_array_append_new(c->positions, json_pack("{s:i, s:o, s:s}", "pos", (int)pos, "top",
                                                      top, "hash", hash)) != 0)
        cli_fail("no memory for the logits of position %d", pos);
}

static bool collect(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct collector *c = user;
    char hash[24];
    int32_t n = find_top(c, logits);
    (void)seq;
    snprintf(hash, sizeof(hash), "%016llx",
             (unsigned long long)pith_logits_hash(logits, c->n_vocab));
    if (c->positions != NULL) {
        add_json(c, pos, logits, n, hash);
    } else {
        printf("%d\t%s", pos, hash);
        for (int32_t i = 0; i < n; i++)
            printf("\t%d:%.9g", c->top[i], (double)logits[c->top[i]]);
        putchar('\n');
    }
    if (c->writes)
        c->out_status =
            pi_new_file_write(&c->out, logits, (size_t)c->n_vocab * sizeof(*logits), &c->out_err);
    if (c->bad_pos < 0 && pith_logits_check(c->model, logits, &c->bad) != PITH_OK)
        c->bad_pos = pos;
    return c->out_status == PITH_OK && !cli_interrupted();
}

static struct cli_ids read_ids(const char *text, int32_t n_vocab)
{
    struct cli_ids ids;
    if (text[0] == '@') {
        struct cli_text file = cli_read_file(text + 1);
        ids = ids_parse("--ids", file.data, n_vocab);
        free(file.data);
    } else {
        ids = ids_parse("--ids", text, n_vocab);
    }
    if (ids.n == 0)
        cli_fail_usage("--ids: \"%.40s\" holds no token id", text);
    return ids;
}

static void open_out(struct collector *c, const char *path)
{
    pith_error err;
    if (path == NULL)
        return;
    cli_check(pi_new_file_open(ranks_output(path), &c->out, &err), &err);
    c->writes = true;
}

/* The file is there when all of them are; before that an old one stays. */
static void evaluate(struct session *s, struct collector *c, const struct cli_ids *ids)
{
    pith_error err;
    pith_batch_item item = {.seq = s->seq,
                            .tokens = ids->data,
                            .n_token = ids->n,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = collect,
                            .user = c};
    pith_status status = pith_batch_eval(s->engine, &item, 1, NULL, NULL, &err);
    if (status == PITH_OK && c->writes)
        c->out_status = pi_new_file_commit(&c->out, &c->out_err);
    pi_new_file_discard(&c->out);
    cli_check(c->out_status, &c->out_err);
    if (status == PITH_CANCELLED)
        cli_exit(EXIT_INTERRUPTED);
    session_check(status, &err);
}

static int run(void *options)
{
    struct options *o = options;
    struct session s = {0};
    struct collector c = {0};
    (void)engine_params(&o->model, &o->memory);
    session_load(&s, &o->model, false);
    struct cli_ids ids = read_ids(o->logits.ids, s.info.n_vocab);
    ranks_agree("list of ids", ids.data, (size_t)ids.n * sizeof(*ids.data));
    budget_settle(&s, &o->model, &o->memory, BUDGET_TEXTS, ids.n);
    session_start(&s, &o->model, &o->memory, ids.n);
    c.n_vocab = s.info.n_vocab;
    c.model = s.model;
    c.bad_pos = -1;
    c.n_top = o->logits.top < c.n_vocab ? o->logits.top : c.n_vocab;
    c.top = cli_alloc((size_t)c.n_top, sizeof(*c.top));
    c.positions = o->logits.json ? json_array() : NULL;
    open_out(&c, o->logits.out);
    cli_interrupt_catch();
    evaluate(&s, &c, &ids);
    if (c.positions != NULL)
        cli_json_print(json_pack("{s:o}", "positions", c.positions), JSON_REAL_PRECISION(9));
    if (c.bad_pos >= 0) {
        cli_finish_output();
        cli_fail("position %d: %s", c.bad_pos, c.bad.message);
    }
    free(c.top);
    free(ids.data);
    session_free(&s);
    return EXIT_SUCCESS;
}

const struct command command_logits = {
    .name = "logits",
    .summary = "print the logits of every position",
    .synopsis = "-m MODEL --ids 1,2,3",
    .notes =
        "No token is added to the ids. JSON: {\"positions\": [{\"pos\": 0, \"top\": [[id, logit],\n"
        "...], \"hash\": \"...\"}]}. Otherwise a line per position: position, hash, id:logit ... "
        "The\n"
        "hash is of the whole row of logits (FNV-1a, 64 bits).",
    .groups = groups,
    .options_size = sizeof(struct options),
    .defaults = defaults,
    .run = run,
};
