/*
 * sampler.c - from a row of logits to one token: the grammar's mask, bias, penalties, top-k, top-p,
 * min-p, temperature, draw (pith.h states the order and the penalties). It knows nothing of models
 * and sequences, and of a grammar only its state.
 *
 * Invariant: everything is sized at create; sampling allocates nothing but the states that a
 * grammar learns. A sampler of the usual params is small, as each answer of a server has one. The
 * kept tokens are always the first of one order (higher logit, then lower id). Top-p and min-p both
 * cut that order short, so the cheaper may come first: min-p, by a threshold.
 *
 * PI_BEST tokens or fewer are summed and drawn from in that order. So a device that knows the best
 * tokens of a row (device.h) leads to the same draws as the row.
 */
#include <math.h>

#include "base/mem.h"
#include "engine/rng.h"
#include "engine/sampler.h"
#include "pith/grammar.h"

#define PENALTY_LAST_N_MAX (1 << 20) /* bounds the ring; -1 looks back at all without one */

/* In windows up to this length occurrences are counted when they are asked for. Longer ones have
   numbers for the whole vocabulary. */
#define WINDOW_COUNTED 128

struct candidate {
    float logit;
    int32_t id;
};

struct pith_sampler {
    pith_sample_params params; /* bias points to our copy */
    int32_t n_vocab;
    struct pi_rng rng;
    pith_logit_bias *bias;  /* [n_bias], owned */
    float *own;             /* [n_vocab] logits after bias and penalties; NULL: the caller
                               lends one, or none is needed; owned */
    struct candidate *kept; /* [n_kept], owned */
    int32_t *count;         /* [n_vocab] occurrences in the window; NULL: the window is counted, or
                               there are no penalties; owned */
    int32_t *ring;          /* [penalty_last_n] the window; NULL when it has no end, owned */
    int32_t ring_at;        /* slot of the oldest token once the ring is full */
    int32_t ring_len;
    int32_t drawn_at, n_drawn;   /* of kept: what the last token was drawn from; 0: `only` was */
    float drawn_max;             /* their greatest logit */
    double drawn_sum;            /* of exp((logit - max) / temperature) over them */
    int32_t only;                /* the one that there was */
    bool sampled;                /* the last token, which has not been accepted */
    pith_grammar_state *grammar; /* NULL: none; owned */
    uint64_t *allowed;           /* [(n_vocab + 63) / 64] of the grammar, owned */
    bool takes_other;            /* the last token that was sampled is of its second alternative */
    bool answers;                /* the prompt is over: what is accepted moves the grammar on */
    pith_error error;            /* why the grammar gave no token; status OK: nothing failed */
};

void pith_sample_params_default(pith_sample_params *out)
{
    *out = (pith_sample_params){
        .temperature = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .repeat_penalty = 1.0f,
        .penalty_last_n = 64,
    };
}

static bool penalties_on(const pith_sample_params *p)
{
    return p->penalty_last_n != 0 && (p->repeat_penalty != 1.0f || p->presence_penalty != 0.0f ||
                                      p->frequency_penalty != 0.0f);
}

