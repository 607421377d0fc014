/*
 * share_items.c - the requests of `pith eval share`: derivations behind a head that all of them
 * have in common. Where answers are given, it has their texts.
 *
 * Invariant: a request depends on the seed, its number and the number of parts alone. So every row
 * of the table answers the same ones.
 */
#include "share.h"

#include <stdlib.h>
#include <string.h>

#include "derivation.h"

/* Examples are samples that no request is. */
#define FIRST_EXAMPLE (INT32_MAX - 64)
#define MAX_EXAMPLE 64
#define MAX_REQUEST 4096
#define MAX_LINE 64
#define MODULUS 20

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "share: no memory for requests");
}

/* ---- texts ---- */

/* Short derivations with their answers, one blank line behind each. */
static pith_status add_examples(const struct eval_setup *setup,
                                const struct eval_share_params *params, struct eval_text *out,
                                pith_error *err)
{
    pith_status status = PITH_OK;
    for (int32_t i = 0; i < params->n_example && status == PITH_OK; i++) {
        struct eval_prompt p = {0};
        status = eval_derivation_make(setup->seed, DERIVATION_MIN_PART, FIRST_EXAMPLE + i, &p, err);
        if (status == PITH_OK)
            eval_text_printf(out, "%s%s\n\n", p.text.data, p.refs.at[0]);
        eval_prompt_free(&p);
    }
    if (status == PITH_OK && out->failed)
        status = no_memory(err);
    return status;
}

/* One line of a step: sums of two numbers, and a total of its own. */
static void write_line(struct eval_text *out, int32_t a, int32_t b)
{
    int32_t s = (a + b) % MODULUS, t = (s + b) % MODULUS, u = (t + a) % MODULUS;
    eval_text_printf(out, "Part %d&%d: %d+%d=%d, %d+%d=%d, %d+%d=%d. Total %d+%d=%d.\n", (int)a,
                     (int)b, (int)a, (int)b, (int)s, (int)s, (int)b, (int)t, (int)t, (int)a, (int)u,
                     (int)s, (int)t, (int)((s + t) % MODULUS));
}

/* The prompt's sums as steps without a number, each with a total of its own: those that recur are
   the same letter by letter. */
static pith_status write_verbatim(uint64_t seed, const struct eval_share_params *params,
                                  int32_t sample, struct eval_prompt *out, pith_error *err)
{
    int32_t n_part = params->n_part, pool[DERIVATION_MAX_PART][2], n_pool = (n_part + 1) / 2;
    struct eval_rng rng = eval_rng_make(seed, (uint64_t)n_part, (uint64_t)(uint32_t)sample);
    struct eval_text text = {0};
    for (int32_t i = 0; i < n_pool; i++) {
        pool[i][0] = eval_rng_below(&rng, MODULUS);
        pool[i][1] = eval_rng_below(&rng, MODULUS);
    }
    for (int32_t i = 0; i < n_part; i++) {
        const int32_t *pair = pool[eval_rng_below(&rng, n_pool)];
        for (int32_t line = 0; line < params->n_line; line++)
            write_line(&text, (pair[0] + 7 * line) % MODULUS, (pair[1] + 3 * line) % MODULUS);
        eval_text_add(&text, "\n");
    }
    eval_strings_clear(&out->refs);
    if (!text.failed)
        eval_strings_add(&out->refs, text.data);
    pith_status status = text.failed ? no_memory(err) : eval_prompt_check(out, err);
    eval_text_free(&text);
    return status;
}

/* Puts the head in front of the prompt's text. */
static pith_status add_head(const struct eval_text *head, struct eval_prompt *p, pith_error *err)
{
    struct eval_text whole = {0};
    eval_text_add_n(&whole, head->data, head->len);
    eval_text_add_n(&whole, p->text.data, p->text.len);
    if (whole.failed) {
        eval_text_free(&whole);
        return no_memory(err);
    }
    eval_text_free(&p->text);
    p->text = whole;
    return PITH_OK;
}

/* ---- tokens ---- */

/* Tokens of the prompt, and the further tokens of a right answer. */
static pith_status encode(const struct eval_setup *setup, const struct eval_share_params *params,
                          struct share_item *item, pith_error *err)
{
    int32_t *all = NULL, n_all = 0;
    const char *text = item->prompt.text.data, *right = item->prompt.refs.at[0];
    pith_status status = eval_encode(setup, text, NULL, &item->ids, &item->n_id, err);
    if (status == PITH_OK)
        status = eval_encode(setup, text, right, &all, &n_all, err);
    /* In a few tokenizers the answer's first letters join the prompt's last token. */
    int32_t same = 0;
    while (status == PITH_OK && same < item->n_id && same < n_all && all[same] == item->ids[same])
        same++;
    item->n_right = n_all - same;
    if (status == PITH_OK && item->n_right < 1)
        status = eval_fail(err, PITH_INVALID, "share: a right answer has no tokens");
    item->n_predict =
        params->n_predict > 0 ? params->n_predict : item->n_right + item->n_right / 4 + 8;
    if (status == PITH_OK && params->answers != EVAL_SHARE_WRITTEN) {
        item->n_predict = item->n_right;
        item->forced = malloc((size_t)item->n_right * sizeof(*item->forced));
        if (item->forced == NULL)
            status = no_memory(err);
        else
            memcpy(item->forced, all + same, (size_t)item->n_right * sizeof(*item->forced));
    }
    free(all);
    return status;
}

