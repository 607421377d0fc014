/*
 * text.c - recall as text: keeps a store in step with what lanes have lost, and asks it. The spans
 * of a sequence follow from the evicted entries alone (text_spans.h). So an update is the
 * difference between the spans there should be and the stored ones. Invariant: `stored` are the
 * spans that the store has of the sequence's timeline, blank ones aside, as long as there is no
 * problem. A fork or a loaded sequence begins with nothing stored and catches up.
 */
#include "policy/recall/text.h"

#include <stdio.h>
#include <time.h>

#include "base/mem.h"
#include "base/os.h"
#include "base/utf8.h"
#include "policy/recall/text_embed.h"
#include "policy/recall/text_http.h"
#include "policy/recall/text_snippets.h"
#include "policy/recall/text_store.h"

#define WAIT_MS 1000 /* for another process's lock on the database */

/* More than any text has on average: where fewer are a token, what was written is cut again. */
#define CHARS_PER_TOKEN 6

struct recall_text {
    struct recall_text_options o;
    const struct pith_model *model; /* borrowed */
    struct kv_geometry shape;       /* of the model's lanes; no storage types */
    struct text_store *store;       /* owned; NULL with an outside store */
    struct text_http *http;         /* owned; NULL without */
    struct text_embed *embed;       /* owned; NULL without */
    pith_error problem;             /* status OK: none */
    int32_t n_written;              /* sequences that may have something in the store */
    int64_t bytes;                  /* of the store, after its last change */
};

struct recall_text_seq {
    struct recall_text *t;
    char session[POLICY_TEXT_SIZE];
    char timeline[TEXT_NAME_SIZE];
    struct text_spans stored;
    bool written;    /* something of the session may be in the store */
    int64_t missing; /* entries that the lanes lacked at the last update; -1: none yet */
    struct recall_text_counts counts;
};

int64_t recall_text_bytes(const struct recall_text *t)
{
    return t->bytes;
}

static void weigh(struct recall_text *t)
{
    t->bytes = t->store != NULL ? text_store_bytes(t->store) : 0;
}

int64_t recall_text_seq_bytes(const struct recall_text_seq *s)
{
    return s->written ? recall_text_bytes(s->t) / s->t->n_written : 0;
}

/* ---- the store ---- */

/* A store that failed is not asked again. */
static void give_up(struct recall_text *t, const pith_error *why)
{
    if (t->problem.status != PITH_OK)
        return;
    t->problem = *why;
    pi_log(PITH_LOG_WARN, "recall=text store=off reason=\"%s\"", why->message);
}

const char *recall_text_problem(const struct recall_text *t)
{
    return t->problem.status != PITH_OK ? t->problem.message : NULL;
}

static pith_status check_options(const struct recall_text_options *o,
                                 const struct pith_model *model, pith_error *err)
{
    int32_t n;
    if (o->url[0] != '\0' && o->embed[0] != '\0')
        return pi_fail(err, PITH_INVALID,
                       "recall: embed: %.96s: the outside store %.96s has a model of its own",
                       o->embed, o->url);
    if (pi_utf8_span(o->session, strlen(o->session)) != strlen(o->session))
        return pi_fail(err, PITH_INVALID, "recall: session: the name is not UTF-8");
    pith_status status = pith_tokenize(model, "a", 1, 0, NULL, 0, &n, err);
    return status == PITH_RANGE ? PITH_OK : status;
}

static pith_status open_all(struct recall_text *t, text_embed_open_fn *open_embed, int32_t n_thread,
                            pith_error *err)
{
    pith_error why;
    PI_TRY(check_options(&t->o, t->model, err));
    if (t->o.url[0] != '\0')
        return text_http_open(t->o.url, TEXT_HTTP_TIMEOUT_MS, &t->http, err);
    if (t->o.embed[0] != '\0')
        PI_TRY(open_embed(t->o.embed, n_thread, &t->embed, err));
    pith_status status =
        text_store_open(t->o.db, t->o.ttl, WAIT_MS, (int64_t)time(NULL), &t->store, &why);
    if (status != PITH_OK)
        give_up(t, &why);
    weigh(t);
    return PITH_OK;
}