/* Each comparison is written so that NaN fails it. */
static pith_status check_params(const pith_sample_params *p, int32_t n_vocab, pith_error *err)
{
    if (n_vocab < 1)
        return pi_fail(err, PITH_INVALID, "n_vocab: %d is not positive", n_vocab);
    if (!(p->temperature >= 0.0f) || isinf(p->temperature))
        return pi_fail(err, PITH_INVALID, "temperature: %g is not 0 or more",
                       (double)p->temperature);
    if (p->top_k < 0)
        return pi_fail(err, PITH_INVALID, "top_k: %d is negative", p->top_k);
    if (!(p->top_p >= 0.0f && p->top_p <= 1.0f))
        return pi_fail(err, PITH_INVALID, "top_p: %g is not between 0 and 1", (double)p->top_p);
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f))
        return pi_fail(err, PITH_INVALID, "min_p: %g is not between 0 and 1", (double)p->min_p);
    if (!(p->repeat_penalty > 0.0f) || isinf(p->repeat_penalty))
        return pi_fail(err, PITH_INVALID, "repeat_penalty: %g is not above 0",
                       (double)p->repeat_penalty);
    if (!isfinite(p->presence_penalty))
        return pi_fail(err, PITH_INVALID, "presence_penalty: %g is not a finite number",
                       (double)p->presence_penalty);
    if (!isfinite(p->frequency_penalty))
        return pi_fail(err, PITH_INVALID, "frequency_penalty: %g is not a finite number",
                       (double)p->frequency_penalty);
    if (p->penalty_last_n < -1 || p->penalty_last_n > PENALTY_LAST_N_MAX)
        return pi_fail(err, PITH_INVALID, "penalty_last_n: %d is not between -1 and %d",
                       p->penalty_last_n, PENALTY_LAST_N_MAX);
    if (p->n_bias < 0 || (p->n_bias > 0 && p->bias == NULL))
        return pi_fail(err, PITH_INVALID, "n_bias: %d biases without a list", p->n_bias);
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token < 0 || p->bias[i].token >= n_vocab)
            return pi_fail(err, PITH_INVALID, "bias: token %d is not between 0 and %d",
                           p->bias[i].token, n_vocab - 1);
        if (isnan(p->bias[i].bias))
            return pi_fail(err, PITH_INVALID, "bias: of token %d is not a number",
                           p->bias[i].token);
    }
    return PITH_OK;
}

static bool has_counts(const pith_sample_params *p)
{
    return penalties_on(p) && (p->penalty_last_n < 0 || p->penalty_last_n > WINDOW_COUNTED);
}

static int32_t n_top_of(const pith_sample_params *p, int32_t n_vocab)
{
    return p->top_k > 0 && p->top_k < n_vocab ? p->top_k : n_vocab;
}

/* Candidates at once: of top-k, or of a device. Without draws there are none of the first. */
static int32_t n_kept(const pith_sample_params *p, int32_t n_vocab)
{
    int32_t n = p->temperature > 0.0f ? n_top_of(p, n_vocab) : 1;
    return (int32_t)pi_max(n, pi_min(PI_BEST, n_vocab));
}

bool pi_sampler_changes(const pith_sample_params *p)
{
    return p->n_bias > 0 || p->grammar != NULL || penalties_on(p);
}

int64_t pi_sampler_bytes(const pith_sample_params *params, int32_t n_vocab)
{
    pith_sample_params p;
    pith_sample_params_default(&p);
    if (params != NULL)
        p = *params;
    int64_t bytes = (int64_t)n_kept(&p, n_vocab) * (int64_t)sizeof(struct candidate);
    bytes += has_counts(&p) ? (int64_t)n_vocab * (int64_t)sizeof(int32_t) : 0;
    bytes += p.grammar != NULL ? (n_vocab + 7) / 8 : 0;
    return bytes + (int64_t)sizeof(struct pith_sampler);
}

static pith_status add_grammar(pith_sampler *s, pith_error *err)
{
    size_t n_word = ((size_t)s->n_vocab + 63) / 64;
    if (s->params.grammar == NULL)
        return PITH_OK;
    if (pi_grammar_n_vocab(s->params.grammar) != s->n_vocab)
        return pi_fail(err, PITH_INVALID, "grammar: it is for %d tokens, not %d",
                       pi_grammar_n_vocab(s->params.grammar), s->n_vocab);
    s->allowed = pi_mem_alloc_n(PI_MEM_OTHER, n_word, sizeof(*s->allowed));
    if (s->allowed == NULL)
        return pi_fail(err, PITH_NOMEM, "no memory for a mask of %d tokens", s->n_vocab);
    return pith_grammar_state_create(s->params.grammar, &s->grammar, err);
}

