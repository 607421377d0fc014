/*
 * streaming:positions=cache, where distances are those between places within the cache. Attention
 * is the paper's, with keys and query rotated by their places, and has the same bits for any split
 * of an evaluation. The sinks are read at other places than they were written. They survive
 * truncation, forks, files and small pools.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <string.h>

#include "testing.h"

#include "engine/replay.h"
#include "keep_engine.h"
#include "kv_check.h"

#define N_TOKEN 300

/* Rounds at 96, 128, 160, ... tokens. */
#define POLICY "streaming:budget=64,slack=32,positions=cache"
#define BUDGET 64
#define SLACK 32
#define SINKS 4

static uint64_t reference[N_TOKEN]; /* hash of the logits after each token */

/* Keys and values as they are. */
static pith_engine *exact_engine(const char *keep, int32_t chunk, int32_t n_thread,
                                 int32_t kv_tokens)
{
    return engine_make_typed(keep, "f32", chunk, n_thread, kv_tokens);
}

/* Entries of a lane after n tokens. */
static int32_t entries_at(int32_t n_token)
{
    return n_token < BUDGET + SLACK ? n_token : BUDGET + (n_token - BUDGET - SLACK) % SLACK;
}

/* Every lane holds the sinks and the last tokens, n in all, and reads them without a gap. */
static void expect_places(const pith_seq *seq, int32_t n)
{
    int32_t pos[N_TOKEN], n_token = pith_seq_length(seq);
    for (int32_t l = 0; l < info.n_layer; l++)
        for (int32_t h = 0; h < info.n_head_kv; h++) {
            pith_lane_info lane;
            assert_int_equal(pith_seq_lane(seq, l, h, &lane, pos, N_TOKEN), PITH_OK);
            assert_int_equal(lane.n_entry, n);
            int32_t pages = (n + PAGE_LEN - 1) / PAGE_LEN;
            if (n < n_token && n > SINKS)
                pages = 1 + (n - SINKS + PAGE_LEN - 1) / PAGE_LEN;
            assert_int_equal(lane.n_page, pages);
            for (int32_t i = 0; i < n; i++) {
                assert_int_equal(pos[i], i < SINKS ? i : n_token - n + i);
                assert_int_equal(kv_lane_pos(seq->memory.kv, l, h, i), n_token - n + i);
            }
        }
}

static void load_model(void)
{
    model_load(12);
    pith_engine *e = exact_engine(POLICY, 512, 1, 0);
    pith_seq_free(eval_all(e, N_TOKEN, reference));
    pith_engine_free(e);
}

TEST_GROUP(load_model, model_free);

/* ---- the attention ---- */

static void rotate(double *x, double positions)
{
    const struct pi_rope *rope = &model->rope;
    for (int32_t f = 0; f < rope->n_pair; f++) {
        double *a = x + (rope->adjacent ? 2 * f : f);
        double *b = a + (rope->adjacent ? 1 : rope->n_pair);
        double c = cos(positions * rope->freq[f]), s = sin(positions * rope->freq[f]);
        double first = *a * c - *b * s;
        *b = *a * s + *b * c;
        *a = first;
    }
}

