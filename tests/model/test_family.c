/*
 * test_family.c - a made-up family in one file. One layer has a window, a rotation of its own and
 * no feed-forward, one has no rotation, and one has no attention. The logits equal a plain
 * reference for any split of the tokens. Lanes with a window hold the entries that a later token
 * sees, in whole pages, and continue past many windows. Policies work on the other lanes.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>

#include "base/mem.h"
#include "changed_file.h"
#include "engine/engine.h"
#include "mem_used.h"
#include "model/load.h"
#include "status.h"

#define N_TOKEN 150
#define WINDOW 20
#define PAGE_LEN 16
#define LOCAL_BASE 300.0
#define N_KV_LAYER 3 /* layers with attention, of which the one with the window is the last lane */

/* ---- the family ---- */

static const struct pi_tensor_spec attention[] = {
    PI_SPEC_VECTOR(attn.norm, "attn_norm.weight", PI_DIM_EMBD, true),
    PI_SPEC_MATRIX(attn.wq, "attn_q", PI_DIM_Q, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wk, "attn_k", PI_DIM_K, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wv, "attn_v", PI_DIM_V, PI_DIM_EMBD),
    PI_SPEC_MATRIX(attn.wo, "attn_output", PI_DIM_EMBD, PI_DIM_O),
    /* The maker has no post norm; any vector of that length is one. */
    PI_SPEC_VECTOR(attn.post_norm, "ffn_norm.weight", PI_DIM_EMBD, true),
};
static const struct pi_arch_part parts[] = {PI_ARCH_PART(pi_block_attention, attention),
                                            PI_ARCH_FFN};

static pith_status read_layers(struct pith_model *m, pith_error *why)
{
    const struct pi_rope *local = &m->rope_local;
    struct pi_rope_keys keys = pi_rope_keys_of(m);
    keys.base = "freq_base_local"; /* which the file does not have */
    keys.preset = LOCAL_BASE;
    keys.plain = true;
    PI_TRY(pi_rope_load(&m->rope_local, &m->gguf, m->arch->name, &keys, why));
    pi_layer_leave_out(&m->layer[1], &pi_block_ffn);
    m->layer[1].window = WINDOW;
    m->layer[1].rope = local;
    m->layer[2].rope = NULL;
    pi_layer_leave_out(&m->layer[3], &pi_block_attention);
    return PITH_OK;
}

static const struct pi_arch made_up = {
    .name = "made-up",
    .rope_adjacent = false,
    .part = parts,
    .n_part = PI_LEN(parts),
    .read = read_layers,
};

/* ---- the reference: one token after the other, all in double ---- */

static pith_model *model;
static int32_t tokens[N_TOKEN];
static double *wanted; /* [N_TOKEN][n_vocab] */

static void norm(const float *w, const double *x, int32_t n, double *out)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int32_t i = 0; i < n; i++)
        out[i] = x[i] / sqrt(sum / n + (double)model->hp.rms_eps) * (double)w[i];
}

static void multiply(const struct pi_matrix *w, const double *x, double *out)
{
    float *row = malloc((size_t)w->n_col * sizeof(*row));
    for (int32_t r = 0; r < w->n_row; r++) {
        pi_matmul_unpack_row(w, r, row);
        out[r] = 0;
        for (int32_t c = 0; c < w->n_col; c++)
            out[r] += (double)row[c] * x[c];
    }
    free(row);
}

static void rotate(const struct pi_rope *rope, int32_t pos, double *head)
{
    for (int32_t i = 0; rope != NULL && i < rope->n_pair; i++) {
        double a = head[i], b = head[i + rope->n_pair], turn = pos * rope->freq[i];
        head[i] = a * cos(turn) - b * sin(turn);
        head[i + rope->n_pair] = a * sin(turn) + b * cos(turn);
    }
}

