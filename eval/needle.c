/*
 * needle.c - `pith eval needle`: the protocol of the TriAttention V3 report, section 3.3: a fact in
 * prose, one question, greedy, a strict checker. It has any depths and lengths, in tokens where the
 * report counts characters, and decoys.
 *
 * Invariant: a text depends on the seed, its length, depth and repeat alone, besides the haystack
 * and the tokenizer that measures it.
 */
#include "needle.h"

#include "chunks.h"
#include "paired.h"
#include "words.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT_BYTES 32 /* of the prompt around the needle, by which a repetition is known */
#define MAX_NEEDLE 32    /* facts in a text: there are more names and adjectives than that */
#define VALUE_SIZE 64
#define SPARE_TOKENS 64 /* of a right answer that is longer than --predict */

/* ---- styles ---- */

struct style {
    const char *needle;
    const char *needle_named; /* with several needles */
    const char *question;
    const char *question_named;
    const char *prefix;
    const char *word; /* NULL: drawn */
    const char *number;
};

static const struct style styles[] = {
    [EVAL_NEEDLE_PAPER] = {"The secret code word is {word} {number}.",
                           "The secret code word of {name} is {word} {number}.",
                           "What is the secret code word mentioned earlier? Answer with just the"
                           " code word and number, nothing else:",
                           "What is the secret code word of {name} mentioned earlier? Answer with"
                           " just the code word and number, nothing else:",
                           "", "PURPLE ELEPHANT", "7742"},
    [EVAL_NEEDLE_PITH] = {"The password of {name} is {word} {number}.",
                          "The password of {name} is {word} {number}.",
                          "\nQuestion: What is the password of {name}?",
                          "\nQuestion: What is the password of {name}?", "\nAnswer:", NULL, NULL},
};

/* The parameters with the style's texts where they have none. */
static struct eval_needle_params resolve(const struct eval_needle_params *params)
{
    struct eval_needle_params p = *params;
    const struct style *s = &styles[p.style];
    bool many = p.n_needle > 1;
    if (p.needle == NULL)
        p.needle = many ? s->needle_named : s->needle;
    if (p.question == NULL)
        p.question = many ? s->question_named : s->question;
    if (p.prefix == NULL)
        p.prefix = s->prefix;
    if (p.word == NULL)
        p.word = s->word;
    if (p.number == NULL)
        p.number = s->number;
    if (p.haystack == NULL) {
        struct eval_prose noise = eval_prose_noise();
        p.haystack = noise.text;
        p.haystack_len = noise.len;
    }
    return p;
}

static size_t strlen_or_0(const char *s)
{
    return s != NULL ? strlen(s) : 0;
}

static pith_status check_params(const struct eval_needle_params *p, pith_error *err)
{
    struct eval_prose prose = {p->haystack, p->haystack_len};
    pith_status status = eval_prose_check("needle", &prose, err);
    if (status != PITH_OK)
        return status;
    if (strlen_or_0(p->word) >= VALUE_SIZE || strlen_or_0(p->number) >= VALUE_SIZE)
        return eval_fail(err, PITH_INVALID, "needle: word and number take at most %d bytes each",
                         VALUE_SIZE - 1);
    if (p->needle[0] == '\0' || p->question[0] == '\0')
        return eval_fail(err, PITH_INVALID, "needle: needle and question may not be empty");
    if (p->n_needle < 1 || p->n_needle > MAX_NEEDLE)
        return eval_fail(err, PITH_INVALID, "needle: needles = %d is not between 1 and %d",
                         (int)p->n_needle, MAX_NEEDLE);
    if (p->n_needle == 1)
        return PITH_OK;
    if (strstr(p->needle, "{name}") == NULL || strstr(p->question, "{name}") == NULL)
        return eval_fail(err, PITH_INVALID,
                         "needle: with %d needles, needle and question must hold {name}",
                         (int)p->n_needle);
    if (strstr(p->needle, "{word}") == NULL || strstr(p->needle, "{number}") == NULL)
        return eval_fail(err, PITH_INVALID,
                         "needle: with %d needles, the needle must hold {word} and {number}",
                         (int)p->n_needle);
    return PITH_OK;
}

