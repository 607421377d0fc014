/*
 * ruler_track.c - RULER's variable tracking: a chain of assignments "VAR B = VAR A " stands in
 * order, far apart, in noise. The question asks for all the variables that hold the value of the
 * first.
 *
 * One chain of four hops, five variables of five letters. The worked example before it has names of
 * three letters, so that neither can be taken for the other.
 *
 * Departure: the opening of the answer ends with "they are:", without the space that RULER has
 * behind it. Alone, that space is a token that never stands before a word. The first name would
 * have to be spelled in a way that no model has seen.
 *
 * Invariant: the chain does not depend on the size of the haystack.
 */
#include "ruler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_VARIABLE 5
#define NAME_LEN 5
#define EXAMPLE_NAME_LEN 3
#define EXAMPLE_TOKENS 500 /* at most, as RULER has it */
#define LINE_SIZE 64

static const char task_text[] = "Memorize and track the chain(s) of variable assignment hidden in"
                                " the following text.\n\n";

struct chain {
    char name[N_VARIABLE][NAME_LEN + 1];
    int32_t value;
    char line[N_VARIABLE][LINE_SIZE];
};

static void pick_chain(struct eval_rng *rng, int32_t name_len, struct chain *c)
{
    for (int32_t i = 0; i < N_VARIABLE;) {
        for (int32_t j = 0; j < name_len; j++)
            c->name[i][j] = (char)('A' + eval_rng_below(rng, 26));
        c->name[i][name_len] = '\0';
        bool taken = false;
        for (int32_t j = 0; j < i; j++)
            taken = taken || strcmp(c->name[i], c->name[j]) == 0;
        i += !taken;
    }
    c->value = 10000 + eval_rng_below(rng, 89999);
    snprintf(c->line[0], LINE_SIZE, "VAR %s = %d", c->name[0], (int)c->value);
    for (int32_t i = 1; i < N_VARIABLE; i++)
        snprintf(c->line[i], LINE_SIZE, "VAR %s = VAR %s ", c->name[i], c->name[i - 1]);
}

/* Draws N_VARIABLE distinct numbers below n (n at least as many), in order. */
static void pick_places(struct eval_rng *rng, int32_t n, int32_t *at)
{
    for (int32_t i = 0; i < N_VARIABLE;) {
        at[i] = eval_rng_below(rng, n);
        bool taken = false;
        for (int32_t j = 0; j < i; j++)
            taken = taken || at[i] == at[j];
        i += !taken;
    }
    qsort(at, N_VARIABLE, sizeof(*at), eval_by_size);
}

/* size lines of noise with the chain in them. */
static void add_noise(const struct chain *c, int32_t size, struct eval_rng rng,
                      struct eval_text *out)
{
    int32_t at[N_VARIABLE], next = 0;
    pick_places(&rng, size, at);
    for (int32_t i = 0; i < size; i++) {
        if (next < N_VARIABLE && at[next] == i)
            eval_text_printf(out, "%s\n", c->line[next++]);
        eval_text_add(out, EVAL_NOISE "\n");
    }
}

/* size words of prose with the chain behind sentences of it. */
static pith_status add_prose(const struct ruler_item *item, const struct chain *c, int32_t size,
                             struct eval_rng rng, struct eval_text *out, pith_error *err)
{
    struct eval_prose prose = {item->text, item->text_len};
    struct eval_text haystack = {0};
    struct eval_places places = {0};
    pith_status status = eval_haystack_make("vt", &prose, 0, size, true, &haystack, &places, err);
    if (status == PITH_OK) {
        struct eval_insert inserts[N_VARIABLE];
        int32_t at[N_VARIABLE];
        for (int32_t i = 0; i < N_VARIABLE; i++)
            at[i] = eval_rng_below(&rng, places.n);
        qsort(at, N_VARIABLE, sizeof(*at), eval_by_size);
        for (int32_t i = 0; i < N_VARIABLE; i++)
            inserts[i] = (struct eval_insert){c->line[i], at[i]};
        eval_places_insert(haystack.data, haystack.len, &places, inserts, N_VARIABLE, out, NULL);
        eval_text_add(out, "\n");
    }
    eval_text_free(&haystack);
    eval_places_free(&places);
    return status;
}

static void add_question(const struct chain *c, struct eval_text *text, struct eval_text *prefix)
{
    eval_text_printf(text,
                     "Question: Find all variables that are assigned the value %d in the text"
                     " above.",
                     (int)c->value);
    eval_text_printf(prefix,
                     " Answer: According to the chain(s) of variable assignment in the text above,"
                     " %d variables are assgined the value %d, they are:",
                     N_VARIABLE, (int)c->value);
}

/* The example: its own small text, question and answer. user is the ruler_build. */
static pith_status build_example(void *user, int32_t size, struct eval_prompt *out, pith_error *err)
{
    (void)err;
    struct eval_rng rng = eval_ruler_rng(user, RULER_EXAMPLE);
    struct chain c;
    pick_chain(&rng, EXAMPLE_NAME_LEN, &c);
    eval_text_add(&out->text, task_text);
    add_noise(&c, size, rng, &out->text);
    add_question(&c, &out->text, &out->text);
    for (int32_t i = 0; i < N_VARIABLE; i++)
        eval_text_printf(&out->text, " %s", c.name[i]);
    eval_text_add(&out->text, "\n\n");
    return PITH_OK;
}

pith_status eval_prepare_vt(struct ruler_build *b, const struct eval_counter *counter,
                            pith_error *err)
{
    if (!b->item->example)
        return PITH_OK;
    int32_t room = (b->item->length - b->task->n_predict) / 2;
    struct eval_prompt p = {0};
    pith_status status =
        eval_fit("the worked example of vt, for which there are at most half of the tokens",
                 build_example, b, N_VARIABLE, INT32_MAX / 2,
                 room < EXAMPLE_TOKENS ? room : EXAMPLE_TOKENS, counter, &p, err);
    if (status == PITH_OK) {
        b->example = p.text;
        p.text = (struct eval_text){0};
    }
    eval_prompt_free(&p);
    return status;
}

pith_status eval_build_vt(void *user, int32_t size, struct eval_prompt *out, pith_error *err)
{
    const struct ruler_build *b = user;
    struct eval_rng rng = eval_ruler_rng(b, RULER_FACTS), places = eval_ruler_rng(b, RULER_PLACES);
    struct chain c;
    pick_chain(&rng, NAME_LEN, &c);
    if (b->example.len > 0)
        eval_text_add(&out->text, b->example.data);
    eval_text_add(&out->text, task_text);
    pith_status status = PITH_OK;
    if (eval_ruler_haystack(b->task, b->item) == EVAL_HAYSTACK_TEXT)
        status = add_prose(b->item, &c, size, places, &out->text, err);
    else
        add_noise(&c, size, places, &out->text);
    add_question(&c, &out->text, &out->prefix);
    for (int32_t i = 0; i < N_VARIABLE; i++)
        eval_strings_add(&out->refs, c.name[i]);
    return status;
}