pith_status pi_sampler_create(const pith_sample_params *params, int32_t n_vocab, pith_sampler **out,
                              pith_error *err)
{
    pith_sample_params p;
    pith_sample_params_default(&p);
    if (params != NULL)
        p = *params;
    PI_TRY(check_params(&p, n_vocab, err));

    pith_sampler *s = pi_mem_alloc(PI_MEM_OTHER, sizeof(*s));
    if (s == NULL)
        goto fail;
    s->params = p;
    s->n_vocab = n_vocab;
    pi_rng_seed(&s->rng, p.seed, 0);
    s->kept = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_kept(&p, n_vocab), sizeof(*s->kept));
    s->bias = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)p.n_bias, sizeof(*s->bias));
    if (s->kept == NULL || s->bias == NULL)
        goto fail;
    if (p.n_bias > 0)
        memcpy(s->bias, p.bias, (size_t)p.n_bias * sizeof(*s->bias));
    s->params.bias = s->bias;
    if (penalties_on(&p) && p.penalty_last_n > 0) {
        s->ring = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)p.penalty_last_n, sizeof(*s->ring));
        if (s->ring == NULL)
            goto fail;
    }
    if (has_counts(&p)) {
        s->count = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_vocab, sizeof(*s->count));
        if (s->count == NULL)
            goto fail;
    }
    pith_status status = add_grammar(s, err);
    if (status == PITH_OK)
        *out = s;
    else
        pith_sampler_free(s);
    return status;
fail:
    pith_sampler_free(s);
    return pi_fail(err, PITH_NOMEM, "no memory for a sampler of %d tokens", n_vocab);
}

pith_status pith_sampler_create(const pith_sample_params *params, int32_t n_vocab,
                                pith_sampler **out, pith_error *err)
{
    pith_sampler *s;
    PI_TRY(pi_sampler_create(params, n_vocab, &s, err));
    if (pi_sampler_changes(&s->params)) {
        s->own = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)n_vocab, sizeof(*s->own));
        if (s->own == NULL) {
            pith_sampler_free(s);
            return pi_fail(err, PITH_NOMEM, "no memory for a sampler of %d tokens", n_vocab);
        }
    }
    *out = s;
    return PITH_OK;
}

void pith_sampler_free(pith_sampler *sampler)
{
    if (sampler == NULL)
        return;
    pi_mem_free(sampler->own);
    pi_mem_free(sampler->kept);
    pi_mem_free(sampler->bias);
    pi_mem_free(sampler->count);
    pi_mem_free(sampler->ring);
    pi_mem_free(sampler->allowed);
    pith_grammar_state_free(sampler->grammar);
    pi_mem_free(sampler);
}

void pith_sampler_accept(pith_sampler *sampler, int32_t token)
{
    pith_sampler *s = sampler;
    if (!s->sampled) { /* nothing was drawn */
        s->n_drawn = 0;
        s->only = token;
    }
    if (s->sampled && s->takes_other)
        pi_grammar_state_take_other(s->grammar);
    s->sampled = s->takes_other = false;
    if (s->grammar != NULL && s->answers && s->error.status == PITH_OK)
        pith_grammar_state_accept(s->grammar, token, &s->error);
    if (token < 0 || token >= s->n_vocab)
        return;
    if (s->count != NULL)
        s->count[token]++;
    if (s->ring == NULL)
        return;
    if (s->ring_len < s->params.penalty_last_n)
        s->ring_len++;
    else if (s->count != NULL)
        s->count[s->ring[s->ring_at]]--;
    s->ring[s->ring_at] = token;
    s->ring_at = (s->ring_at + 1) % s->params.penalty_last_n;
}

/* Repetition: Keskar et al., "CTRL" (arXiv 1909.05858), section 4.1, with the negative logits
   multiplied, as has become usual (dividing them would reward). Presence and frequency: as the
   OpenAI API documents them. */
static float penalised(float logit, int32_t count, const pith_sample_params *p)
{
    logit = logit > 0.0f ? logit / p->repeat_penalty : logit * p->repeat_penalty;
    return logit - ((float)count * p->frequency_penalty + p->presence_penalty);
}

/* Occurrences in the first n tokens of the ring. */
static int32_t count_in_ring(const pith_sampler *s, int32_t token, int32_t n)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        count += s->ring[i] == token;
    return count;
}

static int32_t count_of(const pith_sampler *s, int32_t token)
{
    return s->count != NULL ? s->count[token] : count_in_ring(s, token, s->ring_len);
}

static void fill_row(const pith_sampler *s, const float *logits, float *row)
{
    memcpy(row, logits, (size_t)s->n_vocab * sizeof(*row));
    for (int32_t i = 0; i < s->params.n_bias; i++)
        row[s->bias[i].token] += s->bias[i].bias;
    for (int32_t i = 0; s->count != NULL && i < s->n_vocab; i++)
        if (s->count[i] > 0)
            row[i] = penalised(row[i], s->count[i], &s->params);
    for (int32_t i = 0; s->count == NULL && i < s->ring_len; i++) {
        int32_t token = s->ring[i];
        if (count_in_ring(s, token, i) == 0)
            row[token] = penalised(row[token], count_of(s, token), &s->params);
    }
}