/* ---- facts ---- */

struct fact {
    const char *name;
    char word[VALUE_SIZE];
    char number[VALUE_SIZE];
};

static void copy_value(char *to, const char *from)
{
    snprintf(to, VALUE_SIZE, "%s", from);
}

static void to_upper(char *s)
{
    for (; *s != '\0'; s++)
        *s = *s >= 'a' && *s <= 'z' ? (char)(*s - 'a' + 'A') : *s;
}

static bool is_picked(const struct fact *facts, int32_t n, const struct fact *f)
{
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(facts[i].name, f->name) == 0 || strcmp(facts[i].word, f->word) == 0 ||
            strcmp(facts[i].number, f->number) == 0)
            return true;
    }
    return false;
}

static void pick_fact(const struct eval_needle_params *p, struct eval_rng *rng, struct fact *f)
{
    const char *const *adjectives = eval_adjectives.word, *const *things = eval_things.word;
    f->name = eval_names.word[eval_rng_below(rng, eval_names.n)];
    const char *adjective = adjectives[eval_rng_below(rng, eval_adjectives.n)];
    const char *thing = things[eval_rng_below(rng, eval_things.n)];
    if (p->style == EVAL_NEEDLE_PITH) {
        copy_value(f->word, adjective);
        copy_value(f->number, thing);
        return;
    }
    snprintf(f->word, VALUE_SIZE, "%s %s", adjective, thing);
    to_upper(f->word);
    snprintf(f->number, VALUE_SIZE, "%d", (int)(1000 + eval_rng_below(rng, 9000)));
}

/* facts[0] is asked about; no two share a name, a word or a number. */
static void pick_facts(const struct eval_needle_params *p, struct eval_rng *rng, struct fact *facts)
{
    for (int32_t i = 0; i < p->n_needle;) {
        pick_fact(p, rng, &facts[i]);
        if (i == 0 && p->word != NULL)
            copy_value(facts[i].word, p->word);
        if (i == 0 && p->number != NULL)
            copy_value(facts[i].number, p->number);
        i += !is_picked(facts, i, &facts[i]);
    }
}

/* Writes a template with the parts of a fact in it. */
static void fill(struct eval_text *out, const char *template, const struct fact *f)
{
    const char *const keys[] = {"{name}", "{word}", "{number}"};
    const char *const values[] = {f->name, f->word, f->number};
    while (*template != '\0') {
        size_t n = 0;
        for (int i = 0; i < 3 && n == 0; i++) {
            if (strncmp(template, keys[i], strlen(keys[i])) != 0)
                continue;
            n = strlen(keys[i]);
            eval_text_add(out, values[i]);
        }
        if (n == 0)
            eval_text_add_n(out, template, 1);
        template += n > 0 ? n : 1;
    }
}

/* ---- building ---- */

struct builder {
    const struct eval_needle_params *params;
    const struct needle_item *item;
    const struct eval_counter *counter;
    size_t start;                          /* of the haystack in the prose */
    struct eval_text sentence[MAX_NEEDLE]; /* [0] is asked about */
    struct eval_text question;
    struct eval_text prefix;
    struct fact facts[MAX_NEEDLE];
    int32_t size;              /* words of the last build */
    struct eval_text haystack; /* its haystack */
    struct eval_places places; /* in haystack */
    int32_t place;             /* of the needle in the last build; -1: by bytes */
    size_t offset;             /* of the needle in the last prompt */
};

static struct eval_rng stream(const struct needle_item *item, uint64_t purpose)
{
    uint64_t depth = (uint64_t)llround(item->depth * 1e6);
    return eval_rng_make(item->seed, (uint64_t)(uint32_t)item->length << 32 | depth,
                         (uint64_t)(uint32_t)item->repeat << 8 | purpose);
}

