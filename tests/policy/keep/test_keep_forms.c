/*
 * test_keep_forms.c - every policy, and forms of it that are computed otherwise, on a model and
 * under every granularity. Bits are the same for any chunk and number of threads, and equal the
 * full cache where the budget is never reached. Attention treats evicted entries as masked.
 */
#include <math.h>
#include <string.h>

#include "testing.h"

#include "keep_engine.h"
#include "kv_check.h"

#define N_TOKEN 160

/* Evaluates all tokens; returns the rounds. */
static int64_t hashes_of(const char *keep, int32_t chunk, int32_t n_thread, uint64_t *hashes)
{
    pith_engine *e = engine_make_typed(keep, "f32", chunk, n_thread, 2 * N_TOKEN);
    pith_seq *seq = eval_all(e, N_TOKEN, hashes);
    int64_t rounds = stats_of(seq).rounds;
    pith_seq_free(seq);
    pith_engine_free(e);
    return rounds;
}

/* Every policy, and forms of it that are computed otherwise. */
static const char *const forms[] = {
    "streaming:",
    "streaming:positions=cache,",
    "random:window=4,",
    "knorm:",
    "keydiff:",
    "vnorm:",
    "triattention:",
    "triattention:v1,window=20,calibrate=adaptive,warmup=50,",
    "snapkv:",
    "snapkv:softmax=before,group=sum,",
    "pyramidkv:",
    "adakv:window=24,queries=24,",
    "tova:",
    "tova:overwrite=off,",
    "rkv:",
    "longflow:prompt-window=20,",
    "longflow:overwrite=off,prompt-window=20,",
    "h2o:overwrite=off,",
    "vatp:overwrite=off,sinks=4,",
    "scissorhands:history=40,",
    "raas:pin-prompt=off,prompt=on,threshold=0.02,",
    "lazyeviction:window=20,prompt=on,threshold=0.02,",
    "expected:",
    "expected:covariance=off,score=share,skip=0,",
};

/* Policies that need a file, or a round that waits: test_keep_written.c, test_keep_repeat.c. */
static const char *const elsewhere[] = {"kvzap", "kvzip"};

static void load_model(void)
{
    model_load(12);
}

TEST_GROUP(load_model, model_free);

TEST(every_policy_is_here)
{
    for (int32_t i = 0; keep_policy_at(i) != NULL; i++) {
        const char *name = keep_policy_at(i)->name;
        bool found = false;
        for (size_t f = 0; f < PI_LEN(forms); f++)
            found = found || strncmp(forms[f], name, strlen(name)) == 0;
        for (size_t k = 0; k < PI_LEN(elsewhere); k++)
            found = found || strcmp(elsewhere[k], name) == 0;
        if (!found)
            fail_msg("%s is not tested", name);
    }
}

/* A form that closes the one gap there is, and goes with no segments. */
static bool has_places(const char *form)
{
    return strstr(form, "positions=cache") != NULL;
}

static const char *const granularities[] = {"all", "head", "layer", "layer-head"};

/* Forms that make lanes differ, by layer or by head, and one that overwrites within a layer. */
static bool goes_with(const char *form, size_t granularity)
{
    if (strncmp(form, "adakv:", 6) == 0)
        return granularity == 3;
    return granularity >= 2 || (strcmp(form, "pyramidkv:") != 0 && strcmp(form, "tova:") != 0 &&
                                strcmp(form, "longflow:prompt-window=20,") != 0);
}

TEST(chunks_and_threads_change_no_bit_of_any_form)
{
    for (size_t p = 0; p < PI_LEN(forms); p++)
        for (size_t g = 0; g < PI_LEN(granularities); g++) {
            char keep[160];
            uint64_t a[N_TOKEN], b[N_TOKEN];
            if (!goes_with(forms[p], g))
                continue;
            snprintf(keep, sizeof(keep), "%sbudget=64,slack=24,granularity=%s%s", forms[p],
                     granularities[g], g % 2 == 0 && !has_places(forms[p]) ? ",segments=4" : "");
            assert_true(hashes_of(keep, 512, 1, a) >= 4);
            hashes_of(keep, 7 + (int32_t)(p + g), 2, b);
            for (int32_t i = 0; i < N_TOKEN; i++)
                if (a[i] != b[i])
                    fail_msg("%s: position %d differs", keep, i);
        }
}