/* The greatest logit's id, the lowest of equals; 0 when every logit is NaN. */
static int32_t greatest(const float *row, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (row[i] > row[best] || (isnan(row[best]) && !isnan(row[i])))
            best = i;
    return best;
}

/* The one order of candidates: higher logit, then lower id. */
static bool before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Restores a heap below slot i. worst_first: the root is the last in order, else the first. */
static void sift_down(struct candidate *heap, int32_t n, int32_t i, bool worst_first)
{
    struct candidate moving = heap[i];
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && before(heap[child + 1], heap[child]) != worst_first)
            child++;
        if (before(heap[child], moving) == worst_first)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moving;
}

static void make_heap(struct candidate *heap, int32_t n, bool worst_first)
{
    for (int32_t i = n / 2 - 1; i >= 0; i--)
        sift_down(heap, n, i, worst_first);
}

/* The first in order comes first. */
static void sort(struct candidate *kept, int32_t n)
{
    make_heap(kept, n, true);
    while (n > 1) {
        struct candidate worst = kept[0];
        kept[0] = kept[--n];
        kept[n] = worst;
        sift_down(kept, n, 0, true);
    }
}

/* Leaves the k first candidates in kept[0, k): a heap of the best k so far with the worst on
   top. Most of the vocabulary never enters it. NaN never enters. */
static int32_t keep_top_k(const float *row, int32_t n, int32_t k, struct candidate *kept)
{
    int32_t n_kept = 0;
    for (int32_t i = 0; i < n; i++) {
        if (n_kept < k) {
            if (isnan(row[i]))
                continue;
            kept[n_kept++] = (struct candidate){row[i], i};
            if (n_kept == k)
                make_heap(kept, k, true);
        } else if (row[i] > kept[0].logit) { /* an equal of a later id comes after */
            kept[0] = (struct candidate){row[i], i};
            sift_down(kept, k, 0, true);
        }
    }
    return n_kept;
}

/* min-p (Nguyen et al., arXiv 2407.01082): keeps p >= min_p * p_max, which is
   logit >= max + ln(min_p) whatever the normalisation. */
static int32_t keep_min_p(struct candidate *kept, int32_t n, float max, float min_p)
{
    float threshold = max + logf(min_p);
    int32_t n_kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (kept[i].logit >= threshold || kept[i].logit == max)
            kept[n_kept++] = kept[i];
    return n_kept;
}

/* top-p (Holtzman et al., arXiv 1904.09751, section 3.1): keeps the shortest beginning of the
   order whose probabilities reach top_p; total is the sum of exp(logit - max) over the candidates
   that top-k left. Candidates are taken off a heap, so only what is kept is ever sorted. They end
   in kept[*first, n). */
static int32_t keep_top_p(struct candidate *kept, int32_t n, float max, double total, float top_p)
{
    double sum = 0.0;
    int32_t left = n;
    make_heap(kept, n, false);
    do {
        struct candidate best = kept[0];
        kept[0] = kept[--left];
        kept[left] = best;
        if (left > 0)
            sift_down(kept, left, 0, false);
        sum += exp((double)(best.logit - max));
    } while (left > 0 && sum < (double)top_p * total);
    return left;
}

static double sum_exp(const struct candidate *kept, int32_t n, float max, float temperature)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)((kept[i].logit - max) / temperature));
    return sum;
}

/* Walks the candidates until the cumulated weight passes u * total. Rounding can end the walk
   without a choice: then the last that has any weight is taken, never a banned one. */
static int32_t draw(pith_sampler *s, int32_t first, int32_t n, float max)
{
    const struct candidate *kept = s->kept + first;
    float temperature = s->params.temperature;
    double total = sum_exp(kept, n, max, temperature);
    double target = pi_rng_double(&s->rng) * total;
    s->drawn_at = first;
    s->n_drawn = n;
    s->drawn_max = max;
    s->drawn_sum = total;
    double sum = 0.0;
    int32_t id = kept[n - 1].id;
    for (int32_t i = 0; i < n; i++) {
        double weight = exp((double)((kept[i].logit - max) / temperature));
        if (weight > 0.0)
            id = kept[i].id;
        sum += weight;
        if (sum > target)
            break;
    }
    return id;
}