static pith_status start_builder(struct builder *b, pith_error *err)
{
    struct eval_rng rng = stream(b->item, 1);
    struct eval_prose prose = {b->params->haystack, b->params->haystack_len};
    pick_facts(b->params, &rng, b->facts);
    b->start = b->item->repeat > 0 ? eval_prose_pick(&prose, &rng) : 0;
    bool failed = false;
    for (int32_t i = 0; i < b->params->n_needle; i++) {
        fill(&b->sentence[i], b->params->needle, &b->facts[i]);
        failed = failed || b->sentence[i].failed;
    }
    fill(&b->question, b->params->question, &b->facts[0]);
    fill(&b->prefix, b->params->prefix, &b->facts[0]);
    failed = failed || b->question.failed || b->prefix.failed;
    if (failed)
        return eval_fail(err, PITH_NOMEM, "needle: no memory for a text");
    const struct fact *f = &b->facts[0];
    if (strstr(b->sentence[0].data, f->word) == NULL ||
        strstr(b->sentence[0].data, f->number) == NULL)
        return eval_fail(err, PITH_INVALID,
                         "needle: \"%.100s\" does not hold \"%s\" and \"%s\", which is asked for",
                         b->sentence[0].data, f->word, f->number);
    return PITH_OK;
}

static void end_builder(struct builder *b)
{
    for (int32_t i = 0; i < MAX_NEEDLE; i++)
        eval_text_free(&b->sentence[i]);
    eval_text_free(&b->question);
    eval_text_free(&b->prefix);
    eval_text_free(&b->haystack);
    eval_places_free(&b->places);
}

static const char *text_or_empty(const struct eval_text *t)
{
    return t->data != NULL ? t->data : "";
}

/* The place nearest to a share of the haystack's bytes. */
static int32_t nearest_place(const struct eval_places *places, double byte)
{
    int32_t best = 0;
    for (int32_t i = 1; i < places->n; i++) {
        if (fabs((double)places->at[i] - byte) < fabs((double)places->at[best] - byte))
            best = i;
    }
    return best;
}

/* Where the sentences go, in the order of their places: the needle at its own, the decoys drawn.
   Sentences of one place keep their order, which qsort would not promise. */
static void set_inserts(const struct builder *b, struct eval_insert *inserts)
{
    struct eval_rng rng = stream(b->item, 2);
    int32_t place = b->place;
    if (place < 0)
        place = nearest_place(&b->places, b->item->depth * (double)b->haystack.len);
    if (place >= b->places.n) /* words were taken off the end, and its place with them */
        place = b->places.n - 1;
    for (int32_t i = 0; i < b->params->n_needle; i++) {
        int32_t drawn = (int32_t)(eval_rng_unit(&rng) * b->places.n), at = i;
        struct eval_insert it = {text_or_empty(&b->sentence[i]), i == 0 ? place : drawn};
        for (; at > 0 && inserts[at - 1].place > it.place; at--)
            inserts[at] = inserts[at - 1];
        inserts[at] = it;
    }
}

/* size: words of the haystack. */
static pith_status build(void *user, int32_t size, struct eval_prompt *out, pith_error *err)
{
    struct builder *b = user;
    struct eval_prose prose = {b->params->haystack, b->params->haystack_len};
    b->size = size;
    pith_status status =
        eval_haystack_make("needle", &prose, b->start, size, false, &b->haystack, &b->places, err);
    if (status != PITH_OK)
        return status;

    struct eval_insert inserts[MAX_NEEDLE];
    size_t offsets[MAX_NEEDLE];
    set_inserts(b, inserts);
    eval_places_insert(text_or_empty(&b->haystack), b->haystack.len, &b->places, inserts,
                       b->params->n_needle, &out->text, offsets);
    for (int32_t i = 0; i < b->params->n_needle; i++) {
        if (inserts[i].sentence == text_or_empty(&b->sentence[0]))
            b->offset = offsets[i];
    }
    const char *question = text_or_empty(&b->question);
    bool joined = question[0] == ' ' || question[0] == '\n' || question[0] == '\0';
    eval_text_printf(&out->text, "%s%s", joined ? "" : " ", question);
    eval_text_add(&out->prefix, text_or_empty(&b->prefix));
    eval_strings_printf(&out->refs, "%s %s", b->facts[0].word, b->facts[0].number);
    return PITH_OK;
}

