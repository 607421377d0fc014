/*
 * tap.c - hands the rows that the pass computed to the caller's tap and to a policy. Recording and
 * calibration read queries, keys and values here. It must not know what they are read for.
 * Invariant: a tap sees the rows that the pass goes on with. A tap that stops ends the evaluation
 * after the pass, where the engine rolls the sequences back.
 */
#include "engine/engine.h"

static void show_rows(void *user, const struct pi_pass_tap_rows *in)
{
    struct pith_engine *e = user;
    struct pith_seq *seq = in->item->owner;
    if (seq == NULL) /* a repetition */
        return;
    pith_tap_rows rows = {
        .seq = seq,
        .layer = in->layer,
        .n_token = in->item->n_tok,
        .pos0 = in->item->pos0,
        .tokens = in->item->tokens,
        .q_pre = in->q_pre,
        .q = in->q,
        .k = in->k,
        .v = in->v,
        .h = in->h,
        .out = in->out,
    };
    if (!e->tap.stopped)
        e->tap.stopped = !e->tap.fn(e->tap.user, &rows);
}

/* A policy learns from rows before they are stored. */
static void learn_rows(void *user, const struct pi_pass_tap_rows *in)
{
    struct pith_engine *e = user;
    if (in->item->owner != NULL)
        e->tap.learn(in->item->owner, in);
}

static void learn_and_show(void *user, const struct pi_pass_tap_rows *in)
{
    learn_rows(user, in);
    show_rows(user, in);
}

static uint32_t wanted(void *user, const struct pi_pass_item *items, int32_t n, int32_t layer)
{
    const struct pith_engine *e = user;
    uint32_t wants = 0;
    for (int32_t i = 0; i < n; i++)
        if (items[i].owner != NULL)
            wants |= e->tap.wants(items[i].owner, items[i].pos0, layer);
    return wants;
}

/* The caller's tap comes behind the attention. Where keys lack their centre then it comes
   before. */
pith_status pi_engine_update_tap(struct pith_engine *e, pith_tap_fn *fn, void *user,
                                 pith_error *err)
{
    bool early = fn != NULL && e->traits.centred;
    bool learns = e->tap.learn != NULL;
    struct pi_pass_tap tap = {.fn = learns ? learn_rows : NULL,
                              .attended = fn != NULL && !early ? show_rows : NULL,
                              .wants = learns && !early ? wanted : NULL,
                              .user = e};
    if (early)
        tap.fn = learns ? learn_and_show : show_rows;
    PI_TRY(pi_pass_set_tap(e->pass, &tap, err));
    e->tap.fn = fn;
    e->tap.user = user;
    return PITH_OK;
}

pith_status pith_engine_set_tap(pith_engine *e, pith_tap_fn *fn, void *user, pith_error *err)
{
    if (e == NULL)
        return pi_fail(err, PITH_INVALID, "pith_engine_set_tap: engine must not be NULL");
    return pi_engine_update_tap(e, fn, user, err);
}