static pith_status make_item(const struct eval_setup *setup, const struct eval_share_params *params,
                             const struct eval_text *head, int32_t i, struct share_item *out,
                             pith_error *err)
{
    pith_status status = eval_derivation_make(setup->seed, params->n_part, i, &out->prompt, err);
    if (status == PITH_OK && params->answers == EVAL_SHARE_VERBATIM)
        status = write_verbatim(setup->seed, params, i, &out->prompt, err);
    if (status == PITH_OK && head->len > 0)
        status = add_head(head, &out->prompt, err);
    if (status == PITH_OK)
        status = encode(setup, params, out, err);
    return status;
}

/* Tokens that all prompts begin with. */
static int32_t common_head(const struct share_items *items)
{
    int32_t n = items->at[0].n_id;
    for (int32_t i = 1; i < items->n; i++) {
        const struct share_item *a = &items->at[0], *b = &items->at[i];
        int32_t same = 0;
        while (same < n && same < b->n_id && a->ids[same] == b->ids[same])
            same++;
        n = same;
    }
    return n;
}

static pith_status check_params(const struct eval_share_params *p, pith_error *err)
{
    if (p->n_request < 2 || p->n_request > MAX_REQUEST)
        return eval_fail(err, PITH_INVALID, "share: requests = %d is not between 2 and %d",
                         (int)p->n_request, MAX_REQUEST);
    if (p->n_example < 0 || p->n_example > MAX_EXAMPLE)
        return eval_fail(err, PITH_INVALID, "share: examples = %d is not between 0 and %d",
                         (int)p->n_example, MAX_EXAMPLE);
    if (p->answers == EVAL_SHARE_VERBATIM && (p->n_line < 1 || p->n_line > MAX_LINE))
        return eval_fail(err, PITH_INVALID, "share: lines = %d is not between 1 and %d",
                         (int)p->n_line, MAX_LINE);
    return eval_check_predict("share", p->n_predict, 0, err);
}

pith_status share_items_make(const struct eval_setup *setup, const struct eval_share_params *params,
                             struct share_items *out, pith_error *err)
{
    struct eval_text head = {0};
    *out = (struct share_items){.n = params->n_request};
    pith_status status = check_params(params, err);
    if (status != PITH_OK) {
        out->n = 0;
        return status;
    }
    out->at = calloc((size_t)out->n, sizeof(*out->at));
    if (out->at == NULL) {
        out->n = 0;
        return no_memory(err);
    }
    status = add_examples(setup, params, &head, err);
    for (int32_t i = 0; i < out->n && status == PITH_OK; i++)
        status = make_item(setup, params, &head, i, &out->at[i], err);
    if (status == PITH_OK)
        out->n_head = common_head(out);
    eval_text_free(&head);
    return status;
}

void share_items_free(struct share_items *items)
{
    for (int32_t i = 0; i < items->n; i++) {
        eval_prompt_free(&items->at[i].prompt);
        free(items->at[i].ids);
        free(items->at[i].forced);
    }
    free(items->at);
    *items = (struct share_items){0};
}

/* ---- memory ---- */

pith_status share_items_memory(const struct share_items *items, const struct eval_setup *setup,
                               int32_t page_len, double fit, int64_t *bytes, pith_error *err)
{
    pith_engine_params params = setup->engine;
    int64_t largest = 0;
    double sum = 0.0;
    params.keep = params.share = NULL;
    params.kv_bytes = params.kv_tokens = 0;
    params.memory_bytes = 0;
    params.page_len = page_len;
    if (!(fit > 0.0 && fit <= 1.0))
        return eval_fail(err, PITH_INVALID, "share: fit = %g is not above 0 and at most 1", fit);
    for (int32_t i = 0; i < items->n; i++) {
        const struct share_item *item = &items->at[i];
        int64_t right, most;
        pith_status status =
            pith_kv_estimate(setup->model, &params, item->n_id + item->n_right, &right, err);
        if (status == PITH_OK)
            status =
                pith_kv_estimate(setup->model, &params, item->n_id + item->n_predict, &most, err);
        if (status != PITH_OK)
            return status;
        sum += (double)right;
        largest = most > largest ? most : largest;
    }
    *bytes = fit * sum > (double)largest ? (int64_t)(fit * sum) : largest;
    return PITH_OK;
}