pith_status recall_text_open(const struct recall_text_options *o, const struct pith_model *model,
                             text_embed_open_fn *open_embed, int32_t n_thread,
                             struct recall_text **out, pith_error *err)
{
    struct recall_text *t = pi_mem_alloc(PI_MEM_OTHER, sizeof(*t));
    if (t == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for recall");
    t->o = *o;
    t->model = model;
    const struct pi_hparams *hp = pi_model_hparams(model);
    t->shape = (struct kv_geometry){.n_layer = hp->n_layer_full, .n_head = hp->n_head_kv};
    pith_status status = open_all(t, open_embed, n_thread, err);
    if (status != PITH_OK) {
        recall_text_close(t);
        return status;
    }
    *out = t;
    return PITH_OK;
}

void recall_text_close(struct recall_text *t)
{
    if (t == NULL)
        return;
    text_store_close(t->store);
    text_http_close(t->http);
    if (t->embed != NULL)
        t->embed->close(t->embed);
    pi_mem_free(t);
}

/* ---- sequences ---- */

pith_status recall_text_seq_create(struct recall_text *t, struct recall_text_seq **out,
                                   pith_error *err)
{
    struct recall_text_seq *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    if (s == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for what recall stores of a sequence");
    s->t = t;
    s->missing = -1;
    text_name_fresh(s->timeline);
    snprintf(s->session, sizeof(s->session), "%s",
             t->o.session[0] != '\0' ? t->o.session : s->timeline);
    *out = s;
    return PITH_OK;
}

void recall_text_seq_free(struct recall_text_seq *s)
{
    pith_error why;
    if (s == NULL)
        return;
    struct recall_text *t = s->t;
    if (t->o.session[0] == '\0' && t->store != NULL && t->problem.status == PITH_OK && s->written &&
        text_store_forget(t->store, s->session, &why) != PITH_OK)
        give_up(t, &why);
    if (s->written)
        weigh(t);
    t->n_written -= s->written;
    text_spans_free(&s->stored);
    pi_mem_free(s);
}

static pith_status copy_spans(const struct text_spans *from, struct text_spans *to, pith_error *err)
{
    static const struct text_spans none;
    return text_spans_minus(from, &none, to, err);
}

pith_status recall_text_seq_fork(const struct recall_text_seq *from, struct recall_text_seq **out,
                                 pith_error *err)
{
    struct recall_text_seq *s = NULL;
    PI_TRY(recall_text_seq_create(from->t, &s, err));
    /* Its lanes tell the first update or find what its own session lacks; in a session with a name
       it is there. */
    pith_status status =
        from->t->o.session[0] != '\0' ? copy_spans(&from->stored, &s->stored, err) : PITH_OK;
    if (status != PITH_OK) {
        recall_text_seq_free(s);
        return status;
    }
    *out = s;
    return PITH_OK;
}

void recall_text_count(const struct recall_text_seq *s, struct recall_text_counts *out)
{
    *out = s->counts;
    out->n_span = s->stored.n;
}

/* ---- updates ---- */

/* The texts of spans, blank ones left out. */
static pith_status make_hits(const struct recall_text_seq *s, const int32_t *tokens,
                             const struct text_spans *spans, struct text_hits *hits,
                             pith_error *err)
{
    for (int32_t i = 0; i < spans->n; i++) {
        struct text_hit hit = {
            .first = spans->span[i].first, .last = spans->span[i].last, .layer = -1};
        PI_TRY(
            text_of_tokens(s->t->model, tokens + hit.first, hit.last - hit.first, &hit.text, err));
        if (*hit.text == '\0')
            pi_mem_free(hit.text);
        else
            PI_TRY(text_hits_add(hits, hit, err));
    }
    return PITH_OK;
}

/* Adds and drops spans of the store. */
static pith_status change(struct recall_text_seq *s, const struct text_hits *add,
                          const struct text_spans *drop, pith_error *err)
{
    struct text_change c = {.session = s->session,
                            .timeline = s->timeline,
                            .add = add->hit,
                            .n_add = add->n,
                            .drop = drop->span,
                            .n_drop = drop->n};
    int32_t n_written = add->n;
    if (c.n_add == 0 && c.n_drop == 0)
        return PITH_OK;
    s->t->n_written += !s->written;
    s->written = true;
    if (s->t->http != NULL)
        PI_TRY(text_http_write(s->t->http, s->session, c.add, c.n_add, err));
    else
        PI_TRY(text_store_change(s->t->store, &c, (int64_t)time(NULL), &n_written, err));
    weigh(s->t);
    s->counts.n_stored += n_written;
    return PITH_OK;
}

/* Lets the store have the spans `now`, which take the place of those that it has. */
static pith_status replace(struct recall_text_seq *s, const int32_t *tokens, struct text_spans *now,
                           pith_error *err)
{
    struct text_spans add = {0}, drop = {0};
    struct text_hits hits = {0};
    pith_status status = text_spans_minus(now, &s->stored, &add, err);
    if (status == PITH_OK)
        status = text_spans_minus(&s->stored, now, &drop, err);
    if (status == PITH_OK)
        status = make_hits(s, tokens, &add, &hits, err);
    if (status == PITH_OK)
        status = change(s, &hits, &drop, err);
    if (status == PITH_OK) {
        struct text_spans before = s->stored;
        s->stored = *now;
        *now = before;
    }
    text_hits_free(&hits);
    text_spans_free(&add);
    text_spans_free(&drop);
    return status;
}

static pith_status catch_up(struct recall_text_seq *s, const struct kv_seq *kv,
                            const int32_t *tokens, int32_t n_token, pith_error *err)
{
    const struct recall_text *t = s->t;
    struct text_spans now = {0};
    uint8_t *gone = pi_mem_alloc(PI_MEM_OTHER, (size_t)n_token);
    if (gone == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for what is evicted of %d tokens", n_token);
    pith_status status = text_evicted(kv, &t->shape, n_token, t->o.lost, gone, err);
    if (status == PITH_OK)
        status = text_cut(gone, n_token, t->o.bleed, &now, err);
    if (status == PITH_OK)
        status = replace(s, tokens, &now, err);
    pi_mem_free(gone);
    text_spans_free(&now);
    return status;
}

void recall_text_update(struct recall_text_seq *s, const struct kv_seq *kv, const int32_t *tokens,
                        int32_t n_token)
{
    pith_error why;
    if (s->t->problem.status != PITH_OK)
        return;
    double start = pi_time_s();
    int64_t missing = text_missing(kv, &s->t->shape, n_token);
    if (missing != s->missing) {
        s->missing = missing;
        if (catch_up(s, kv, tokens, n_token, &why) != PITH_OK)
            give_up(s->t, &why);
    }
    s->counts.seconds += pi_time_s() - start;
}

void recall_text_seq_truncate(struct recall_text_seq *s, int32_t n_token)
{
    static const struct text_hits none;
    struct text_spans drop = {0};
    pith_error why;
    int32_t n = s->stored.n;
    s->missing = -1;
    while (n > 0 && s->stored.span[n - 1].last > n_token)
        n--;
    if (n == s->stored.n)
        return;
    struct text_spans rest = {.span = s->stored.span + n, .n = s->stored.n - n};
    s->stored.n = n;
    if (s->t->problem.status != PITH_OK || s->t->http != NULL)
        return;
    pith_status status = copy_spans(&rest, &drop, &why);
    if (status == PITH_OK)
        status = change(s, &none, &drop, &why);
    if (status != PITH_OK)
        give_up(s->t, &why);
    text_spans_free(&drop);
}

/* ---- finding ---- */

static pith_status find(struct recall_text_seq *s, const char *question, size_t len,
                        struct text_hits *hits, pith_error *err)
{
    struct recall_text *t = s->t;
    struct text_ranking ranking = {
        .alpha = t->o.alpha, .floor = t->o.floor, .top = t->o.top, .embedded = t->embed != NULL};
    if (t->http != NULL)
        return text_http_find(t->http, s->session, question, len, &ranking, hits, err);
    pith_status status = text_store_find(t->store, s->session, question, len, t->embed, &ranking,
                                         (int64_t)time(NULL), hits, err);
    weigh(t);
    return status;
}

/* Tokens of a text. */
static pith_status count_tokens(const struct recall_text *t, const char *text, int32_t *n,
                                pith_error *err)
{
    pith_status status = pith_tokenize(t->model, text, strlen(text), 0, NULL, 0, n, err);
    return status == PITH_RANGE ? PITH_OK : status;
}

/* The text of the hits, with as many characters as come to at most `room` tokens. */
static pith_status write_within(const struct recall_text *t, const struct text_hits *hits,
                                struct text_wish wish, int32_t room, char **text, int32_t *n_span,
                                pith_error *err)
{
    int32_t n = 0;
    wish.chars = (int32_t)pi_min(wish.chars, (int64_t)room * CHARS_PER_TOKEN);
    for (;;) {
        PI_TRY(text_snippets(hits, &wish, text, n_span, err));
        if (*text == NULL)
            return PITH_OK;
        pith_status status = count_tokens(t, *text, &n, err);
        if (status == PITH_OK && n <= room)
            return PITH_OK;
        wish.chars = (int32_t)pi_min(strlen(*text), wish.chars);
        pi_mem_free(*text);
        *text = NULL;
        *n_span = 0;
        PI_TRY(status);
        /* Below what it was: room is below n. */
        wish.chars = (int32_t)((int64_t)wish.chars * room / n);
    }
}

pith_status recall_text_find(struct recall_text_seq *s, const struct kv_seq *kv,
                             const int32_t *tokens, int32_t n_token, const char *question,
                             size_t len, int32_t room, char **text, int32_t *n_span,
                             pith_error *err)
{
    const struct recall_text *t = s->t;
    bool meaning = t->embed != NULL || t->http != NULL;
    struct text_wish wish = {
        .question = question, .len = len, .meaning = meaning ? t->o.alpha : 0, .chars = t->o.chars};
    struct text_hits hits = {0};
    pith_error why;
    *text = NULL;
    *n_span = 0;
    recall_text_update(s, kv, tokens, n_token);
    if (s->t->problem.status != PITH_OK)
        return PITH_OK;
    double start = pi_time_s();
    pith_status status = PITH_OK;
    if (find(s, question, len, &hits, &why) != PITH_OK)
        give_up(s->t, &why);
    else if (hits.n > 0)
        status = write_within(t, &hits, wish, room, text, n_span, err);
    text_hits_free(&hits);
    s->counts.n_found += *n_span;
    s->counts.seconds += pi_time_s() - start;
    return status;
}

pith_status recall_text_list(struct recall_text_seq *s, struct text_hits *hits, pith_error *err)
{
    const struct recall_text *t = s->t;
    if (t->problem.status != PITH_OK)
        return pi_fail(err, t->problem.status, "%s", t->problem.message);
    if (t->http != NULL)
        return text_http_list(t->http, s->session, hits, err);
    return text_store_list(t->store, s->session, (int64_t)time(NULL), hits, err);
}