/* Xiao et al., section 3.2: of n entries the key in place i is rotated by i, the query by n. */
static void check_attention(const pith_seq *seq, int32_t l, int32_t h, uint8_t *scratch)
{
    const struct pi_hparams *hp = &model->hp;
    int32_t n = kv_lane_len(seq->memory.kv, l, h), n_token = pith_seq_length(seq);
    float q[256], row[256], out[256];
    double query[256], key[256], weight[N_TOKEN], want[256] = {0}, sum = 0.0;
    kv_check_row((uint64_t)(l * 64 + h + 5), q, hp->dim_k);
    struct kv_attend_job job = {.seq = seq->memory.kv,
                                .layer = l,
                                .head = h,
                                .n_tok = 1,
                                .n_group = 1,
                                .pos0 = n_token,
                                .q = q,
                                .q_stride = (size_t)hp->dim_k,
                                .scale = 0.1f,
                                .out = out,
                                .out_stride = (size_t)hp->dim_v,
                                .rope = &model->rope};
    kv_attend(&job, scratch);
    for (int32_t d = 0; d < hp->dim_k; d++)
        query[d] = q[d];
    rotate(query, n - n_token); /* from its position in the text to its place */
    for (int32_t i = 0; i < n; i++) {
        double x = 0.0;
        kv_lane_key(seq->memory.kv, l, h, i, row);
        for (int32_t d = 0; d < hp->dim_k; d++)
            key[d] = row[d];
        rotate(key, i - kv_lane_written_pos(seq->memory.kv, l, h, i));
        for (int32_t d = 0; d < hp->dim_k; d++)
            x += query[d] * key[d];
        sum += weight[i] = exp((double)job.scale * x);
    }
    for (int32_t i = 0; i < n; i++) {
        kv_lane_value(seq->memory.kv, l, h, i, row);
        for (int32_t d = 0; d < hp->dim_v; d++)
            want[d] += weight[i] / sum * row[d];
    }
    double most = pi_device_default()->floats ? 2e-3 : 2e-5; /* a GPU rounds what it reads to f16 */
    for (int32_t d = 0; d < hp->dim_v; d++)
        if (fabs(out[d] - want[d]) > most * (1.0 + fabs(want[d])))
            fail_msg("layer %d, head %d, dimension %d: %g is not %g", l, h, d, out[d], want[d]);
}

