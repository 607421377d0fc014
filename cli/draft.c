/*
 * draft.c - drafts on the command line: what --draft names, and what is said of it at the end. A
 * drafting model has an engine and KV memory of its own. It comes out of the bytes that --kv-memory
 * or a size of --kv name, and on top of a share.
 */
#include "draft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models.h"
#include "outputs.h"

#include "pith/policy.h"

#define AT(member) .offset = offsetof(struct draft_options, member)
const struct option draft_option_table[] = {
    {"--draft", NULL, "HOW", OPTION_TEXT, AT(what),
     .help = "how tokens are drafted, which changes no answer: lookup (in the text so far), none, "
             "auto (lookup where policies allow it), or a model's file",
     .also = "-md --model-draft --spec-draft-model", .env = "LLAMA_ARG_SPEC_DRAFT_MODEL"},
    {"--draft-max", NULL, "N", OPTION_INT, AT(n_max), .min = 1, .max = 63,
     .help = "most tokens of a draft", .also = "--draft-n --spec-draft-n-max",
     .env = "LLAMA_ARG_SPEC_DRAFT_N_MAX"},
    {0},
};
#undef AT

void draft_options_default(struct draft_options *o, const char *what)
{
    pith_draft_params p;
    pith_draft_params_default(&p);
    *o = (struct draft_options){.what = what, .n_max = p.n_max};
}

/* Tokens that the session's KV memory would hold without policies: the drafting model needs no
   more. */
static int32_t tokens_of(const struct session *s, int32_t most)
{
    const int32_t n = 4096;
    pith_kv_stats kv;
    int64_t bytes = 0;
    pith_engine_params full = s->params;
    full.keep = full.read = full.recall = full.share = NULL;
    pith_engine_kv_stats(s->engine, &kv);
    if (s->keep != NULL || pith_kv_estimate(s->model, &full, n, &bytes, NULL) != PITH_OK)
        return most;
    int64_t tokens = kv.reserved_bytes / (bytes / n + 1) + n / 8;
    return tokens < most ? (int32_t)tokens : most;
}

/* Of --kv-memory the drafting model gets enough for as many tokens as the other. */
static void share_memory(struct session *s, int32_t n, pith_engine_params *p)
{
    pith_error err;
    int64_t mine, other, all = s->kv_memory;
    p->kv_tokens = 0;
    cli_check(pith_memory_estimate(s->draft_model, p, n, &mine, &err), &err);
    cli_check(pith_memory_estimate(s->model, &s->params, n, &other, &err), &err);
    p->memory_bytes = (int64_t)((double)all * ((double)mine / (double)(mine + other)));
    session_resize(s, all - p->memory_bytes);
}

void draft_load(struct session *s, const struct draft_options *o, const struct model_options *m)
{
    pith_error err;
    pith_model_params load;
    s->draft_most = strcmp(o->what, "none") == 0 ? 0 : o->n_max;
    if (strcmp(o->what, "none") == 0 || strcmp(o->what, "lookup") == 0 ||
        strcmp(o->what, "auto") == 0)
        return;
    pith_model_params_default(&load);
    load.n_thread = m->n_thread;
    load.cache_weights = m->cache_weights;
    load.on_demand = session_uses_gpu(m);
    char *found = models_find(o->what);
    outputs_check_input(found);
    pith_status status = pith_model_load(found, &load, &s->draft_model, &err);
    free(found);
    if (status != PITH_OK)
        cli_fail("--draft: %s", err.message);
}

pith_engine_params draft_params(const struct model_options *m, int32_t chunk)
{
    pith_engine_params p;
    pith_engine_params_default(&p);
    p.n_thread = m->n_thread;
    session_place(m, &p);
    p.chunk = chunk;
    return p;
}

/* Sets the memory of its engine. */
static void size_model(struct session *s, const struct model_options *m, pith_engine_params *p)
{
    pith_error err;
    pith_model_info info;
    int64_t bytes, most;
    if (s->draft_bytes > 0) {
        p->memory_bytes = s->draft_bytes;
        return;
    }
    pith_model_get_info(s->draft_model, &info);
    p->kv_tokens = tokens_of(s, info.n_ctx_train);
    cli_check(pith_kv_estimate(s->draft_model, p, p->kv_tokens, &bytes, &err), &err);
    most = session_room(s->draft_model, m) / 2;
    if (s->kv_memory > 0) {
        share_memory(s, p->kv_tokens, p);
    } else if (most > 0 && bytes > most) {
        p->kv_tokens = 0;
        p->kv_bytes = most;
    }
}

static void start_model(struct session *s, const struct model_options *m)
{
    pith_error err;
    pith_engine_params p = draft_params(m, s->params.chunk);
    size_model(s, m, &p);
    pith_status status = pith_engine_create(s->draft_model, &p, &s->draft_engine, &err);
    if (status != PITH_OK)
        cli_fail("--draft: %s", err.message);
    s->draft.engine = s->draft_engine;
}

const pith_draft_params *draft_start(struct session *s, const struct draft_options *o,
                                     const struct model_options *m)
{
    pith_error err;
    bool maybe = strcmp(o->what, "auto") == 0;
    if (s->draft_most == 0)
        return NULL;
    pith_draft_params_default(&s->draft);
    s->draft.n_max = s->draft_most;
    pith_status status = pith_draft_check(s->engine, &s->draft, &err);
    if (status != PITH_OK && maybe)
        return NULL;
    if (status == PITH_OK && s->draft_model != NULL) {
        start_model(s, m);
        status = pith_draft_check(s->engine, &s->draft, &err);
    }
    if (status != PITH_OK)
        cli_fail("--draft %s: %s", o->what, err.message);
    s->drafts = o->what;
    return &s->draft;
}

/* ---- reports ---- */

static int64_t kv_peak(const struct session *s)
{
    pith_kv_stats kv = {0};
    if (s->draft_engine != NULL)
        pith_engine_kv_stats(s->draft_engine, &kv);
    return kv.peak_bytes;
}

int64_t draft_memory(const struct session *s)
{
    pith_memory_stats m = {0};
    if (s->draft_engine != NULL)
        pith_engine_memory_stats(s->draft_engine, &m);
    return m.total_bytes;
}

void draft_report(const struct session *s, int64_t n_draft, int64_t n_accepted)
{
    char bytes[32];
    if (s->drafts == NULL || (n_draft == 0 && s->draft_engine == NULL))
        return;
    fprintf(stderr, "draft    %lld tokens, of which %lld came true", (long long)n_draft,
            (long long)n_accepted);
    if (n_draft > 0)
        fprintf(stderr, " (%.1f %%)", 100.0 * (double)n_accepted / (double)n_draft);
    if (s->draft_engine != NULL)
        fprintf(stderr, "; KV of the drafting model at most %s", cli_bytes(kv_peak(s), bytes));
    fprintf(stderr, "\n");
}

json_t *draft_json(const struct session *s, int64_t n_draft, int64_t n_accepted)
{
    return json_pack("{s:s, s:I, s:I, s:I}", "draft", s->drafts != NULL ? s->drafts : "none",
                     "draft_n", (json_int_t)n_draft, "draft_n_accepted", (json_int_t)n_accepted,
                     "draft_kv_peak_bytes", (json_int_t)kv_peak(s));
}
