/*
 * Policies of the caller, keep and read: they go by the rules of all policies, see what others see,
 * and can end an evaluation.
 */
#include <math.h>
#include <pthread.h>

#include "keep_engine.h"
#include "near.h"
#include "pith/inspect.h"
#include "pith/policy.h"

#define SMALL "budget=48,slack=16,sinks=2,window=8"

static void set_up(void)
{
    model_load(11);
}

TEST_GROUP(set_up, model_free);

/* Orders to the functions, and notes of them. */
struct asked {
    pthread_t thread; /* that evaluates */
    int32_t n_call;
    int32_t stop_at; /* of the calls; 0: never */
    int32_t by;      /* enum by */
    int32_t n_seen;
    bool early; /* fewer queries than were asked for were seen */
    /* by layer and position: the first number of the layer's input */
    float h[8][TOKENS_MAX];
    float q[8]; /* by layer: the first number of the last chunk's queries of the first head */
};

enum by { BY_NORM, BY_ATTENTION, BY_SUM, BY_MARK, BY_POSITION, BY_NOTHING };

/* Whether the evaluation goes on. Functions are called by its thread alone. */
static bool count(struct asked *a)
{
    assert_true(pthread_equal(a->thread, pthread_self()));
    return ++a->n_call != a->stop_at;
}

static void norms(const pith_keep_lane *lane, float *score)
{
    for (int32_t i = 0; i < lane->n; i++) {
        float sum = 0.0f;
        for (int32_t d = 0; d < lane->dim_k; d++) {
            float x = lane->k[(size_t)i * (size_t)lane->dim_k + (size_t)d];
            sum += x * x;
        }
        score[i] = -sqrtf(sum);
    }
}

/* The attention that the lane says, from the queries that it says. */
static void check_attention(struct asked *a, const pith_keep_lane *lane)
{
    size_t dim = (size_t)lane->dim_k, n = (size_t)lane->n;
    double *mean = calloc(n, sizeof(double)), *w = calloc(n, sizeof(double));
    int32_t n_row = lane->n_query * lane->n_group;
    assert_int_equal(lane->n_group, info.n_head / info.n_head_kv);
    for (int32_t r = 0; r < n_row; r++) {
        const float *q = lane->q + (size_t)r * dim;
        int32_t pos = lane->n_token - lane->n_query + r / lane->n_group;
        double sum = 0.0;
        for (size_t i = 0; i < n; i++) {
            w[i] = lane->pos[i] <= pos
                       ? exp(dot(q, lane->k + i * dim, (int32_t)dim) * (double)lane->attn_scale)
                       : 0.0;
            sum += w[i];
        }
        for (size_t i = 0; i < n; i++)
            mean[i] += w[i] / sum / n_row;
    }
    for (size_t i = 0; i < n; i++)
        near(lane->attention[i], mean[i], 1e-4 + attention_error());
    a->n_seen += n_row;
    free(mean);
    free(w);
}

static void check_marks(struct asked *a, const pith_keep_lane *lane)
{
    assert_int_equal(lane->n_mark, 2);
    for (int32_t i = 0; i < lane->n; i++) {
        assert_true(lane->mark[2 * i] == (float)lane->pos[i]);
        assert_true(lane->mark[2 * i + 1] == a->h[lane->layer][lane->pos[i]]);
        a->n_seen++;
    }
}

static bool score_lane(void *user, const pith_keep_lane *lane, float *score)
{
    struct asked *a = user;
    assert_true(lane->n_token <= TOKENS_MAX && lane->pos[0] == 0 && !lane->evictable[0]);
    if (a->by == BY_NORM)
        norms(lane, score);
    else if (a->by == BY_MARK)
        check_marks(a, lane);
    else if (a->by == BY_ATTENTION)
        check_attention(a, lane);
    for (int32_t i = 0; i < lane->n && a->by != BY_NORM; i++)
        score[i] = a->by == BY_ATTENTION ? lane->attention[i]
                   : a->by == BY_SUM     ? lane->sum[i]
                                         : lane->mark[2 * i + 1];
    return count(a);
}

static bool mark_entries(void *user, const pith_keep_new *e, float *mark)
{
    struct asked *a = user;
    assert_int_equal(e->n_embd, info.n_embd);
    for (int32_t i = 0; i < e->n; i++) {
        assert_int_equal(e->tokens[i], tokens[e->pos0 + i]);
        mark[2 * i] = (float)(e->pos0 + i);
        mark[2 * i + 1] = e->h[(size_t)i * (size_t)e->n_embd];
    }
    return count(a);
}