/* Tokens of the haystack's first bytes, with whatever every prompt has. */
static pith_status count_bytes(struct builder *b, size_t bytes, int32_t *n, pith_error *err)
{
    char *haystack = b->haystack.data;
    if (haystack == NULL) {
        *n = 0;
        return PITH_OK;
    }
    char kept = haystack[bytes];
    haystack[bytes] = '\0';
    pith_status status = b->counter->count(b->counter->user, haystack, NULL, n, err);
    haystack[bytes] = kept;
    return status;
}

/* Finds the place nearest to the depth in tokens and the share of tokens before it. */
static pith_status find_depth(struct builder *b, int32_t *place, double *at, pith_error *err)
{
    int32_t none = 0, all = 0, n = 0;
    pith_status status = count_bytes(b, 0, &none, err);
    if (status == PITH_OK)
        status = count_bytes(b, b->haystack.len, &all, err);
    double total = all > none ? all - none : 1.0, best = 2.0;
    int32_t lo = 0,
            hi = b->places.n - 1; /* the first place at or behind the depth is in [lo, hi] */
    *place = 0;
    while (status == PITH_OK && lo <= hi) {
        int32_t mid = lo + (hi - lo) / 2;
        status = count_bytes(b, b->places.at[mid], &n, err);
        double share = (n - none) / total;
        if (fabs(share - b->item->depth) < fabs(best - b->item->depth)) {
            best = share;
            *place = mid;
        }
        if (share < b->item->depth)
            lo = mid + 1;
        else
            hi = mid - 1;
    }
    *at = best;
    return status;
}

/* Fits by bytes, puts the needle where the tokens say, and takes words off the end while the text
   is too long. It can become so by the needle, or by moving it. */
static pith_status fit(struct builder *b, struct needle_text *out, pith_error *err)
{
    b->place = -1;
    pith_status status = eval_fit("needle", build, b, 0, INT32_MAX / 2, b->item->length, b->counter,
                                  &out->prompt, err);
    if (status != PITH_OK)
        return status;
    status = find_depth(b, &b->place, &out->at, err);
    for (int32_t size = b->size;; size--) {
        eval_prompt_clear(&out->prompt);
        if (status == PITH_OK)
            status = build(b, size, &out->prompt, err);
        if (status == PITH_OK)
            status = eval_prompt_check(&out->prompt, err);
        if (status == PITH_OK)
            status = b->counter->count(b->counter->user, text_or_empty(&out->prompt.text),
                                       out->prompt.prefix.len > 0 ? out->prompt.prefix.data : NULL,
                                       &out->prompt.n_token, err);
        if (status != PITH_OK || out->prompt.n_token <= b->item->length)
            return status;
        if (size == 0)
            return eval_fail(err, PITH_INVALID, "needle: %d tokens are too few",
                             (int)b->item->length);
    }
}

static char *copy_bytes(const char *from, size_t len)
{
    char *copy = malloc(len + 1);
    if (copy != NULL) {
        memcpy(copy, from, len);
        copy[len] = '\0';
    }
    return copy;
}

void eval_needle_text_free(struct needle_text *t)
{
    eval_prompt_free(&t->prompt);
    free(t->word);
    free(t->number);
    free(t->question);
    free(t->needle);
    free(t->before);
    free(t->after);
    *t = (struct needle_text){0};
}

/* Copies what the checker compares with out of the builder and the prompt. */
static pith_status set_key(const struct builder *b, struct needle_text *out, pith_error *err)
{
    const struct eval_text *text = &out->prompt.text;
    size_t end = b->offset + b->sentence[0].len, question = text->len - b->question.len;
    size_t n_before = b->offset < CONTEXT_BYTES ? b->offset : CONTEXT_BYTES;
    size_t n_after = question > end ? question - end : 0;
    n_after = n_after < CONTEXT_BYTES ? n_after : CONTEXT_BYTES;
    out->word = copy_bytes(b->facts[0].word, strlen(b->facts[0].word));
    out->number = copy_bytes(b->facts[0].number, strlen(b->facts[0].number));
    out->question = copy_bytes(text_or_empty(&b->question), b->question.len);
    out->needle = copy_bytes(text_or_empty(&b->sentence[0]), b->sentence[0].len);
    out->before = copy_bytes(text->data + b->offset - n_before, n_before);
    out->after = copy_bytes(text->data + end, n_after);
    if (out->word == NULL || out->number == NULL || out->question == NULL || out->needle == NULL ||
        out->before == NULL || out->after == NULL)
        return eval_fail(err, PITH_NOMEM, "needle: no memory for a text");
    return PITH_OK;
}