static int32_t n_top(const pith_sampler *s)
{
    return n_top_of(&s->params, s->n_vocab);
}

/* The greatest is chosen without a draw. An infinite bias leaves nothing to draw from: it forces
   its token, or bans them all. */
static bool is_settled(pith_sampler *s, int32_t best, float max)
{
    s->n_drawn = 0;
    s->only = best;
    return s->params.temperature == 0.0f || !isfinite(max);
}

/* From the n that top-k left in kept; sorted: in order. */
static int32_t choose_kept(pith_sampler *s, int32_t n, float max, bool sorted)
{
    const pith_sample_params *p = &s->params;
    int32_t first = 0;
    if (!sorted && n <= PI_BEST)
        sort(s->kept, n);
    double total = p->top_p < 1.0f ? sum_exp(s->kept, n, max, 1.0f) : 0.0;
    if (p->min_p > 0.0f) {
        bool many = n > PI_BEST;
        n = keep_min_p(s->kept, n, max, p->min_p);
        if (!sorted && many && n <= PI_BEST)
            sort(s->kept, n);
    }
    if (p->top_p < 1.0f)
        first = keep_top_p(s->kept, n, max, total, p->top_p);
    return draw(s, first, n - first, max);
}

static int32_t choose(pith_sampler *s, const float *row)
{
    int32_t best = greatest(row, s->n_vocab);
    float max = row[best];
    if (is_settled(s, best, max))
        return best;
    return choose_kept(s, keep_top_k(row, s->n_vocab, n_top(s), s->kept), max, false);
}

/* ---- with a grammar ---- */

static void forbid(const pith_sampler *s, float *of)
{
    for (int32_t i = 0; i < s->n_vocab; i += 64) {
        uint64_t word = s->allowed[i / 64];
        int32_t n = s->n_vocab - i < 64 ? s->n_vocab - i : 64;
        float *row = of + i;
        for (int32_t k = 0; word != UINT64_MAX && k < n; k++)
            row[k] = (word >> k & 1) != 0 ? row[k] : -INFINITY;
    }
}

/* A token that would end a trigger, and go on behind it as the grammar forbids, is not taken. */
static bool is_refused(pith_sampler *s, int32_t id)
{
    return pi_grammar_state_is_free(s->grammar) && !pi_grammar_state_allows(s->grammar, id);
}

/* Where a text may be of either of two grammars the model chooses as if it were free. Tokens that
   the first takes leave both open. Any other makes the text one of the second. A choice among all
   that are left would not do: where the model wanted none, the likeliest may be the first's. */
static int32_t choose_allowed(pith_sampler *s, float *row)
{
    bool open = s->error.status == PITH_OK && pi_grammar_state_is_open(s->grammar);
    int32_t wanted = open ? choose(s, row) : -1;
    s->takes_other =
        open && !(row[wanted] > -INFINITY && pi_grammar_state_allows_first(s->grammar, wanted));
    if (open && !s->takes_other)
        return wanted;
    if (open)
        pi_grammar_state_mask_other(s->grammar, s->allowed, &s->error);
    else if (s->error.status == PITH_OK)
        pith_grammar_state_mask(s->grammar, s->allowed, &s->error);
    if (s->error.status != PITH_OK)
        return -1;
    forbid(s, row);
    for (;;) {
        int32_t id = choose(s, row);
        if (row[id] == -INFINITY || isnan(row[id])) {
            pi_fail(&s->error, PITH_INVALID, "grammar: no token of the vocabulary is allowed here");
            return -1;
        }
        if (!is_refused(s, id))
            return id;
        row[id] = -INFINITY;
    }
}

int32_t pi_sampler_sample(pith_sampler *sampler, const float *logits, float *row)
{
    sampler->answers = true;
    sampler->sampled = true;
    if (!pi_sampler_changes(&sampler->params))
        return choose(sampler, logits);
    fill_row(sampler, logits, row);
    return sampler->grammar != NULL ? choose_allowed(sampler, row) : choose(sampler, row);
}