TEST(a_budget_that_is_never_reached_is_the_full_cache)
{
    uint64_t full[N_TOKEN], got[N_TOKEN];
    hashes_of(NULL, 64, 2, full);
    for (size_t p = 0; p < PI_LEN(forms); p++) {
        char keep[160];
        /* No round, no matter which lanes keep the same positions: one granularity each. */
        size_t g = goes_with(forms[p], p % 4) ? p % 4 : 3;
        /* Enough for the last layer of a pyramid, too. */
        snprintf(keep, sizeof(keep), "%sbudget=%d,slack=1,granularity=%s", forms[p], 21 * N_TOKEN,
                 granularities[g]);
        assert_int_equal(hashes_of(keep, 50, 1, got), 0);
        assert_memory_equal(got, full, sizeof(full));
    }
}

static bool stop_at_once(void *user, double fraction)
{
    (void)user;
    return fraction < 0.0;
}

/* Evaluates the tokens from begin on, after cancelling some of them; returns the last hash. */
static uint64_t go_on(pith_engine *e, pith_seq *seq, int32_t begin, bool cancel)
{
    static const int32_t n_cancelled[] = {1, 9, 30};
    size_t size = pi_seq_keep_state(seq) != NULL ? keep_state_size(e->keep.handle) : 0;
    uint8_t *before = test_malloc(size + 1);
    if (size > 0)
        memcpy(before, pi_seq_keep_state(seq), size);
    for (size_t i = 0; cancel && i < PI_LEN(n_cancelled); i++) {
        pith_batch_item item = {.seq = seq, .tokens = tokens + begin, .n_token = n_cancelled[i]};
        assert_int_equal(pith_batch_eval(e, &item, 1, stop_at_once, NULL, &err), PITH_CANCELLED);
        assert_int_equal(pith_seq_length(seq), begin);
        if (size > 0)
            assert_memory_equal(pi_seq_keep_state(seq), before, size);
    }
    test_free(before);
    for (int32_t i = 0; i < 3; i++)
        eval(seq, begin + i, begin + i + 1);
    eval(seq, begin + 3, N_TOKEN);
    return hash_of(seq);
}

/* A cancelled evaluation of one or more tokens leaves no trace in the policy. Where nothing can
   cancel, no state is copied. */