pith_status eval_needle_make(const struct eval_needle_params *params,
                             const struct needle_item *item, const struct eval_counter *counter,
                             struct needle_text *out, pith_error *err)
{
    struct eval_needle_params p = resolve(params);
    pith_status status = check_params(&p, err);
    if (status != PITH_OK)
        return status;
    struct builder *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return eval_fail(err, PITH_NOMEM, "needle: no memory for a text");
    b->params = &p;
    b->item = item;
    b->counter = counter;
    status = start_builder(b, err);
    if (status == PITH_OK)
        status = fit(b, out, err);
    if (status == PITH_OK)
        status = set_key(b, out, err);
    end_builder(b);
    free(b);
    return status;
}

/* ---- the run ---- */

struct needle_run {
    const struct eval_setup *setup;
    const struct eval_needle_params *params;
    struct eval_run *run;
    struct eval_setup full_setup;
    struct eval_run *full; /* NULL: not compared */
    struct eval_counter counter;
    struct eval_pairs pairs; /* of all texts */
    int32_t n_done;          /* texts */
    int32_t n_pass;
    json_t *rows;
};

/* The sums of one row. */
struct needle_cell {
    int32_t verdicts[EVAL_N_VERDICT];
    int32_t first; /* of its pairs */
    double n_token;
    double at;
    json_t *texts; /* NULL unless texts are kept */
};

static pith_status no_memory(pith_error *err)
{
    return eval_fail(err, PITH_NOMEM, "needle: no memory for results");
}

/* Asks under one cache: the answer generated, judged, and the probability of the right one. */
static pith_status ask(const struct needle_run *r, struct eval_run *run,
                       const struct needle_text *t, struct eval_given *given, struct eval_answer *a,
                       enum eval_verdict *verdict, pith_error *err)
{
    /* A model of the pith style goes on with the next question of its own. */
    static const char *const stop[] = {"\nQuestion:"};
    int32_t n_stop = r->params->style == EVAL_NEEDLE_PITH;
    const struct eval_setup *setup = run == r->full ? &r->full_setup : r->setup;
    pith_status status = eval_prompt_ask_given(run, setup, &t->prompt, r->params->n_predict, stop,
                                               n_stop, given, a, err);
    if (status != PITH_OK)
        return status;
    struct eval_needle_key key = {t->word, t->number, t->question, t->needle, t->before, t->after};
    *verdict = eval_needle_check(a->text, &key);
    return PITH_OK;
}

/* The right answer in full. Models of the pith style repeat the sentence, as in eval_facts_pick. */
static const char *right_answer(const struct needle_run *r, const struct needle_text *t)
{
    const struct eval_needle_params *p = r->params;
    bool repeats = p->style == EVAL_NEEDLE_PITH && p->needle == NULL && p->prefix == NULL;
    return repeats ? t->needle : t->prompt.refs.at[0];
}

/* Both caches; what the full one costs is not the task's. */
static pith_status ask_both(struct needle_run *r, const struct needle_text *t,
                            struct eval_answer *a, enum eval_verdict *verdict, pith_error *err)
{
    struct eval_given given = {0};
    struct eval_answer full = {0};
    enum eval_verdict full_verdict = EVAL_FAIL;
    struct eval_pair pair = {.group = r->n_done};
    pith_status status = eval_prompt_given(r->setup, &t->prompt, right_answer(r, t), &given, err);
    if (status == PITH_OK)
        status = ask(r, r->run, t, &given, a, verdict, err);
    pair.found = status == PITH_OK && *verdict == EVAL_PASS;
    pair.logprob = given.logprob;
    if (status == PITH_OK && r->full != NULL) {
        status = ask(r, r->full, t, &given, &full, &full_verdict, err);
        pair.full_found = full_verdict == EVAL_PASS;
        pair.full_logprob = given.logprob;
    }
    if (status == PITH_OK && !eval_pairs_add(&r->pairs, &pair))
        status = no_memory(err);
    eval_answer_free(&full);
    eval_given_free(&given);
    return status;
}