static double dot(const double *a, const double *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* The output of head h of token t over the keys and values of its window. */
static void attend_naive(const struct pi_layer *layer, int32_t t, int32_t h, const double *q,
                         const double *k, const double *v, double *out)
{
    const struct pi_hparams *hp = &model->hp;
    int32_t dim = hp->dim_k, n_kv = hp->n_head_kv * dim, kv = h / (hp->n_head / hp->n_head_kv);
    int32_t first = layer->window > 0 && t >= layer->window ? t - layer->window + 1 : 0;
    double weight[N_TOKEN], sum = 0;
    for (int32_t j = first; j <= t; j++)
        sum += weight[j] = exp(dot(q + h * dim, k + j * n_kv + kv * dim, dim) / sqrt(dim));
    for (int32_t d = 0; d < dim; d++)
        out[h * dim + d] = 0;
    for (int32_t j = first; j <= t; j++)
        for (int32_t d = 0; d < dim; d++)
            out[h * dim + d] += weight[j] / sum * v[j * n_kv + kv * dim + d];
}

static void add_attention(const struct pi_layer *layer, double *x)
{
    const struct pi_hparams *hp = &model->hp;
    int32_t n = hp->n_embd, n_q = hp->n_head * hp->dim_k, n_kv = hp->n_head_kv * hp->dim_k;
    double *q = calloc(N_TOKEN * (size_t)(2 * n_q + 2 * n_kv + 2 * n), sizeof(*q));
    double *k = q + N_TOKEN * n_q, *v = k + N_TOKEN * n_kv, *o = v + N_TOKEN * n_kv;
    double *a = o + N_TOKEN * n_q;
    for (int32_t t = 0; t < N_TOKEN; t++) {
        norm(layer->attn.norm, x + t * n, n, a);
        multiply(&layer->attn.wq, a, q + t * n_q);
        multiply(&layer->attn.wk, a, k + t * n_kv);
        multiply(&layer->attn.wv, a, v + t * n_kv);
        for (int32_t h = 0; h < hp->n_head; h++)
            rotate(layer->rope, t, q + t * n_q + h * hp->dim_k);
        for (int32_t h = 0; h < hp->n_head_kv; h++)
            rotate(layer->rope, t, k + t * n_kv + h * hp->dim_k);
        for (int32_t h = 0; h < hp->n_head; h++)
            attend_naive(layer, t, h, q + t * n_q, k, v, o + t * n_q);
        multiply(&layer->attn.wo, o + t * n_q, a);
        norm(layer->attn.post_norm, a, n, a + n);
        for (int32_t i = 0; i < n; i++)
            x[t * n + i] += a[n + i];
    }
    free(q);
}

static void add_ffn(const struct pi_layer *layer, double *x)
{
    const struct pi_hparams *hp = &model->hp;
    int32_t n = hp->n_embd;
    double *gate = calloc((size_t)(2 * hp->n_ff + n), sizeof(*gate)), *up = gate + hp->n_ff;
    double *a = up + hp->n_ff;
    for (int32_t t = 0; t < N_TOKEN; t++) {
        norm(layer->ffn.norm, x + t * n, n, a);
        multiply(&layer->ffn.gate, a, gate);
        multiply(&layer->ffn.up, a, up);
        for (int32_t i = 0; i < hp->n_ff; i++)
            gate[i] *= up[i] / (1 + exp(-gate[i]));
        multiply(&layer->ffn.down, gate, a);
        for (int32_t i = 0; i < n; i++)
            x[t * n + i] += a[i];
    }
    free(gate);
}

static void compute_wanted(void)
{
    const struct pi_hparams *hp = &model->hp;
    int32_t n = hp->n_embd;
    double *x = calloc((size_t)(N_TOKEN * n + n), sizeof(*x)), *a = x + N_TOKEN * n;
    float *row = calloc((size_t)n, sizeof(*row));
    wanted = calloc((size_t)N_TOKEN * (size_t)hp->n_vocab, sizeof(*wanted));
    for (int32_t t = 0; t < N_TOKEN; t++) {
        memcpy(row, model->embd_rows + (size_t)(tokens[t] * n) * sizeof(*row),
               (size_t)n * sizeof(*row)); /* F32, in the file */
        for (int32_t i = 0; i < n; i++)
            x[t * n + i] = (double)row[i];
    }
    for (int32_t l = 0; l < 4; l++) {
        if (l != 3)
            add_attention(&model->layer[l], x);
        if (l != 1)
            add_ffn(&model->layer[l], x);
    }
    for (int32_t t = 0; t < N_TOKEN; t++) {
        norm(model->output_norm, x + t * n, n, a);
        multiply(&model->output, a, wanted + (size_t)t * (size_t)hp->n_vocab);
    }
    free(x);
    free(row);
}

/* ---- set-up ---- */

static void load(void)
{
    const struct change lacks = {.drop = "blk.1.ffn_[!n]*", .drop_too = "blk.3.attn_*"};
    uint64_t seed = 29;
    make_folder();
    changed("arch=made-up layers=4 width=64 heads=4 kv_heads=2 head_dim=32 ff=96 vocab=101 "
            "ctx=4096",
            &lacks);
    check(pi_model_load(in_folder("changed.gguf"), NULL, &made_up, &model, &err), &err);
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&seed, 101);
    compute_wanted();
}