TEST(a_cancelled_evaluation_leaves_no_trace)
{
    enum { BEGIN = 40 }; /* the first round of the smallest lane of a pyramid is at 57 */
    for (size_t p = 0; p < PI_LEN(forms); p++) {
        uint64_t hash[2];
        for (int32_t cancel = 0; cancel < 2; cancel++) {
            char keep[160];
            snprintf(keep, sizeof(keep), "%sbudget=64,slack=24", forms[p]);
            pith_engine *e = engine_make_typed(keep, "f32", 8, 2, 2 * N_TOKEN);
            pith_seq *seq = seq_make(e);
            eval(seq, 0, BEGIN);
            hash[cancel] = go_on(e, seq, BEGIN, cancel != 0);
            assert_true((e->keep.states != NULL) ==
                        (cancel && keep_state_size(e->keep.handle) > 0));
            assert_true(cancel || e->keep.marks == NULL);
            assert_true(stats_of(seq).evicted > 0);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
        if (hash[0] != hash[1])
            fail_msg("%s what was cancelled shows", forms[p]);
    }
}

/* Attention over the remaining entries, against a softmax in double over the full cache with the
   evicted entries masked. */
static void check_masked(const struct kv_seq *full, const struct kv_seq *cut, int32_t l, int32_t h,
                         float *row, uint8_t *scratch)
{
    const struct pi_hparams *hp = &model->hp;
    int32_t n = kv_lane_len(full, l, h), m = kv_lane_len(cut, l, h), pos[N_TOKEN];
    float q[256], k[256], out[256];
    double weight[N_TOKEN], sum = 0.0, max = -INFINITY;
    kv_lane_positions(cut, l, h, pos, m);
    kv_check_row((uint64_t)(l * 64 + h), q, hp->dim_k);
    struct kv_attend_job job = {.seq = cut,
                                .layer = l,
                                .head = h,
                                .n_tok = 1,
                                .n_group = 1,
                                .pos0 = N_TOKEN,
                                .q = q,
                                .q_stride = (size_t)hp->dim_k,
                                .scale = 0.3f,
                                .out = out,
                                .out_stride = (size_t)hp->dim_v};
    kv_attend(&job, scratch);
    for (int32_t s = 0, j = 0; s < n; s++) {
        double x = 0.0;
        bool masked = j == m || pos[j] != s;
        j += !masked;
        kv_lane_key(full, l, h, s, k);
        for (int32_t d = 0; d < hp->dim_k; d++)
            x += (double)q[d] * k[d];
        weight[s] = masked ? -INFINITY : 0.3f * x;
        max = fmax(max, weight[s]);
    }
    for (int32_t s = 0; s < n; s++)
        sum += weight[s] = exp(weight[s] - max);
    for (int32_t d = 0; d < hp->dim_v; d++) {
        double want = 0.0, size = 0.0;
        for (int32_t s = 0; s < n; s++) {
            kv_lane_value(full, l, h, s, row);
            want += weight[s] / sum * row[d];
            size += weight[s] / sum * fabs(row[d]);
        }
        if (fabs(out[d] - want) > 1e-5 * size)
            fail_msg("layer %d, head %d, dimension %d: %g is not %g", l, h, d, out[d], want);
    }
}

TEST(evicting_is_as_if_entries_were_masked)
{
    enum { N = 150 };
    pith_engine *e = engine_make_typed(NULL, "f32", 64, 2, 2 * N_TOKEN);
    float row[256];
    kv_cache_set_marks(e->kv, 16, true); /* as many as any form has, and norms */
    pith_seq *full = seq_make(e);
    check(pith_seq_eval(full, tokens, N, &err), &err);
    const struct kv_geometry *g = kv_cache_geometry(e->kv);
    uint8_t *scratch = pi_mem_alloc(PI_MEM_OTHER, kv_attend_scratch_bytes(g, 1));
    struct policy_model facts = {.g = *g, .n_group = 1, .scale = 0.3f, .rope = &model->rope};
    for (size_t p = 0; p < PI_LEN(forms) * PI_LEN(granularities); p++) {
        char text[160];
        struct keep_config config;
        struct keep *keep = NULL;
        struct kv_seq *cut = NULL;
        struct keep_tally tally = {0};
        struct keep_point at = {N, 0, 0.0, 0};
        const char *form = forms[p % PI_LEN(forms)];
        if (has_places(form)) /* reads keys elsewhere: test_keep_places.c */
            continue;
        if (!goes_with(form, p / PI_LEN(forms)))
            continue;
        snprintf(text, sizeof(text), "%sbudget=40,slack=8,granularity=%s", form,
                 granularities[p / PI_LEN(forms)]);
        check(keep_config_parse(text, &config, &err), &err);
        check(keep_config_fit(&config, g, &err), &err);
        check(keep_create(&config, &facts, 2, &keep, &err), &err);
        check(kv_seq_fork(full->memory.kv, &cut, &err), &err);
        check(keep_prepare(keep, cut, at, 1, &err), &err);
        struct keep_view view = {.kv = cut, .tokens = tokens, .n_token = N};
        if (keep_state_size(keep) > 0) /* nothing was learned: all are equal */
            view.state = pi_mem_alloc(PI_MEM_OTHER, keep_state_size(keep));
        check(keep_round(keep, cut, &view, &tally, &err), &err);
        pi_mem_free(view.state);
        int64_t n_evicted = 0;
        for (int32_t i = 0; i < g->n_layer * g->n_head; i++)
            n_evicted += N - keep_lane_budget_at(&config, i / g->n_head, i % g->n_head, at) +
                         config.rules.overwrite;
        assert_int_equal(tally.n_evicted, n_evicted);
        for (int32_t l = 0; l < g->n_layer; l++)
            for (int32_t h = 0; h < g->n_head; h++)
                check_masked(full->memory.kv, cut, l, h, row, scratch);
        kv_seq_free(cut);
        keep_free(keep);
    }
    pi_mem_free(scratch);
    pith_seq_free(full);
    pith_engine_free(e);
}