static pith_status run_item(struct needle_run *r, const struct needle_item *item,
                            struct needle_cell *cell, pith_error *err)
{
    struct needle_text t = {0};
    struct eval_answer a = {0};
    enum eval_verdict verdict = EVAL_FAIL;
    pith_status status = eval_needle_make(r->params, item, &r->counter, &t, err);
    if (status == PITH_OK)
        status = ask_both(r, &t, &a, &verdict, err);
    if (status == PITH_OK) {
        cell->verdicts[verdict]++;
        cell->n_token += t.prompt.n_token;
        cell->at += t.at;
        if (cell->texts != NULL &&
            !eval_keep_text(cell->texts, &t.prompt, a.text, eval_verdict_name(verdict), 0.0))
            status = no_memory(err);
    }
    eval_answer_free(&a);
    eval_needle_text_free(&t);
    return status;
}

static pith_status add_row(struct needle_run *r, const struct needle_item *item,
                           struct needle_cell *cell, pith_error *err)
{
    int32_t n = r->params->n_repeat, *v = cell->verdicts;
    struct eval_interval i = eval_wilson(v[EVAL_PASS], n);
    json_t *row = json_pack(
        "{s:i, s:f, s:i, s:f, s:f, s:i, s:i, s:i, s:i, s:f, s:f, s:f}", "length", (int)item->length,
        "depth", item->depth, "n", (int)n, "tokens", cell->n_token / n, "at", cell->at / n, "pass",
        (int)v[EVAL_PASS], "partial_word", (int)v[EVAL_PARTIAL_WORD], "partial_number",
        (int)v[EVAL_PARTIAL_NUMBER], "fail", (int)v[EVAL_FAIL], "score", (double)v[EVAL_PASS] / n,
        "low", i.low, "high", i.high);
    bool ok = row != NULL && eval_pairs_describe(&r->pairs, cell->first, r->pairs.n, row);
    ok = ok && (cell->texts == NULL || json_object_set(row, "texts", cell->texts) == 0);
    if (!ok) {
        json_decref(row);
        return no_memory(err);
    }
    if (json_array_append_new(r->rows, row) != 0)
        return no_memory(err);
    r->n_pass += v[EVAL_PASS];
    return PITH_OK;
}

static pith_status run_cell(struct needle_run *r, int32_t length, double depth, pith_error *err)
{
    const struct eval_needle_params *p = r->params;
    struct needle_item item = {.seed = r->setup->seed, .length = length, .depth = depth};
    struct needle_cell cell = {.first = r->pairs.n,
                               .texts = r->setup->keep_text ? json_array() : NULL};
    pith_status status = PITH_OK;
    if (r->setup->keep_text && cell.texts == NULL)
        status = no_memory(err);
    double n_item = (double)p->n_length * p->n_depth * p->n_repeat;
    for (; item.repeat < p->n_repeat && status == PITH_OK; item.repeat++) {
        status = eval_progress(r->run, r->n_done / n_item, err, "%d tokens, depth %.2f",
                               (int)length, depth);
        if (status == PITH_OK && r->full != NULL) /* so that it can be cancelled, too */
            status = eval_progress(r->full, r->n_done / n_item, err, "%d tokens, depth %.2f",
                                   (int)length, depth);
        if (status == PITH_OK)
            status = run_item(r, &item, &cell, err);
        r->n_done++;
    }
    if (status == PITH_OK)
        status = add_row(r, &item, &cell, err);
    json_decref(cell.texts);
    return status;
}

static pith_status check_grid(const struct eval_needle_params *p, pith_error *err)
{
    if (p->n_depth < 1)
        return eval_fail(err, PITH_INVALID, "needle: no depth is given");
    if (p->n_repeat < 1)
        return eval_fail(err, PITH_INVALID, "needle: repeats = %d is not positive",
                         (int)p->n_repeat);
    for (int32_t i = 0; i < p->n_depth; i++) {
        if (!(p->depths[i] >= 0.0 && p->depths[i] <= 1.0))
            return eval_fail(err, PITH_INVALID, "needle: a depth of %g is not between 0 and 1",
                             p->depths[i]);
    }
    return PITH_OK;
}

