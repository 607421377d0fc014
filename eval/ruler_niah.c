/*
 * ruler_niah.c - RULER's eight needle tasks: sentences "One of the special magic numbers for KEY
 * is: VALUE." in noise, in prose or among others of their kind. The kinds differ in what keys and
 * values are, in how many there are, and in how many keys are asked about.
 *
 * Departure: keys are distinct here (RULER draws them independently), so that every question has
 * one answer; and words are of our own lists.
 *
 * Invariant: the facts and the question do not depend on the size of the haystack.
 */
#include "ruler.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum niah_type { NIAH_WORDS, NIAH_NUMBERS, NIAH_UUIDS };

struct niah_kind {
    const char *name;
    enum niah_type key;
    enum niah_type value;
    int32_t n_key;
    int32_t n_value; /* of each key */
    int32_t n_query;
};

static const struct niah_kind kinds[] = {
    {"niah_single_1", NIAH_WORDS, NIAH_NUMBERS, 1, 1, 1},
    {"niah_single_2", NIAH_WORDS, NIAH_NUMBERS, 1, 1, 1},
    {"niah_single_3", NIAH_WORDS, NIAH_UUIDS, 1, 1, 1},
    {"niah_multikey_1", NIAH_WORDS, NIAH_NUMBERS, 4, 1, 1},
    {"niah_multikey_2", NIAH_WORDS, NIAH_NUMBERS, 1, 1, 1},
    {"niah_multikey_3", NIAH_UUIDS, NIAH_UUIDS, 1, 1, 1},
    {"niah_multivalue", NIAH_WORDS, NIAH_NUMBERS, 1, 4, 1},
    {"niah_multiquery", NIAH_WORDS, NIAH_NUMBERS, 4, 1, 4},
};

#define MAX_FACT 4 /* keys times values of any kind */
#define VALUE_SIZE 64
#define N_DEPTH 40 /* RULER's depths: this many percentages from 0 to 100, equally spaced */
#define LINE_SIZE 256

static const struct niah_kind *kind_of(const struct ruler_build *b)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        if (strcmp(kinds[i].name, b->task->name) == 0)
            return &kinds[i];
    }
    return &kinds[0];
}

/* "number" or "numbers". */
static const char *type_name(const struct niah_kind *k, bool plural)
{
    if (k->value == NIAH_UUIDS)
        return plural ? "uuids" : "uuid";
    return plural ? "numbers" : "number";
}

/* ---- keys and values ---- */

/* Pairs "adjective-thing" in an order drawn once, so that no key comes twice. */
struct pairs {
    int32_t *order; /* [n] owned */
    int32_t n;
};

static bool pairs_pick(struct pairs *p, struct eval_rng *rng)
{
    p->n = eval_adjectives.n * eval_things.n;
    p->order = malloc((size_t)p->n * sizeof(*p->order));
    if (p->order == NULL)
        return false;
    for (int32_t i = 0; i < p->n; i++)
        p->order[i] = i;
    eval_rng_shuffle(rng, p->order, (size_t)p->n, sizeof(*p->order));
    return true;
}

/* Key i; beyond the pairs, those with a place behind them. */
static void pair_key(const struct pairs *p, int32_t i, char *buf)
{
    int32_t pair = p->order[i % p->n], round = i / p->n;
    const char *adjective = eval_adjectives.word[pair / eval_things.n];
    const char *thing = eval_things.word[pair % eval_things.n];
    if (round == 0)
        snprintf(buf, VALUE_SIZE, "%s-%s", adjective, thing);
    else
        snprintf(buf, VALUE_SIZE, "%s-%s-%s", adjective, thing,
                 eval_places.word[(round - 1) % eval_places.n]);
}

/* A random UUID, version 4. */
static void pick_uuid(struct eval_rng *rng, char *buf)
{
    uint64_t a = eval_rng_next(rng), b = eval_rng_next(rng);
    snprintf(buf, VALUE_SIZE,
             "%08" PRIx64 "-%04" PRIx64 "-4%03" PRIx64 "-%04" PRIx64 "-%012" PRIx64, a >> 32,
             (a >> 16) & 0xffff, a & 0xfff, 0x8000 | (b >> 48 & 0x3fff), b & 0xffffffffffff);
}

static void pick_value(enum niah_type type, struct eval_rng *rng, char *buf)
{
    if (type == NIAH_UUIDS)
        pick_uuid(rng, buf);
    else
        snprintf(buf, VALUE_SIZE, "%d", (int)(1000000 + eval_rng_below(rng, 9000000)));
}

struct facts {
    char key[MAX_FACT][VALUE_SIZE];
    char value[MAX_FACT][MAX_FACT][VALUE_SIZE];
    int32_t asked[MAX_FACT]; /* [n_query] indices of keys */
};

static void pick_facts(const struct niah_kind *k, const struct pairs *pairs, struct eval_rng *rng,
                       struct facts *f)
{
    for (int32_t i = 0; i < k->n_key; i++) {
        if (k->key == NIAH_UUIDS)
            pick_uuid(rng, f->key[i]);
        else
            pair_key(pairs, i, f->key[i]);
        for (int32_t j = 0; j < k->n_value; j++)
            pick_value(k->value, rng, f->value[i][j]);
    }
    int32_t order[MAX_FACT];
    for (int32_t i = 0; i < k->n_key; i++)
        order[i] = i;
    eval_rng_shuffle(rng, order, (size_t)k->n_key, sizeof(*order));
    memcpy(f->asked, order, (size_t)k->n_query * sizeof(*order));
}

static void write_needle(const struct niah_kind *k, const char *key, const char *value, char *buf)
{
    snprintf(buf, LINE_SIZE, "One of the special magic %s for %s is: %s.", type_name(k, true), key,
             value);
}