static void unload(void)
{
    free(wanted);
    pith_model_free(model);
    mem_check(NULL);
    remove_folder();
}

TEST_GROUP(load, unload);

static pith_engine *engine_make(int32_t chunk, const char *type, int64_t kv_bytes)
{
    return engine_with(model, (pith_engine_params){.chunk = chunk,
                                                   .n_thread = 1,
                                                   .page_len = PAGE_LEN,
                                                   .type_k = type,
                                                   .type_v = type,
                                                   .kv_bytes = kv_bytes,
                                                   .kv_tokens = kv_bytes > 0 ? 0 : 3 * N_TOKEN});
}

static void eval(pith_seq *seq, int32_t n)
{
    int32_t from = pith_seq_length(seq);
    check(pith_seq_eval(seq, tokens + from, n - from, &err), &err);
}

static uint64_t hash_of(const pith_seq *seq)
{
    assert_non_null(pith_seq_logits(seq));
    return pith_logits_hash(pith_seq_logits(seq), model->hp.n_vocab);
}

/* Hashes of the logits behind each token, read at once; the logits are compared with `wanted`. */
struct seen {
    double error; /* the largest */
    uint64_t hash[N_TOKEN];
};

static bool look(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct seen *seen = user;
    int32_t n = model->hp.n_vocab;
    (void)seq;
    seen->hash[pos] = pith_logits_hash(logits, n);
    for (int32_t i = 0; i < n; i++)
        seen->error = fmax(seen->error, fabs((double)logits[i] - wanted[(size_t)pos * n + i]));
    return true;
}

static void read_all(pith_seq *seq, struct seen *seen)
{
    pith_batch_item item = {.seq = seq,
                            .tokens = tokens,
                            .n_token = N_TOKEN,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = look,
                            .user = seen};
    check(pith_batch_eval(pith_seq_engine(seq), &item, 1, NULL, NULL, &err), &err);
}

/* ---- tests ---- */

TEST(layers_are_what_the_family_says)
{
    pith_model *refused = NULL;
    assert_int_equal(model->hp.n_layer, 4);
    assert_int_equal(model->hp.n_layer_kv, N_KV_LAYER);
    assert_int_equal(model->layer[1].n_block, 1);
    assert_null(model->layer[1].ffn.gate.data);
    assert_int_equal(model->layer[1].kv_layer, 2);
    assert_int_equal(model->layer[2].kv_layer, 1);
    assert_int_equal(model->hp.n_layer_full, 2);
    assert_int_equal(model->layer[3].kv_layer, -1);
    assert_int_equal(model->kv_window[2], WINDOW);
    for (int32_t i = 0; i < model->rope_local.n_pair; i++)
        assert_true(model->rope_local.freq[i] ==
                    pow(LOCAL_BASE, -(double)i / model->rope_local.n_pair));
    expect(pith_model_load(in_folder("changed.gguf"), NULL, &refused, &err), &err, PITH_UNSUPPORTED,
           "made-up");
}