static pith_engine_params asking(struct asked *a)
{
    pith_engine_params p;
    pith_engine_params_default(&p);
    p.n_gpu_layers = test_gpu_layers();
    p.page_len = PAGE_LEN;
    p.kv_tokens = 512;
    p.n_thread = 2;
    p.chunk = 64;
    p.keep_user = p.read_user = a;
    a->thread = pthread_self();
    return p;
}

static pith_engine *engine_keeps(const char *keep, struct asked *a)
{
    pith_engine_params p = asking(a);
    pith_engine *e = NULL;
    p.keep = keep;
    p.keep_score = score_lane;
    p.keep_mark = a->by == BY_MARK ? mark_entries : NULL;
    check(pith_engine_create(model, &p, &e, &err), &err);
    return e;
}

/* ---- keep ---- */

/* The same entries and logits in 200 tokens, then one by one. */
static void keeps_the_same(const char *keep, const char *own, struct asked *a)
{
    pith_engine *e = engine_make(keep, 64, 2, 512), *asks = engine_keeps(own, a);
    pith_seq *x = seq_make(e), *y = seq_make(asks);
    for (int32_t end = 200, begin = 0; end <= 260; begin = end, end += end < 220 ? 1 : 20) {
        eval(x, begin, end);
        eval(y, begin, end);
    }
    assert_true(a->n_call > 0);
    for (int32_t l = 0; l < info.n_layer; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            pith_lane_info u, v;
            int32_t p[TOKENS_MAX], q[TOKENS_MAX];
            check(pith_seq_lane(x, l, h, &u, p, TOKENS_MAX), NULL);
            check(pith_seq_lane(y, l, h, &v, q, TOKENS_MAX), NULL);
            assert_int_equal(u.n_entry, v.n_entry);
            assert_memory_equal(p, q, (size_t)u.n_entry * sizeof(*p));
        }
    assert_int_equal(hash_of(x), hash_of(y));
    pith_seq_free(x);
    pith_seq_free(y);
    pith_engine_free(e);
    pith_engine_free(asks);
}

TEST(a_policy_of_the_caller_keeps_what_the_same_one_of_the_library_keeps)
{
    struct asked a = {.by = BY_NORM};
    keeps_the_same("knorm:" SMALL, "custom:" SMALL, &a);
}

TEST(sums_of_attention_are_those_of_h2o)
{
    struct asked a = {.by = BY_SUM};
    keeps_the_same("h2o:overwrite=off,recent=0," SMALL, "custom:sums=on," SMALL, &a);
}

TEST(the_last_queries_and_their_attention_are_seen)
{
    struct asked a = {.by = BY_ATTENTION};
    pith_engine *e = engine_keeps("custom:queries=4," SMALL, &a);
    pith_seq *seq = seq_make(e);
    eval(seq, 0, 200);
    eval(seq, 200, 201);
    assert_true(a.n_seen > 4 * a.n_call && a.n_call > 0);
    pith_seq_free(seq);
    pith_engine_free(e);
}

static bool take_inputs(void *user, const pith_tap_rows *rows)
{
    struct asked *a = user;
    for (int32_t i = 0; i < rows->n_token; i++)
        a->h[rows->layer][rows->pos0 + i] = rows->h[(size_t)i * (size_t)info.n_embd];
    return true;
}