/* ---- haystacks ---- */

/* size lines with the needles [n] in front of lines drawn from them. */
static void add_lines(const struct ruler_build *b, const struct niah_kind *k, bool needles,
                      const struct pairs *pairs, int32_t size, char needle[][LINE_SIZE], int32_t n,
                      struct eval_text *out)
{
    struct eval_rng places = eval_ruler_rng(b, RULER_PLACES), fill = eval_ruler_rng(b, RULER_FILL);
    int32_t at[MAX_FACT], next = 0;
    for (int32_t i = 0; i < n; i++)
        at[i] = eval_rng_below(&places, size);
    qsort(at, (size_t)n, sizeof(*at), eval_by_size);
    for (int32_t i = 0; i < size; i++) {
        for (; next < n && at[next] == i; next++)
            eval_text_printf(out, "%s\n", needle[next]);
        char key[VALUE_SIZE], value[VALUE_SIZE], line[LINE_SIZE] = EVAL_NOISE;
        if (needles && k->key == NIAH_UUIDS)
            pick_uuid(&fill, key);
        else
            pair_key(pairs, k->n_key + i, key);
        if (needles) {
            pick_value(k->value, &fill, value);
            write_needle(k, key, value, line);
        }
        eval_text_printf(out, "%s\n", line);
    }
}

/* size words of prose with the needles at depths drawn from N_DEPTH percentages. */
static pith_status add_prose(const struct ruler_build *b, int32_t size, char needle[][LINE_SIZE],
                             int32_t n, struct eval_text *out, pith_error *err)
{
    struct eval_rng rng = eval_ruler_rng(b, RULER_PLACES);
    struct eval_prose prose = {b->item->text, b->item->text_len};
    struct eval_text haystack = {0};
    struct eval_places places = {0};
    pith_status status =
        eval_haystack_make(b->task->name, &prose, 0, size, true, &haystack, &places, err);
    if (status == PITH_OK) {
        int32_t depth[N_DEPTH];
        for (int32_t i = 0; i < N_DEPTH; i++)
            depth[i] = i;
        eval_rng_shuffle(&rng, depth, N_DEPTH, sizeof(*depth));
        qsort(depth, (size_t)n, sizeof(*depth), eval_by_size);
        struct eval_insert inserts[MAX_FACT];
        for (int32_t i = 0; i < n; i++) {
            int64_t place = (int64_t)(places.n - 1) * depth[i] / (N_DEPTH - 1);
            inserts[i] = (struct eval_insert){needle[i], (int32_t)place};
        }
        eval_places_insert(haystack.data, haystack.len, &places, inserts, n, out, NULL);
        eval_text_add(out, "\n");
    }
    eval_text_free(&haystack);
    eval_places_free(&places);
    return status;
}

/* ---- the prompt ---- */

static void add_query(const struct niah_kind *k, const struct facts *f, struct eval_text *out)
{
    for (int32_t i = 0; i < k->n_query; i++) {
        const char *joint = i == 0 ? "" : i + 1 == k->n_query ? ", and " : ", ";
        eval_text_printf(out, "%s%s", joint, f->key[f->asked[i]]);
    }
}

static void add_question(const struct niah_kind *k, const struct facts *f, struct eval_prompt *out)
{
    bool many = k->n_query * k->n_value > 1;
    const char *type = type_name(k, many);
    eval_text_printf(&out->text, "What %s the special magic %s for ", many ? "are all" : "is",
                     type);
    add_query(k, f, &out->text);
    eval_text_add(&out->text, " mentioned in the provided text?");
    eval_text_printf(&out->prefix, " The special magic %s for ", type);
    add_query(k, f, &out->prefix);
    eval_text_printf(&out->prefix, " mentioned in the provided text %s", many ? "are" : "is");
    for (int32_t i = 0; i < k->n_query; i++) {
        for (int32_t j = 0; j < k->n_value; j++)
            eval_strings_add(&out->refs, f->value[f->asked[i]][j]);
    }
}

pith_status eval_build_niah(void *user, int32_t size, struct eval_prompt *out, pith_error *err)
{
    const struct ruler_build *b = user;
    const struct niah_kind *k = kind_of(b);
    struct eval_rng rng = eval_ruler_rng(b, RULER_FACTS);
    struct pairs pairs;
    struct facts f;
    if (!pairs_pick(&pairs, &rng))
        return eval_fail(err, PITH_NOMEM, "%s: no memory for keys", k->name);
    pick_facts(k, &pairs, &rng, &f);

    char needle[MAX_FACT][LINE_SIZE];
    int32_t n = 0;
    for (int32_t i = 0; i < k->n_key; i++) {
        for (int32_t j = 0; j < k->n_value; j++)
            write_needle(k, f.key[i], f.value[i][j], needle[n++]);
    }
    eval_rng_shuffle(&rng, needle, (size_t)n, sizeof(*needle));

    bool many = k->n_query * k->n_value > 1;
    const char *type = type_name(k, many);
    eval_text_printf(&out->text,
                     "%s special magic %s %s hidden within the following text. Make sure to"
                     " memorize it. I will quiz you about the %s afterwards.\n",
                     many ? "Some" : "A", type, many ? "are" : "is", type);
    pith_status status = PITH_OK;
    enum eval_haystack haystack = eval_ruler_haystack(b->task, b->item);
    if (haystack == EVAL_HAYSTACK_TEXT)
        status = add_prose(b, size, needle, n, &out->text, err);
    else
        add_lines(b, k, haystack == EVAL_HAYSTACK_NEEDLES, &pairs, size, needle, n, &out->text);
    add_question(k, &f, out);
    free(pairs.order);
    return status;
}