TEST(attention_rotates_by_places_in_the_cache)
{
    pith_engine *e = exact_engine(POLICY, 64, 2, 0);
    uint8_t *scratch =
        pi_mem_alloc(PI_MEM_OTHER, kv_attend_scratch_bytes(kv_cache_geometry(e->kv), 1));
    pith_seq *seq = seq_make(e);
    for (int32_t n = 0; n < N_TOKEN; n += 25) {
        eval(seq, n, n + 25);
        for (int32_t l = 0; l < n_lane; l++)
            check_attention(seq, l / info.n_head_kv, l % info.n_head_kv, scratch);
    }
    pi_mem_free(scratch);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(first_entries_are_read_at_places_of_the_cache)
{
    uint64_t text[N_TOKEN];
    pith_engine *e = exact_engine("streaming:budget=64,slack=32,positions=true", 64, 2, 0);
    pith_seq_free(eval_all(e, N_TOKEN, text));
    pith_engine_free(e);
    assert_memory_equal(text, reference, (BUDGET + SLACK) * sizeof(*text));
    assert_true(text[N_TOKEN - 1] != reference[N_TOKEN - 1]);
    e = exact_engine(POLICY, 64, 2, 0);
    pith_seq *seq = seq_make(e);
    for (int32_t n = 1; n <= N_TOKEN; n++) {
        eval(seq, n - 1, n);
        expect_places(seq, entries_at(n));
        assert_true(hash_of(seq) == reference[n - 1]);
    }
    pith_seq_free(seq);
    pith_engine_free(e);
    /* Without first entries there is no gap. */
    uint64_t a[N_TOKEN], b[N_TOKEN];
    e = exact_engine("streaming:budget=64,slack=32,sinks=0,positions=cache", 64, 2, 0);
    pith_seq_free(eval_all(e, N_TOKEN, a));
    pith_engine_free(e);
    e = exact_engine("streaming:budget=64,slack=32,sinks=0", 64, 2, 0);
    pith_seq_free(eval_all(e, N_TOKEN, b));
    pith_engine_free(e);
    assert_memory_equal(a, b, sizeof(a));
}

/* ---- the same bits ---- */

TEST(chunks_and_threads_change_no_bit)
{
    static const char *const same[] = {POLICY, POLICY ",granularity=all",
                                       POLICY ",prefix=4,granularity=head"};
    static const int32_t chunks[] = {7, 33, 512};
    for (size_t p = 0; p < PI_LEN(same); p++)
        for (size_t c = 0; c < PI_LEN(chunks); c++) {
            uint64_t hashes[N_TOKEN] = {0};
            pith_engine *e = exact_engine(same[p], chunks[c], 1 + (int32_t)c, 0);
            pith_seq_free(eval_all(e, N_TOKEN, hashes));
            assert_memory_equal(hashes, reference, sizeof(hashes));
            pith_engine_free(e);
        }
}

/* Forks at a moment when the page of the sinks is still shared with the window, and after. */
TEST(forks_beside_a_shared_page_of_sinks)
{
    static const int32_t at[] = {90, 150};
    for (size_t i = 0; i < PI_LEN(at); i++) {
        pith_engine *e = exact_engine(POLICY, 64, 2, 2 * (BUDGET + SLACK + PAGE_LEN));
        pith_seq *a = seq_make(e), *b = NULL;
        eval(a, 0, at[i]);
        check(pith_seq_fork(a, &b, &err), &err);
        eval(b, at[i], 250);
        expect_places(a, entries_at(at[i]));
        pith_batch_item both[2] = {{.seq = a, .tokens = tokens + at[i], .n_token = N_TOKEN - at[i]},
                                   {.seq = b, .tokens = tokens + 250, .n_token = N_TOKEN - 250}};
        check(pith_batch_eval(e, both, 2, NULL, NULL, &err), &err);
        assert_true(hash_of(a) == reference[N_TOKEN - 1] && hash_of(b) == reference[N_TOKEN - 1]);
        expect_places(a, entries_at(N_TOKEN));
        expect_places(b, entries_at(N_TOKEN));
        pith_seq_free(b);
        pith_seq_free(a);
        pith_engine_free(e);
    }
}

static bool stop_late(void *user, double fraction)
{
    return fraction < *(const double *)user;
}

/* Back into the window, into the gap, among the sinks, and on from there. */
TEST(goes_back_into_window_gap_and_sinks)
{
    static const int32_t lengths[] = {279, 250, 96, 95, 130, 4, 3, 299, 1, 200};
    pith_engine *e = exact_engine(POLICY, 50, 2, 512);
    pith_seq *seq = seq_make(e);
    eval(seq, 0, 290);
    int32_t n = entries_at(290);
    check(pith_seq_truncate(seq, 280, &err), &err);
    expect_places(seq, n - 10);
    check(pith_seq_truncate(seq, 100, &err), &err);
    expect_places(seq, SINKS);
    eval(seq, 100, 110);
    expect_places(seq, SINKS + 10);
    eval(seq, 110, 270);
    expect_places(seq, BUDGET + 14); /* rounds at 192, 224, 256 */
    check(pith_seq_truncate(seq, SINKS, &err), &err);
    eval(seq, SINKS, 290);
    assert_true(hash_of(seq) == reference[289]);
    check(pith_seq_truncate(seq, 2, &err), &err);
    eval(seq, 2, 290);
    assert_true(hash_of(seq) == reference[289]);
    for (size_t i = 0; i < PI_LEN(lengths); i++) {
        check(pith_seq_sync(seq, tokens, lengths[i], NULL, NULL, &err), &err);
        assert_true(hash_of(seq) == reference[lengths[i] - 1]);
        expect_places(seq, entries_at(lengths[i]));
    }
    double fraction = 0.7;
    pith_batch_item item = {.seq = seq, .tokens = tokens + 200, .n_token = 20};
    assert_int_equal(pith_batch_eval(e, &item, 1, stop_late, &fraction, &err), PITH_CANCELLED);
    expect_places(seq, entries_at(200));
    item.n_token = 100;
    assert_int_equal(pith_batch_eval(e, &item, 1, stop_late, &fraction, &err), PITH_CANCELLED);
    n = pith_seq_length(seq);
    assert_true(n > 224 && n < 300);
    expect_places(seq, entries_at(n));
    eval(seq, n, N_TOKEN);
    assert_true(hash_of(seq) == reference[N_TOKEN - 1]);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(goes_on_from_a_file)
{
    char path[] = "/tmp/pith-test-places-XXXXXX";
    close(mkstemp(path));
    pith_engine *e = exact_engine(POLICY, 64, 2, 512), *full = exact_engine(NULL, 64, 1, 512);
    pith_seq *a = seq_make(e), *b = NULL;
    eval(a, 0, 222);
    check(pith_seq_save(a, path, &err), &err);
    pith_seq_free(a);
    check(pith_seq_load(e, path, &b, &err), &err);
    expect_places(b, entries_at(222));
    eval(b, 222, N_TOKEN);
    assert_true(hash_of(b) == reference[N_TOKEN - 1]);
    pith_seq_free(b);

    /* The full cache goes on with the sinks where they are, and reads again where it must. */
    check(pith_seq_load(full, path, &b, &err), &err);
    eval(b, 222, 223);
    assert_true(hash_of(b) == reference[222]);
    check(pith_seq_sync(b, tokens, 96, NULL, NULL, &err), &err);
    assert_true(hash_of(b) == reference[95]);
    eval(b, 96, 250);
    check(pith_seq_save(b, path, &err), &err);
    pith_seq_free(b);

    /* 250 entries come into an engine that keeps 64: one round, in the middle of a page. */
    check(pith_seq_load(e, path, &b, &err), &err);
    eval(b, 250, 251);
    expect_places(b, BUDGET + 1);
    pith_seq_free(b);
    pith_engine_free(full);
    pith_engine_free(e);
    remove(path);
}

/* ---- memory ---- */

static bool watch_bytes(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    pith_kv_stats kv;
    (void)pos;
    (void)logits;
    pith_engine_kv_stats(pith_seq_engine(seq), &kv);
    assert_true(kv.peak_bytes <= *(const int64_t *)user);
    return true;
}

/* The pool that the policy asks for is enough for any text, and one with a page less is refused.
   Sizes in bytes hold at all times. */
TEST(the_pool_that_it_asks_for_is_enough)
{
    pith_engine *e = exact_engine(POLICY, 64, 2, 0);
    pith_kv_stats kv;
    pith_engine_kv_stats(e, &kv);
    assert_int_equal(kv.n_page, n_lane * ((BUDGET + SLACK) / PAGE_LEN + 1));
    uint64_t hashes[N_TOKEN];
    pith_seq_free(eval_all(e, N_TOKEN, hashes));
    assert_memory_equal(hashes, reference, sizeof(hashes));
    pith_engine_free(e);
    e = engine_with(model, (pith_engine_params){.page_len = PAGE_LEN,
                                                .type_k = "f32",
                                                .type_v = "f32",
                                                .keep = POLICY,
                                                .kv_bytes = kv.reserved_bytes - kv.page_bytes});
    pith_seq *seq = seq_make(e);
    eval(seq, 0, 90);
    assert_int_equal(pith_seq_eval(seq, tokens + 90, 100, &err), PITH_KV_FULL);
    assert_true(hash_of(seq) == reference[89]);
    expect_places(seq, 90);
    pith_seq_free(seq);
    pith_engine_free(e);

    int64_t bytes = 12 * n_lane * kv.page_bytes + kv.page_bytes / 2;
    char text[96];
    snprintf(text, sizeof(text), "streaming:slack=20,positions=cache,budget=%lldB",
             (long long)bytes);
    e = exact_engine(text, 32, 2, 1000);
    seq = seq_make(e);
    pith_batch_item item = {.seq = seq,
                            .tokens = tokens,
                            .n_token = N_TOKEN,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = watch_bytes,
                            .user = &bytes};
    check(pith_batch_eval(e, &item, 1, NULL, NULL, &err), &err);
    pith_keep_stats stats;
    pith_seq_keep_stats(seq, &stats);
    assert_int_equal(stats.budget, 11 * PAGE_LEN - 20);
    assert_true(stats.rounds > 3);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* A round that is asked for needs a page of each lane for the sinks, or changes nothing. */
TEST(a_round_is_the_one_done_by_hand)
{
    for (int32_t more = 0; more < 2; more++) {
        pith_engine *e = exact_engine("streaming:budget=64,slack=1000,positions=cache", 64, 2,
                                      200 + more * PAGE_LEN);
        pith_seq *seq = seq_make(e);
        eval(seq, 0, 200);
        if (more > 0) {
            check(pith_seq_keep_round(seq, &err), &err);
            expect_places(seq, BUDGET);
        } else {
            assert_int_equal(pith_seq_keep_round(seq, &err), PITH_KV_FULL);
            expect_places(seq, 200);
        }
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* A prompt that is marked after a round makes other entries the first: the page that splitting them
   off takes is there, or nothing happens. */
TEST(a_late_prompt_splits_the_sinks_off_or_changes_nothing)
{
    enum { WIDE = 128 }; /* a budget, of which the prompt is less than half */
    for (int32_t more = 0; more < 2; more++) {
        pith_engine *e = exact_engine("streaming:budget=128,slack=32,positions=cache,pin-prompt=on",
                                      64, 2, WIDE + SLACK + (1 + more) * PAGE_LEN);
        pith_seq *seq = seq_make(e);
        eval(seq, 0, 164); /* sinks, and 36 .. 163 */
        check(pith_seq_mark_prompt(seq, 50, &err), &err);
        pith_status status = pith_seq_eval(seq, tokens + 164, 60, &err);
        assert_int_equal(status, more > 0 ? PITH_OK : PITH_KV_FULL);
        assert_int_equal(pith_seq_length(seq), more > 0 ? 224 : 164);
        for (int32_t l = 0; more > 0 && l < n_lane; l++) {
            int32_t layer = l / info.n_head_kv, head = l % info.n_head_kv;
            assert_int_equal(kv_lane_len(seq->memory.kv, layer, head), WIDE);
            for (int32_t s = SINKS; s < WIDE; s++) /* 36 .. 49, and the entries after them now */
                assert_int_equal(kv_lane_pos(seq->memory.kv, layer, head, s), 224 - WIDE + s);
            assert_int_equal(kv_lane_written_pos(seq->memory.kv, layer, head, SINKS), 36);
            assert_int_equal(kv_lane_written_pos(seq->memory.kv, layer, head, SINKS + 14), 114);
        }
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* Recorded keys and values, without a model: no more tokens than fit, rounds with a spare page for
   the sinks, and the text's positions. */
TEST(replays_without_a_model)
{
    static float rows[BUDGET + SLACK][8];
    static int32_t ids[BUDGET + SLACK];
    static const double freq[4] = {1.0, 0.1, 0.01, 0.001};
    const float *layers[1] = {&rows[0][0]};
    struct pi_replay_shape shape = {.n_layer = 1,
                                    .n_head = 1,
                                    .dim_k = 8,
                                    .dim_v = 8,
                                    .page_len = PAGE_LEN,
                                    .type_k = "f32",
                                    .type_v = "f32",
                                    .n_token = BUDGET + SLACK,
                                    .n_pair = 4,
                                    .freq = freq};
    struct pi_replay *r = NULL;
    int32_t pos[BUDGET + SLACK];
    check(pi_replay_create(&shape, POLICY, NULL, &r, &err), &err);
    check(pi_replay_read(r, BUDGET + SLACK, ids, layers, layers, &err), &err);
    assert_int_equal(pi_replay_lane(r, 0, 0, pos), BUDGET);
    for (int32_t i = 0; i < BUDGET; i++)
        assert_int_equal(pos[i], i < SINKS ? i : SLACK + i);
    pi_replay_free(r);
}
