/*
 * facts_text.c - the texts of `pith eval facts`: a haystack with ten facts in it. It counts tokens
 * through a counter alone and knows no cache.
 *
 * Invariant: a text depends on style, seed, index and length, besides the haystack and the
 * tokenizer that measures it. Texts of one index begin alike at all lengths.
 */
#include <math.h>
#include <string.h>

#include "facts.h"
#include "haystack.h"

void eval_facts_text_free(struct facts_text *t)
{
    eval_facts_picked_free(&t->facts);
    eval_text_free(&t->text);
    *t = (struct facts_text){0};
}

double eval_facts_depth(int32_t i)
{
    return (i + 0.5) / FACTS_OF_TEXT;
}

struct builder {
    struct eval_prose prose;
    size_t start; /* of the haystack in it */
    struct facts_text *out;
    int32_t longest; /* index of the longest question */
    struct eval_text haystack;
    struct eval_places places;
};

/* The place nearest to a byte. */
static int32_t nearest(const struct eval_places *places, double byte)
{
    int32_t best = 0;
    for (int32_t i = 1; i < places->n; i++)
        if (fabs((double)places->at[i] - byte) < fabs((double)places->at[best] - byte))
            best = i;
    return best;
}

/* size: words of the haystack. */
static pith_status build(void *user, int32_t size, struct eval_prompt *out, pith_error *err)
{
    struct builder *b = user;
    const struct facts_picked *f = &b->out->facts;
    struct eval_insert inserts[FACTS_OF_TEXT];
    pith_status status = eval_haystack_make("facts", &b->prose, b->start, size, false, &b->haystack,
                                            &b->places, err);
    if (status != PITH_OK)
        return status;
    double len = b->haystack.len > 0 ? (double)b->haystack.len : 1.0;
    for (int32_t i = 0; i < FACTS_OF_TEXT; i++) {
        int32_t place = nearest(&b->places, eval_facts_depth(i) * len);
        inserts[i] = (struct eval_insert){f->sentence.at[i], place};
        b->out->at[i] = (double)b->places.at[place] / len;
    }
    eval_text_clear(&b->out->text);
    eval_places_insert(b->haystack.data != NULL ? b->haystack.data : "", b->haystack.len,
                       &b->places, inserts, FACTS_OF_TEXT, &b->out->text, NULL);
    if (b->out->text.failed)
        return eval_fail(err, PITH_NOMEM, "facts: no memory for a text");
    eval_text_printf(&out->text, "%s%s", b->out->text.data, f->question.at[b->longest]);
    eval_text_add(&out->prefix, f->prefix.at[b->longest]);
    return PITH_OK;
}

static pith_status find_longest(struct builder *b, const struct eval_counter *counter,
                                pith_error *err)
{
    const struct facts_picked *f = &b->out->facts;
    int32_t most = -1;
    for (int32_t i = 0; i < FACTS_OF_TEXT; i++) {
        int32_t n = 0;
        pith_status status =
            counter->count(counter->user, f->question.at[i], f->prefix.at[i], &n, err);
        if (status != PITH_OK)
            return status;
        if (n > most) {
            most = n;
            b->longest = i;
        }
    }
    return PITH_OK;
}

pith_status eval_facts_text_make(const struct eval_facts_texts_params *params, uint64_t seed,
                                 int32_t index, int32_t length, const struct eval_counter *counter,
                                 struct facts_text *out, pith_error *err)
{
    struct builder b = {.prose = {params->haystack, params->haystack_len}, .out = out};
    struct eval_rng rng = eval_rng_make(seed, 5, (uint64_t)(uint32_t)index);
    struct eval_prompt prompt = {0};
    if (params->haystack == NULL)
        b.prose = eval_prose_noise();
    pith_status status = eval_prose_check("facts", &b.prose, err);
    if (status == PITH_OK)
        status = eval_facts_pick(params->style, seed, index, &out->facts, err);
    if (status == PITH_OK)
        status = find_longest(&b, counter, err);
    if (status == PITH_OK) {
        b.start = eval_prose_pick(&b.prose, &rng);
        status = eval_fit("facts", build, &b, 0, INT32_MAX / 2, length, counter, &prompt, err);
    }
    eval_prompt_free(&prompt);
    eval_text_free(&b.haystack);
    eval_places_free(&b.places);
    return status;
}