TEST(logits_are_the_references)
{
    const char *const types[] = {"f32", "f16", "turbo3"};
    for (size_t i = 0; i < PI_LEN(types); i++) {
        static struct seen first, again;
        const int32_t chunks[] = {512, 64, 16, 7, 1};
        for (size_t c = 0; c < PI_LEN(chunks); c++) {
            pith_engine *e = engine_make(chunks[c], types[i], 0);
            pith_seq *seq = seq_make(e);
            again = (struct seen){0};
            read_all(seq, &again);
            if (c == 0)
                first = again;
            assert_memory_equal(first.hash, again.hash, sizeof(first.hash));
            pith_seq_free(seq);
            pith_engine_free(e);
        }
        bool rounds = i > 0 || pi_device_default()->floats; /* to f16 */
        if (i < 2 && !(first.error < (rounds ? 0.05 : 1e-4)))
            fail_msg("%s: logits differ by %g", types[i], first.error);
    }
}

/* Pages of a lane after n tokens: those with a window begin with the page of the first entry that
   the next token sees. */
static int32_t pages_of(int32_t layer, int32_t n)
{
    int32_t first = layer == 2 && n >= WINDOW ? n - WINDOW + 1 : 0;
    return (n - 1) / PAGE_LEN - first / PAGE_LEN + 1;
}

static void check_lanes(const pith_seq *seq, int32_t n)
{
    const struct kv_geometry *g = kv_cache_geometry(pith_seq_engine((pith_seq *)seq)->kv);
    int64_t bytes = 0;
    pith_kv_stats stats;
    assert_int_equal(g->n_layer, N_KV_LAYER);
    for (int32_t l = 0; l < N_KV_LAYER; l++)
        for (int32_t h = 0; h < 2; h++) {
            int32_t first = pages_of(0, n) - pages_of(l, n), pos[N_TOKEN];
            pith_lane_info lane;
            assert_int_equal(pith_seq_lane(seq, l, h, &lane, pos, N_TOKEN), PITH_OK);
            assert_int_equal(lane.n_page, pages_of(l, n));
            assert_int_equal(lane.n_entry, n - first * PAGE_LEN);
            assert_int_equal(pos[0], first * PAGE_LEN);
            bytes += lane.bytes;
        }
    pith_engine_kv_stats(pith_seq_engine((pith_seq *)seq), &stats);
    assert_int_equal(stats.used_bytes, bytes);
}