int32_t pith_sampler_sample(pith_sampler *sampler, const float *logits)
{
    return pi_sampler_sample(sampler, logits, sampler->own);
}

/* ---- from the best tokens of a row ---- */

/* Whether no token that is not among the best can come to stand among them: penalties may only
   lower logits. Biases and grammars may name any token. */
static bool can_take_best(const pith_sampler *s)
{
    const pith_sample_params *p = &s->params;
    return p->n_bias == 0 && s->grammar == NULL &&
           ((s->count == NULL && s->ring == NULL) ||
            (p->repeat_penalty >= 1.0f && p->presence_penalty >= 0.0f &&
             p->frequency_penalty >= 0.0f));
}

/* How many of the best stand at the beginning of the row's order for certain. Others of the row
   have at most the logit of the last, and penalties have changed the order. */
static int32_t take_best(pith_sampler *s, const struct pi_best *best)
{
    int32_t n = 0;
    for (int32_t i = 0; i < best->n; i++) {
        int32_t id = best->id[i], count = count_of(s, id);
        float logit = best->logit[i];
        s->kept[i] =
            (struct candidate){count > 0 ? penalised(logit, count, &s->params) : logit, id};
    }
    sort(s->kept, best->n);
    if (best->n == s->n_vocab)
        return best->n;
    while (n < best->n && s->kept[n].logit > best->logit[best->n - 1])
        n++;
    return n;
}

/* Of the n certain ones those that are needed: top-k's, or where min-p alone cuts, all of them that
   it keeps. */
static bool decides(const pith_sampler *s, int32_t n, float max, float last)
{
    const pith_sample_params *p = &s->params;
    if (n_top(s) <= n)
        return true;
    return p->min_p > 0.0f && p->top_p == 1.0f && max + logf(p->min_p) > last;
}

bool pi_sampler_sample_best(pith_sampler *sampler, const struct pi_best *best, int32_t *id)
{
    pith_sampler *s = sampler;
    int32_t n = can_take_best(s) ? take_best(s, best) : 0;
    if (n == 0)
        return false;
    float max = s->kept[0].logit;
    bool settled = is_settled(s, s->kept[0].id, max);
    if (!settled && !decides(s, n, max, best->logit[best->n - 1]))
        return false;
    s->answers = true;
    s->sampled = true;
    n = (int32_t)pi_min(n, n_top(s));
    *id = settled ? s->kept[0].id : choose_kept(s, n, max, true);
    return true;
}

/* ---- what it chose among ---- */

static float chance_of(const pith_sampler *s, float logit)
{
    return (float)(exp((double)((logit - s->drawn_max) / s->params.temperature)) / s->drawn_sum);
}

float pith_sampler_chance(const pith_sampler *sampler, int32_t token)
{
    const struct candidate *drawn = sampler->kept + sampler->drawn_at;
    for (int32_t i = 0; i < sampler->n_drawn; i++)
        if (drawn[i].id == token)
            return chance_of(sampler, drawn[i].logit);
    return sampler->n_drawn == 0 && token == sampler->only ? 1.0f : 0.0f;
}

/* The order among the tokens that were drawn from no longer matters: they become a heap. */
int32_t pith_sampler_chances(pith_sampler *sampler, pith_chance *out, int32_t cap)
{
    struct candidate *drawn = sampler->kept + sampler->drawn_at;
    int32_t n = sampler->n_drawn, n_out = 0;
    if (n == 0 && cap > 0)
        out[n_out++] = (pith_chance){sampler->only, 1.0f};
    make_heap(drawn, n, false);
    for (; n > 0 && n_out < cap; n_out++) {
        struct candidate best = drawn[0];
        float p = chance_of(sampler, best.logit);
        if (p == 0.0f)
            break;
        out[n_out] = (pith_chance){best.id, p};
        drawn[0] = drawn[--n];
        drawn[n] = best;
        if (n > 0)
            sift_down(drawn, n, 0, false);
    }
    return n_out;
}

void pi_sampler_answers(pith_sampler *sampler)
{
    sampler->answers = true;
}

bool pi_sampler_must_end(const pith_sampler *sampler)
{
    return sampler->grammar != NULL && pith_grammar_state_must_end(sampler->grammar);
}

const pith_error *pi_sampler_error(const pith_sampler *sampler)
{
    return &sampler->error;
}