static json_t *settings_of(const struct needle_run *r)
{
    struct eval_needle_params p = resolve(r->params);
    json_t *lengths = json_array(), *depths = json_array();
    for (int32_t i = 0; i < p.n_length; i++)
        json_array_append_new(lengths, json_integer(p.lengths[i]));
    for (int32_t i = 0; i < p.n_depth; i++)
        json_array_append_new(depths, json_real(p.depths[i]));
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:i, s:I, s:I, s:b}", "lengths",
                     lengths, "depths", depths, "needle", eval_json_text(p.needle), "question",
                     eval_json_text(p.question), "prefix", eval_json_text(p.prefix), "word",
                     eval_json_text(p.word), "number", eval_json_text(p.number), "needles",
                     (int)p.n_needle, "repeats", (int)p.n_repeat, "answer_tokens", (int)p.n_predict,
                     "haystack_bytes", (json_int_t)p.haystack_len, "seed",
                     (json_int_t)r->setup->seed, "chat", (int)r->setup->chat);
}

/* Runs for items of n_token tokens: each has a fork beside it, on which its answer is said. */
static pith_status open_runs(struct needle_run *r, int32_t n_token, pith_error *err)
{
    struct eval_setup setup = *r->setup;
    pith_status status = eval_size_memory(setup.model, n_token, 2, &setup.engine, err);
    if (status == PITH_OK)
        status = eval_run_create(&setup, 0, &r->run, err);
    if (status != PITH_OK || !r->params->paired)
        return status;
    r->full_setup = *r->setup;
    r->full_setup.engine = eval_full_params(&r->setup->engine, NULL);
    setup = r->full_setup;
    status = eval_size_memory(setup.model, n_token, 2, &setup.engine, err);
    return status == PITH_OK ? eval_run_create(&setup, 0, &r->full, err) : status;
}

/* The columns that the terminal shows. */
static json_t *table_columns(bool paired)
{
    json_t *all = json_pack("[s, s, s, s, s, s, s, s, s, s]", "length", "depth", "n", "at", "pass",
                            "partial_word", "partial_number", "fail", "score", "probability");
    if (all != NULL && paired)
        json_array_append_new(all, json_string("full_probability"));
    return all;
}

static pith_status finish(struct needle_run *r, json_t **result, pith_error *err)
{
    json_t *out = eval_result(r->run, "needle", r->n_done, settings_of(r), json_incref(r->rows));
    pith_status status = eval_scored(out, eval_wilson(r->n_pass, r->n_done), &out, err);
    if (status != PITH_OK)
        return status;
    if (!eval_pairs_summarise(&r->pairs, json_object_get(out, "summary")) ||
        json_object_set_new(out, "columns", table_columns(r->pairs.paired)) != 0) {
        json_decref(out);
        return no_memory(err);
    }
    *result = out;
    return PITH_OK;
}

pith_status eval_needle(const struct eval_setup *setup, const struct eval_needle_params *params,
                        json_t **result, pith_error *err)
{
    struct needle_run r = {.setup = setup,
                           .params = params,
                           .counter = eval_counter_of(setup),
                           .pairs = {.paired = params->paired},
                           .rows = json_array()};
    int32_t longest = 0;
    pith_status status = r.rows != NULL ? check_grid(params, err) : no_memory(err);
    if (status == PITH_OK)
        status = eval_check_lengths("needle", params->lengths, params->n_length, &longest, err);
    if (status == PITH_OK)
        status = eval_check_predict("needle", params->n_predict, 1, err);
    if (status == PITH_OK)
        status = open_runs(&r, longest + params->n_predict + SPARE_TOKENS, err);
    for (int32_t l = 0; l < params->n_length && status == PITH_OK; l++) {
        for (int32_t d = 0; d < params->n_depth && status == PITH_OK; d++)
            status = run_cell(&r, params->lengths[l], params->depths[d], err);
    }
    if (status == PITH_OK)
        status = finish(&r, result, err);
    json_decref(r.rows);
    eval_pairs_free(&r.pairs);
    eval_run_free(r.run);
    eval_run_free(r.full);
    return status;
}