/* Token by token and in one call; with exactly the memory that the estimate names. */
TEST(lanes_hold_the_window)
{
    const int32_t chunks[] = {1, 16, 30, 512};
    for (size_t c = 0; c < PI_LEN(chunks); c++) {
        pith_engine_params params;
        int64_t bytes;
        pith_engine_params_default(&params);
        params.chunk = chunks[c];
        params.page_len = PAGE_LEN;
        check(pith_kv_estimate(model, &params, N_TOKEN, &bytes, &err), &err);
        pith_engine *e = engine_make(chunks[c], "f16", bytes);
        pith_seq *seq = seq_make(e);
        eval(seq, N_TOKEN);
        check_lanes(seq, N_TOKEN);
        uint64_t hash = hash_of(seq);
        check(pith_seq_truncate(seq, 0, &err), &err);
        eval(seq, 70); /* the lane's own room is enough for the rest */
        eval(seq, N_TOKEN);
        assert_int_equal(hash_of(seq), hash);
        check(pith_seq_truncate(seq, 0, &err), &err);
        for (int32_t n = 1; n <= N_TOKEN; n++) {
            eval(seq, n);
            check_lanes(seq, n);
        }
        assert_int_equal(hash_of(seq), hash);
        pith_kv_stats stats;
        pith_engine_kv_stats(e, &stats);
        assert_true(stats.peak_bytes <= bytes);
        /* 10 pages; with a window 19 + chunk entries that begin anywhere */
        int32_t most = (int32_t)pi_min(10, 1 + (WINDOW - 1 + chunks[c] + PAGE_LEN - 2) / PAGE_LEN);
        assert_int_equal(bytes, 2 * (10 + most + 10) * stats.page_bytes);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* A truncation within the window keeps the entries; a longer one reads the text again. */
TEST(goes_back_within_the_window)
{
    pith_engine *e = engine_make(32, "f16", 0);
    pith_seq *seq = seq_make(e), *fork = NULL;
    int32_t other[N_TOKEN];
    eval(seq, N_TOKEN);
    uint64_t hash = hash_of(seq);
    check(pith_seq_truncate(seq, 148, &err), &err);
    check(pith_seq_fork(seq, &fork, &err), &err);
    eval(seq, N_TOKEN);
    eval(fork, N_TOKEN);
    assert_int_equal(hash_of(seq), hash);
    assert_int_equal(hash_of(fork), hash);
    pith_seq_free(fork);
    expect(pith_seq_truncate(seq, 100, &err), &err, PITH_UNSUPPORTED, "window");
    assert_int_equal(pith_seq_length(seq), N_TOKEN);
    memcpy(other, tokens, sizeof(other));
    other[100] = (other[100] + 1) % 101;
    check(pith_seq_sync(seq, other, N_TOKEN, NULL, NULL, &err), &err);
    assert_int_not_equal(hash_of(seq), hash);
    check(pith_seq_sync(seq, tokens, N_TOKEN, NULL, NULL, &err), &err);
    assert_int_equal(hash_of(seq), hash);
    check_lanes(seq, N_TOKEN);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* A fork's first pages are another's too: they go without leaving room for new entries. */
TEST(forks_go_on_alike)
{
    pith_engine *e = engine_make(16, "q8_0", 0);
    pith_seq *straight = seq_make(e), *seq = seq_make(e), *fork = NULL;
    eval(straight, N_TOKEN);
    uint64_t hash = hash_of(straight);
    pith_seq_free(straight);
    eval(seq, 40);
    check(pith_seq_fork(seq, &fork, &err), &err);
    eval(fork, N_TOKEN);
    eval(seq, N_TOKEN);
    assert_int_equal(hash_of(seq), hash);
    assert_int_equal(hash_of(fork), hash);
    pith_seq_free(fork);
    pith_seq_free(seq);
    pith_engine_free(e);
}

TEST(saving_and_swapping_change_no_bit)
{
    pith_engine *e = engine_make(32, "f16", 0);
    pith_seq *seq = seq_make(e), *loaded = NULL;
    struct kv_swapped *away = NULL;
    pith_kv_stats stats;
    eval(seq, 110);
    check(pith_seq_save(seq, in_folder("seq"), &err), &err);
    check(pi_memory_swap_out(&seq->memory, &away, &err), &err);
    pith_engine_kv_stats(e, &stats);
    assert_int_equal(stats.used_bytes, 0);
    check(pi_memory_swap_in(&seq->memory, away, &err), &err);
    eval(seq, N_TOKEN);
    uint64_t hash = hash_of(seq);
    pith_seq_free(seq);
    check(pith_seq_load(e, in_folder("seq"), &loaded, &err), &err);
    check_lanes(loaded, 110);
    eval(loaded, N_TOKEN);
    assert_int_equal(hash_of(loaded), hash);
    check_lanes(loaded, N_TOKEN);
    pith_seq_free(loaded);
    pith_engine_free(e);
}

static bool stop(void *user, double fraction)
{
    (void)user;
    return fraction < 0.2;
}

/* Once the window has moved there is no way back, and a cancelled evaluation stays. */
TEST(a_cancelled_evaluation_stays_once_the_window_moved)
{
    pith_engine *e = engine_make(16, "f16", 0);
    pith_seq *seq = seq_make(e);
    eval(seq, 100);
    pith_batch_item item = {.seq = seq, .tokens = tokens + 100, .n_token = 50};
    expect(pith_batch_eval(e, &item, 1, stop, NULL, &err), &err, PITH_CANCELLED, "cancelled");
    assert_int_equal(pith_seq_length(seq), 116);
    check_lanes(seq, 116);
    eval(seq, N_TOKEN);
    uint64_t hash = hash_of(seq);
    check(pith_seq_truncate(seq, 0, &err), &err);
    eval(seq, N_TOKEN);
    assert_int_equal(hash_of(seq), hash);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* ---- policies: those on lanes without a window, which are the store's first two ---- */

#define N_FULL 2
#define CHUNK 16

static pith_engine *policies_of(const char *keep, const char *read, const char *recall)
{
    return engine_with(model, (pith_engine_params){.chunk = CHUNK,
                                                   .n_thread = 2,
                                                   .page_len = PAGE_LEN,
                                                   .kv_tokens = 3 * N_TOKEN,
                                                   .keep = keep,
                                                   .read = read,
                                                   .recall = recall});
}

static const char *const keeps[] = {
    "streaming:sinks=2",
    "snapkv:window=8",
    "pyramidkv:window=8",
    "adakv:window=8",
    "tova",
    "rkv:window=8",
    "h2o",
    "vatp:sinks=2",
    "scissorhands",
    "raas",
    "lazyeviction:window=8",
    "knorm",
    "keydiff",
    "triattention:warmup=1",
    "expected",
    "longflow:sinks=2,window=4,prompt-window=8",
};

static const char *with_budget(const char *keep, const char *budget, char *out, size_t cap)
{
    bool rounds = strncmp(keep, "longflow", 8) != 0;
    snprintf(out, cap, "%s%sbudget=%s%s", keep, strchr(keep, ':') != NULL ? "," : ":", budget,
             rounds ? ",slack=8" : "");
    return out;
}

/* The prompt, then token by token. */
static void read_and_go_on(pith_seq *seq)
{
    eval(seq, 120);
    for (int32_t n = 121; n <= N_TOKEN; n++)
        eval(seq, n);
}

TEST(a_budget_of_the_length_changes_nothing)
{
    char text[128];
    pith_engine *e = policies_of(NULL, NULL, NULL);
    pith_seq *seq = seq_make(e);
    read_and_go_on(seq);
    uint64_t hash = hash_of(seq);
    pith_seq_free(seq);
    pith_engine_free(e);
    for (size_t i = 0; i < PI_LEN(keeps); i++) {
        e = policies_of(with_budget(keeps[i], "4000", text, sizeof(text)), NULL, NULL);
        seq = seq_make(e);
        read_and_go_on(seq);
        if (hash_of(seq) != hash)
            fail_msg("%s: other logits", text);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* Windows hold the same entries as without a policy, the other lanes their budget, and the estimate
   names the sum. */
static void check_kept(const pith_seq *seq, const char *keep)
{
    pith_keep_stats kept;
    int32_t pos[N_TOKEN], first = pages_of(0, N_TOKEN) - pages_of(2, N_TOKEN);
    for (int32_t l = 0; l < N_KV_LAYER; l++)
        for (int32_t h = 0; h < 2; h++) {
            pith_lane_info lane;
            assert_int_equal(pith_seq_lane(seq, l, h, &lane, pos, N_TOKEN), PITH_OK);
            /* PyramidKV gives one layer more than another. */
            int32_t most = strncmp(keep, "pyramidkv", 9) == 0 ? 80 : 48;
            if (l < N_FULL ? lane.n_entry > most : lane.n_entry != N_TOKEN - first * PAGE_LEN)
                fail_msg("%s: layer %d holds %d entries", keep, l, lane.n_entry);
        }
    pith_seq_keep_stats(seq, &kept);
    assert_true(kept.evicted > 0 || kept.overwritten > 0);
    assert_in_range(kept.live, N_FULL * 2, N_FULL * 2 * 80);
}

static void check_bytes(pith_engine *e, const char *keep)
{
    pith_engine_params params;
    pith_kv_stats stats;
    int64_t bytes;
    pith_engine_params_default(&params);
    params.chunk = CHUNK;
    params.page_len = PAGE_LEN;
    params.keep = keep;
    check(pith_kv_estimate(model, &params, N_TOKEN, &bytes, &err), &err);
    pith_engine_kv_stats(e, &stats);
    if (stats.peak_bytes > bytes)
        fail_msg("%s: %lld bytes are more than %lld", keep, (long long)stats.peak_bytes,
                 (long long)bytes);
}

TEST(policies_leave_windows_alone)
{
    char text[128];
    for (size_t i = 0; i < PI_LEN(keeps); i++) {
        pith_engine *e = policies_of(with_budget(keeps[i], "40", text, sizeof(text)), NULL, NULL);
        pith_seq *seq = seq_make(e), *fork = NULL, *loaded = NULL;
        eval(seq, 120);
        eval(seq, 121);
        check(pith_seq_save(seq, in_folder("kept"), &err), &err);
        check(pith_seq_load(e, in_folder("kept"), &loaded, &err), &err);
        check(pith_seq_fork(seq, &fork, &err), &err);
        for (int32_t n = 122; n <= N_TOKEN; n++) {
            eval(seq, n);
            eval(fork, n);
            eval(loaded, n);
        }
        check_kept(seq, text);
        if (hash_of(fork) != hash_of(seq) || hash_of(loaded) != hash_of(seq))
            fail_msg("%s: a fork or a file goes on otherwise", text);
        pith_seq_free(loaded);
        pith_seq_free(fork);
        pith_seq_free(seq);
        pith_engine_free(e);
        e = policies_of(text, NULL, NULL);
        seq = seq_make(e);
        read_and_go_on(seq);
        check_bytes(e, text);
        pith_seq_free(seq);
        pith_engine_free(e);
    }
}

/* A budget in bytes is the whole sequence's: with its windows. */
TEST(a_budget_in_bytes_counts_windows)
{
    pith_engine_params params;
    pith_engine *e = policies_of("streaming:budget=96KiB,slack=8", NULL, NULL), *refused = NULL;
    pith_seq *seq = seq_make(e);
    pith_kv_stats stats;
    eval(seq, N_TOKEN);
    pith_engine_kv_stats(e, &stats);
    assert_in_range(stats.peak_bytes, 64 << 10, 96 << 10);
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_engine_params_default(&params);
    params.chunk = CHUNK;
    params.page_len = PAGE_LEN;
    params.keep = "streaming:budget=16KiB";
    expect(pith_engine_create(model, &params, &refused, &err), &err, PITH_INVALID,
           "keep: a budget of 16384 bytes is not more than");
}

/* Read policies read all of a window, and every lane whole where the budget is large. */
TEST(read_policies_leave_windows_alone)
{
    const char *const reads[] = {"quoka:queries=2,chunk=8", "keydiff:chunk=8", "snapkv:chunk=8",
                                 "sampleattention:chunk=8", "quest:chunk=8,phase=both"};
    pith_engine *e = policies_of(NULL, NULL, NULL);
    pith_seq *seq = seq_make(e);
    read_and_go_on(seq);
    uint64_t full = hash_of(seq);
    pith_seq_free(seq);
    pith_engine_free(e);
    for (size_t i = 0; i < PI_LEN(reads); i++)
        for (int32_t budget = 16; budget <= 256; budget *= 16) {
            pith_read_stats stats;
            char text[128];
            snprintf(text, sizeof(text), "%s,dense-layers=0,budget=%d", reads[i], budget);
            e = policies_of(NULL, text, NULL);
            seq = seq_make(e);
            read_and_go_on(seq);
            pith_seq_read_stats(seq, &stats);
            if (budget > N_TOKEN ? hash_of(seq) != full || stats.sparse > 0 : stats.sparse == 0)
                fail_msg("%s: %lld chunks read a part", text, (long long)stats.sparse);
            pith_seq_free(seq);
            pith_engine_free(e);
        }
}

TEST(recall_brings_back_to_lanes_without_a_window)
{
    pith_engine *e =
        policies_of("streaming:budget=40,sinks=2,slack=8", NULL, "kv:ram=1MiB,take=8,last=8");
    pith_seq *seq = seq_make(e);
    pith_recall_stats stats;
    read_and_go_on(seq);
    pith_seq_recall_stats(seq, &stats);
    assert_true(stats.guests > 0);
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* Layers that do not rotate their keys have statistics, too; windows do not. */
TEST(statistics_are_of_lanes_without_a_window)
{
    pith_calibrate_params params;
    pith_engine *e = policies_of(NULL, NULL, NULL);
    pith_stats *stats = NULL;
    pith_stats_info info;
    double at[] = {1, 100}, curve[2];
    pith_calibrate_params_default(&params);
    check(pith_calibrate(e, tokens, N_TOKEN, &params, &stats, &err), &err);
    pith_stats_get_info(stats, &info);
    assert_int_equal(info.n_layer, N_FULL);
    check(pith_stats_curve(stats, model, 1, 0, at, 2, curve, &err), &err);
    assert_true(curve[0] == curve[1]); /* no distance counts */
    check(pith_stats_curve(stats, model, 0, 0, at, 2, curve, &err), &err);
    assert_true(curve[0] != curve[1]);
    check(pith_stats_save(stats, in_folder("made-up.stats"), &err), &err);
    pith_stats_free(stats);
    pith_engine_free(e);
    char text[4352];
    snprintf(text, sizeof(text), "triattention:budget=40,slack=8,stats=%s",
             in_folder("made-up.stats"));
    e = policies_of(text, NULL, NULL);
    pith_seq *seq = seq_make(e);
    read_and_go_on(seq);
    check_kept(seq, "triattention with statistics");
    pith_seq_free(seq);
    pith_engine_free(e);
}

/* Nothing is projected for a window, which has no base. */
TEST(bases_are_of_lanes_without_a_window)
{
    pith_projection_params params;
    pith_projection *bases = NULL;
    pith_projection_info info;
    pith_read_stats stats;
    char text[4352];
    pith_engine *e = policies_of(NULL, NULL, NULL);
    pith_projection_params_default(&params);
    check(pith_projection_fit(e, tokens, N_TOKEN, &params, &bases, &err), &err);
    pith_projection_get_info(bases, &info);
    assert_int_equal(info.n_layer, N_FULL);
    check(pith_projection_save(bases, in_folder("made-up.loki"), &err), &err);
    pith_projection_free(bases);
    pith_engine_free(e);
    snprintf(text, sizeof(text), "loki:phase=both,chunk=8,dense-layers=0,budget=16,projection=%s",
             in_folder("made-up.loki"));
    e = policies_of(NULL, text, NULL);
    pith_seq *seq = seq_make(e);
    read_and_go_on(seq);
    pith_seq_read_stats(seq, &stats);
    assert_true(stats.sparse > 0);
    pith_seq_free(seq);
    pith_engine_free(e);
}