TEST(marks_of_layers_inputs_follow_their_entries)
{
    struct asked a = {.by = BY_MARK};
    pith_engine *e = engine_keeps("custom:marks=2," SMALL, &a);
    pith_seq *seq = seq_make(e), *fork = NULL;
    check(pith_engine_set_tap(e, take_inputs, &a, &err), &err);
    eval(seq, 0, 150);
    check(pith_seq_fork(seq, &fork, &err), &err);
    eval(fork, 150, 300);
    for (int32_t i = 150; i < 190; i++)
        eval(seq, i, i + 1);
    assert_true(a.n_seen > 0);
    pith_seq_free(fork);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(sums_go_with_marks)
{
    struct asked a = {.by = BY_MARK};
    pith_engine *e = engine_keeps("custom:marks=2,sums=on,queries=2," SMALL, &a);
    pith_seq *seq = seq_make(e);
    check(pith_engine_set_tap(e, take_inputs, &a, &err), &err);
    eval(seq, 0, 150);
    eval(seq, 150, 250);
    assert_true(a.n_seen > 0);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(scores_can_stop_an_evaluation)
{
    struct asked a = {.by = BY_NORM, .stop_at = 3};
    pith_engine *e = engine_keeps("custom:" SMALL, &a);
    pith_seq *seq = seq_make(e);
    assert_int_equal(pith_seq_eval(seq, tokens, 300, &err), PITH_CANCELLED);
    assert_in_range(pith_seq_length(seq), 48, 299);
    assert_int_equal(a.n_call, 3);
    check(pith_seq_eval(seq, tokens, 5, &err), &err); /* it goes on */
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(marks_can_stop_an_evaluation_which_is_taken_back)
{
    struct asked a = {.by = BY_MARK, .stop_at = 3};
    pith_engine *e = engine_keeps("custom:marks=2," SMALL, &a);
    pith_seq *seq = seq_make(e);
    check(pith_engine_set_tap(e, take_inputs, &a, &err), &err);
    assert_int_equal(pith_seq_eval(seq, tokens, 60, &err), PITH_CANCELLED);
    assert_int_equal(pith_seq_length(seq), 0);
    assert_int_equal(a.n_call, 3);
    eval(seq, 0, 200); /* it goes on */
    assert_true(a.n_seen > 0);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(a_file_has_nothing_that_was_noted_for_the_caller)
{
    struct asked a = {.by = BY_SUM};
    char path[256];
    pith_engine *e = engine_keeps("custom:sums=on," SMALL, &a);
    pith_seq *seq = seq_make(e), *loaded = NULL;
    snprintf(path, sizeof(path), "/tmp/pith-custom-%d", (int)getpid());
    eval(seq, 0, 100);
    check(pith_seq_save(seq, path, &err), &err);
    check(pith_seq_load(e, path, &loaded, &err), &err);
    eval(loaded, 100, 200);
    pith_seq_free(seq);
    pith_seq_free(loaded);
    pith_engine_free(e);
    unlink(path);
}

/* ---- read ---- */

static bool score_chunk(void *user, const pith_read_chunk *c, float *score)
{
    struct asked *a = user;
    size_t dim = (size_t)c->dim_k;
    assert_int_equal(c->n_group, info.n_head / info.n_head_kv);
    assert_in_range(c->n_token, 1, 32);
    assert_int_equal(c->pos[c->n - 1], c->pos0 - 1);
    if (c->head == 0)
        a->q[c->layer] = c->q[0];
    for (int32_t i = 0; i < c->n; i++) {
        assert_true(isfinite(c->k[(size_t)i * dim] + (c->v != NULL ? c->v[i * c->dim_v] : 0.0f)));
        score[i] = a->by == BY_POSITION ? (float)c->pos[i] : 0.0f;
    }
    a->n_seen += c->v != NULL;
    return count(a);
}

static pith_engine *engine_reads(const char *read, struct asked *a)
{
    pith_engine_params p = asking(a);
    pith_engine *e = NULL;
    p.read = read;
    p.read_score = score_chunk;
    check(pith_engine_create(model, &p, &e, &err), &err);
    return e;
}

#define READS "chunk=32,gate=1,tail=0,dense-layers=0,phase=both,"

/* The hash of the logits after a prompt and some tokens, one by one. */
static uint64_t read_so(const char *read, struct asked *a, int64_t *n_sparse)
{
    pith_engine *e = engine_reads(read, a);
    pith_seq *seq = seq_make(e);
    pith_read_stats stats;
    eval(seq, 0, 200);
    for (int32_t i = 200; i < 210; i++)
        eval(seq, i, i + 1);
    uint64_t hash = hash_of(seq);
    pith_seq_read_stats(seq, &stats);
    *n_sparse = stats.sparse;
    pith_seq_free(seq);
    pith_engine_free(e);
    return hash;
}

/* By position, the same entries as those that the rules always read. */
TEST(a_read_policy_of_the_caller_goes_by_the_rules)
{
    struct asked a = {.by = BY_POSITION}, b = {.by = BY_NOTHING}, c = {.by = BY_NOTHING};
    int64_t n_sparse, n_other;
    uint64_t by_position =
        read_so("custom:" READS "budget=64,sinks=4,recent=0,values=on", &a, &n_sparse);
    assert_true(n_sparse > 0 && a.n_call == n_sparse && a.n_seen == a.n_call);
    uint64_t by_rules = read_so("custom:" READS "budget=64,sinks=4,recent=60", &b, &n_other);
    assert_int_equal(by_position, by_rules);
    assert_int_equal(n_other, n_sparse);
    assert_int_equal(b.n_seen, 0); /* values were not asked for */
    assert_true(by_position != read_so("custom:" READS "budget=64,sinks=4,recent=0", &c, &n_other));
    pith_engine *full = engine_make(NULL, 64, 2, 512);
    pith_seq *seq = seq_make(full);
    eval(seq, 0, 200);
    for (int32_t i = 200; i < 210; i++)
        eval(seq, i, i + 1);
    assert_int_equal(hash_of(seq), read_so("custom:" READS "budget=512", &a, &n_sparse));
    assert_int_equal(n_sparse, 0);
    pith_seq_free(seq);
    pith_engine_free(full);
}

/* The tap's queries are those that the last chunk chose by. */
static bool compare_queries(void *user, const pith_tap_rows *rows)
{
    struct asked *a = user;
    size_t row = (size_t)(info.n_head * info.head_dim_k);
    size_t chunk = (size_t)(rows->n_token - 1) / 32 * 32;
    if (a->n_call > 0 && a->q[rows->layer] != 0.0f)
        assert_true(rows->q[chunk * row] == a->q[rows->layer] || rows->q[0] == a->q[rows->layer]);
    a->n_seen++;
    return true;
}

TEST(a_chunk_has_its_queries)
{
    struct asked a = {.by = BY_POSITION};
    pith_engine *e = engine_reads("custom:" READS "budget=64", &a);
    pith_seq *seq = seq_make(e);
    check(pith_engine_set_tap(e, compare_queries, &a, &err), &err);
    eval(seq, 0, 200);
    assert_true(a.n_call > 0 && a.n_seen > 0);
    pith_seq_free(seq);
    pith_engine_free(e);
}

static bool score_no_numbers(void *user, const pith_read_chunk *c, float *score)
{
    (void)user;
    for (int32_t i = 0; i < c->n; i++)
        score[i] = NAN;
    return true;
}

TEST(scores_that_are_no_numbers_are_lowest)
{
    struct asked a = {.by = BY_POSITION};
    pith_engine_params p = asking(&a);
    pith_engine *e = NULL;
    p.read = "custom:" READS "budget=64";
    p.read_score = score_no_numbers;
    check(pith_engine_create(model, &p, &e, &err), &err);
    pith_seq *seq = seq_make(e);
    eval(seq, 0, 200);
    for (int32_t i = 0; i < info.n_vocab; i++)
        assert_true(isfinite(pith_seq_logits(seq)[i]));
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(a_read_policy_can_stop_an_evaluation_which_is_taken_back)
{
    struct asked a = {.by = BY_POSITION, .stop_at = 2};
    pith_engine *e = engine_reads("custom:" READS "budget=64", &a);
    pith_seq *seq = seq_make(e);
    eval(seq, 0, 40);
    assert_int_equal(pith_seq_eval(seq, tokens + 40, 150, &err), PITH_CANCELLED);
    assert_int_equal(pith_seq_length(seq), 40);
    assert_int_equal(a.n_call, 2);
    eval(seq, 40, 190);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- options ---- */

static bool refuses(const char *keep, const char *read, bool scores, bool marks)
{
    struct asked a = {.by = BY_NORM};
    pith_engine_params p = asking(&a);
    pith_engine *e = NULL;
    p.keep = keep;
    p.read = read;
    p.keep_score = scores ? score_lane : NULL;
    p.keep_mark = marks ? mark_entries : NULL;
    p.read_score = scores ? score_chunk : NULL;
    return pith_engine_create(model, &p, &e, &err) == PITH_INVALID;
}

TEST(names_and_options_of_others_are_refused)
{
    assert_true(refuses("snapkv", NULL, true, false));
    assert_true(refuses("none", NULL, true, false));
    assert_true(refuses("custom:marks=2", NULL, true, false));
    assert_true(refuses("custom:average=on", NULL, true, false));
    assert_true(refuses("custom:sums=on", NULL, true, false)); /* and a read policy */
    assert_true(refuses(NULL, "quoka", true, false));
    assert_true(refuses(NULL, "custom:queries=2", true, false));
    assert_true(refuses("custom", NULL, false, true));
    assert_true(refuses(NULL, "custom", false, false));
    /* Without params there is no function that the name could mean. */
    assert_int_equal(pith_policy_check(PITH_KEEP, "custom", NULL), PITH_INVALID);
    assert_int_equal(pith_policy_check(PITH_READ, "custom:values=on", NULL), PITH_INVALID);
}
