/*
 * test_latent.c - files of families with multi-head latent attention. An older file, in which one
 * matrix holds the heads' keys and values, gives the bits of a newer one with the same weights. It
 * checks a lane's entries and its taps, and that blocks after the layers change nothing.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>

#include "changed_file.h"
#include "engine/engine.h"
#include "pith/inspect.h"
#include "policy/keep/learn/importance_target.h"
#include "policy/keep/stats/stats.h"
#include "status.h"

TEST_GROUP(make_folder, remove_folder);

#define HEADS 3
#define N_ROT 8
#define NOPE 16
#define VALUE 20
#define RANK 32
#define N_TOKEN 40
#define N_VOCAB 50
#define SHAPE                                                                                      \
    "arch=deepseek2 layers=3 width=48 heads=3 head_dim=24 rot=8 rank=32 value_dim=20 "             \
    "query_rank=36 ff=64 experts=4 used=2 expert_ff=24 vocab=50 ctx=256"

/* ---- from an older file to a newer one ---- */

static bool is_matrix(struct pi_str name)
{
    const char end[] = ".attn_kv_b.weight";
    size_t n = sizeof(end) - 1;
    return name.len > n && memcmp(name.data + name.len - n, end, n) == 0;
}

static void put_lane_keys(struct pi_gguf_writer *w, const struct pi_gguf *g)
{
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = {
        {"deepseek2.attention.head_count_kv", 1},
        {"deepseek2.attention.key_length", RANK + N_ROT},
        {"deepseek2.attention.value_length", RANK},
        {"deepseek2.attention.key_length_mla", NOPE + N_ROT},
        {"deepseek2.attention.value_length_mla", VALUE},
    };
    for (int64_t i = 0; i < g->n_kv; i++) {
        bool other = false;
        for (size_t k = 0; k < PI_LEN(keys); k++)
            other = other || is_name(g->kv[i].key, keys[k].key);
        if (!other)
            check(pi_gguf_add_kv(w, &g->kv[i]), &err);
    }
    for (size_t k = 0; k < PI_LEN(keys); k++)
        check(pi_gguf_add_u32(w, keys[k].key, keys[k].value), &err);
}

/* out [HEADS][RANK][NOPE] and [HEADS][VALUE][RANK] of rows [HEADS][NOPE + VALUE][RANK]. */
static void split(const float *both, float *k, float *v)
{
    for (int h = 0; h < HEADS; h++) {
        const float *head = both + h * (NOPE + VALUE) * RANK;
        for (int r = 0; r < RANK; r++)
            for (int i = 0; i < NOPE; i++)
                *k++ = head[i * RANK + r];
        memcpy(v + h * VALUE * RANK, head + NOPE * RANK, VALUE * RANK * sizeof(*v));
    }
}

static void put_split(struct pi_gguf_writer *w, struct pi_new_file *file,
                      const struct pi_gguf_tensor *t, bool writing)
{
    static float both[HEADS * (NOPE + VALUE) * RANK], k[HEADS * RANK * NOPE],
        v[HEADS * VALUE * RANK];
    static char names[2][64];
    const int64_t ne_k[4] = {NOPE, RANK, HEADS, 1}, ne_v[4] = {RANK, VALUE, HEADS, 1};
    assert_int_equal(t->size, sizeof(both));
    memcpy(both, t->data, sizeof(both));
    split(both, k, v);
    for (int i = 0; i < 2; i++)
        snprintf(names[i], sizeof(names[i]), "%.*s%c_b.weight",
                 (int)(t->name.len - strlen("kv_b.weight")), t->name.data, i == 0 ? 'k' : 'v');
    struct pi_str name_k = {names[0], strlen(names[0])}, name_v = {names[1], strlen(names[1])};
    if (writing) {
        check(pi_gguf_write_tensor(w, file, k, sizeof(k), &err), &err);
        check(pi_gguf_write_tensor(w, file, v, sizeof(v), &err), &err);
    } else {
        check(pi_gguf_add_tensor(w, name_k, 3, ne_k, t->type, sizeof(k)), &err);
        check(pi_gguf_add_tensor(w, name_v, 3, ne_v, t->type, sizeof(v)), &err);
    }
}

static void put_all(struct pi_gguf_writer *w, struct pi_new_file *file, const struct pi_gguf *g,
                    bool writing)
{
    for (int64_t i = 0; i < g->n_tensor; i++) {
        const struct pi_gguf_tensor *t = &g->tensor[i];
        if (is_matrix(t->name))
            put_split(w, file, t, writing);
        else if (writing)
            check(pi_gguf_write_tensor(w, file, t->data, t->size, &err), &err);
        else
            check(pi_gguf_add_tensor(w, t->name, t->n_dim, t->ne, t->type, t->size), &err);
    }
}

static void make_newer(const char *older, const char *newer)
{
    struct pi_file file = {0};
    struct pi_gguf g = {0};
    struct pi_gguf_writer w = {0};
    struct pi_new_file out = {0};
    check(pi_file_map(older, &file, &err), &err);
    check(pi_gguf_parse(&g, file.data, file.size, "older", &err), &err);
    put_lane_keys(&w, &g);
    put_all(&w, &out, &g, false);
    check(pi_new_file_open(newer, &out, &err), &err);
    check(pi_gguf_write_head(&w, &out, &err), &err);
    put_all(&w, &out, &g, true);
    check(pi_new_file_commit(&out, &err), &err);
    pi_gguf_writer_free(&w);
    pi_gguf_free(&g);
    pi_file_unmap(&file);
}

/* ---- a pass ---- */

static pith_engine *engine_of(const pith_model *m, const char *type)
{
    return engine_with(
        m,
        (pith_engine_params){
            .n_thread = 1, .page_len = 16, .kv_tokens = N_TOKEN, .type_k = type, .type_v = type});
}

/* The last tokens are evaluated alone, as generated ones are. */
static void read_text(pith_seq *seq)
{
    int32_t tokens[N_TOKEN];
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (7 * i * i + i) % N_VOCAB;
    check(pith_seq_eval(seq, tokens, N_TOKEN - 8, &err), &err);
    for (int32_t i = N_TOKEN - 8; i < N_TOKEN; i++)
        check(pith_seq_eval(seq, tokens + i, 1, &err), &err);
}

static uint64_t hash_of(const char *path)
{
    pith_model *m = model_at(path);
    pith_engine *e = engine_of(m, "f32");
    pith_seq *seq = seq_make(e);
    read_text(seq);
    uint64_t hash = pith_logits_hash(pith_seq_logits(seq), N_VOCAB);
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_model_free(m);
    return hash;
}

static const char *made(const char *words)
{
    return changed(words, &(struct change){0});
}

TEST(older_files_give_the_bits_of_newer_ones)
{
    uint64_t older = hash_of(made(SHAPE " old=1"));
    make_newer(in_folder("changed.gguf"), in_folder("newer.gguf"));
    assert_true(hash_of(in_folder("newer.gguf")) == older);
}

TEST(blocks_behind_the_layers_change_nothing)
{
    uint64_t with = hash_of(made(SHAPE " layers=4 mtp=1"));
    assert_true(hash_of(made(SHAPE)) == with);
}

/* ---- lanes ---- */

TEST(a_layer_has_one_lane_of_one_vector)
{
    pith_model_info info;
    pith_attention_info attention;
    pith_kv_stats stats;
    float key[RANK + N_ROT], value[RANK];
    pith_model *m = model_at(made(SHAPE));
    pith_model_get_info(m, &info);
    pith_model_get_attention(m, &attention);
    assert_int_equal(info.n_head, HEADS);
    assert_int_equal(info.n_head_kv, 1);
    assert_int_equal(info.head_dim_k, RANK + N_ROT);
    assert_int_equal(info.head_dim_v, RANK);
    assert_int_equal(attention.v_in_k, N_ROT);
    assert_true(fabs((double)attention.attn_scale - 1 / sqrt(NOPE + N_ROT)) < 1e-7);
    pith_engine *e = engine_of(m, "f16");
    pith_seq *seq = seq_make(e);
    read_text(seq);
    kv_lane_key(seq->memory.kv, 1, 0, 9, key);
    kv_lane_value(seq->memory.kv, 1, 0, 9, value);
    assert_memory_equal(key + N_ROT, value, sizeof(value));
    pith_engine_kv_stats(e, &stats);
    /* Three lanes of three pages of 16 entries. */
    assert_int_equal(stats.used_bytes, 3 * 3 * 16 * ((RANK + N_ROT) * 2 + 4));
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_model_free(m);
}

/* Checks the tap's row: with the query before rotation, the key before rotation gives the same
   scores, at one position. */
struct seen {
    int32_t n;
};

static void look_at(void *user, const struct pi_pass_tap_rows *rows)
{
    struct seen *seen = user;
    for (int32_t t = 0; t < rows->item->n_tok; t++) {
        const float *k = rows->k + t * (RANK + N_ROT), *v = rows->v + t * RANK;
        assert_memory_equal(k + N_ROT, v, RANK * sizeof(*v));
        for (int32_t h = 0; h < HEADS; h++) {
            size_t at = (size_t)(t * HEADS + h) * (RANK + N_ROT);
            double before = 0, after = 0;
            assert_memory_equal(rows->q + at + N_ROT, rows->q_pre + at + N_ROT,
                                RANK * sizeof(float));
            for (int32_t d = 0; d < N_ROT; d++) {
                before += (double)(rows->q_pre[at + (size_t)d] * rows->q_pre[at + (size_t)d]);
                after += (double)(rows->q[at + (size_t)d] * rows->q[at + (size_t)d]);
            }
            assert_true(fabs(before - after) <= 1e-4 * before);
        }
        seen->n++;
    }
}

TEST(a_tap_sees_the_vector_of_the_lane)
{
    struct seen seen = {0};
    pith_model *m = model_at(made(SHAPE));
    pith_engine *e = engine_of(m, "f32");
    pith_seq *seq = seq_make(e);
    check(pi_pass_set_tap(e->pass, &(struct pi_pass_tap){.fn = look_at, .user = &seen}, &err),
          &err);
    read_text(seq);
    assert_int_equal(seen.n, 3 * N_TOKEN);
    pith_seq_free(seq);
    pith_engine_free(e);
    pith_model_free(m);
}

/* ---- what policies are made of ---- */

/* Sums of the queries of layer 1, in the space of the lane. */
static void add_queries(void *user, const struct pi_pass_tap_rows *rows)
{
    double *sum = user; /* [HEADS][N_ROT + RANK] */
    for (int32_t t = 0; t < rows->item->n_tok && rows->layer == 1; t++)
        for (int32_t i = 0; i < HEADS * (RANK + N_ROT); i++)
            sum[i] += (double)rows->q_pre[t * HEADS * (RANK + N_ROT) + i];
}

TEST(statistics_are_of_the_heads_queries)
{
    pith_stats *stats = NULL;
    pith_calibrate_params params;
    double sum[HEADS][RANK + N_ROT] = {{0}};
    int32_t tokens[N_TOKEN];
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (7 * i * i + i) % N_VOCAB;
    pith_model *m = model_at(made(SHAPE));
    pith_engine *e = engine_of(m, "f32");
    pith_seq *seq = seq_make(e);
    check(pi_pass_set_tap(e->pass, &(struct pi_pass_tap){.fn = add_queries, .user = sum}, &err),
          &err);
    read_text(seq);
    check(pi_pass_set_tap(e->pass, NULL, &err), &err);
    pith_seq_free(seq);
    pith_calibrate_params_default(&params);
    check(pith_calibrate(e, tokens, N_TOKEN, &params, &stats, &err), &err);
    assert_int_equal(stats->n_pair, N_ROT / 2);
    assert_int_equal(stats->n_flat, RANK);
    for (int32_t h = 0; h < HEADS; h++) {
        struct stats_row row = stats_q(stats, 1, h);
        for (int32_t i = 0; i < N_ROT / 2; i++) {
            assert_true(fabs((double)row.re[i] - sum[h][2 * i] / N_TOKEN) < 1e-5);
            assert_true(fabs((double)row.im[i] - sum[h][2 * i + 1] / N_TOKEN) < 1e-5);
        }
        for (int32_t i = 0; i < RANK; i++)
            assert_true(fabs((double)row.flat[i] - sum[h][N_ROT + i] / N_TOKEN) < 1e-5);
    }
    pith_stats_free(stats);
    pith_engine_free(e);
    pith_model_free(m);
}

/* |Wo_h E_h v| in double, matrix by matrix. */
static double norm_of(const struct pi_layer *w, int32_t head, const float *v)
{
    struct pi_matrix expand = pi_matrix_slab(&w->latent.expand, head);
    float row[HEADS * VALUE > RANK ? HEADS * VALUE : RANK];
    double own[VALUE], square = 0;
    for (int32_t i = 0; i < VALUE; i++) {
        pi_matmul_unpack_row(&expand, i, row);
        own[i] = 0;
        for (int32_t r = 0; r < RANK; r++)
            own[i] += (double)row[r] * (double)v[r];
    }
    for (int32_t o = 0; o < w->latent.out.n_row; o++) {
        double sum = 0;
        pi_matmul_unpack_row(&w->latent.out, o, row);
        for (int32_t i = 0; i < VALUE; i++)
            sum += (double)row[head * VALUE + i] * own[i];
        square += sum * sum;
    }
    return sqrt(square);
}

TEST(takes_norms_of_values)
{
    struct importance_gram *gram = NULL;
    uint64_t rng = 5;
    float v[RANK];
    pith_model *m = model_at(made(SHAPE));
    check(importance_gram_create(m, 2, &gram, &err), &err);
    for (int32_t l = 0; l < 3; l++)
        for (int32_t h = 0; h < HEADS; h++) {
            for (int32_t r = 0; r < RANK; r++)
                v[r] = rng_float(&rng);
            double want = norm_of(&m->layer[l], h, v), got = importance_norm(gram, l, h, v);
            assert_true(want > 0 && fabs(got - want) < 1e-4 * want);
        }
    importance_gram_free(gram);
    pith_model_free(m);
}

/* ---- policies ---- */

static const char *const keeps[] = {"streaming",
                                    "random",
                                    "snapkv:window=8",
                                    "pyramidkv:window=8",
                                    "adakv:window=8",
                                    "tova",
                                    "rkv",
                                    "h2o",
                                    "vatp:sinks=2,window=8",
                                    "scissorhands",
                                    "raas",
                                    "lazyeviction:window=8",
                                    "knorm",
                                    "keydiff",
                                    "vnorm",
                                    "triattention:warmup=1",
                                    "expected",
                                    "longflow:prompt-window=8"};

static const char *const reads[] = {"quoka",       "sampleattention", "sparq",  "lessismore",
                                    "tidaldecode", "quest",           "snapkv", "keydiff"};

/* The last logits under a policy with `budget` entries. */
static uint64_t hash_under(const pith_model *m, const char *keep, const char *read, int32_t budget)
{
    pith_engine_params params;
    pith_engine *e = NULL;
    char text[128];
    pith_engine_params_default(&params);
    params.n_thread = 1;
    params.page_len = 16;
    params.chunk = read != NULL ? 128 : 8;
    params.kv_tokens = 4 * N_TOKEN;
    if (keep != NULL)
        snprintf(text, sizeof(text), "%s%cbudget=%d,slack=2", keep,
                 strchr(keep, ':') != NULL ? ',' : ':', budget);
    if (read != NULL)
        snprintf(text, sizeof(text), "%s:phase=both,dense-layers=0,gate=1,budget=%d", read, budget);
    params.keep = keep != NULL ? text : NULL;
    params.read = read != NULL ? text : NULL;
    pith_status status = pith_engine_create(m, &params, &e, &err);
    if (status != PITH_OK)
        fail_msg("%s: %s", text, err.message);
    pith_seq *seq = seq_make(e);
    read_text(seq);
    if (keep != NULL && kv_lane_len(seq->memory.kv, 2, 0) > budget + 2)
        fail_msg("%s: %d entries", text, kv_lane_len(seq->memory.kv, 2, 0));
    uint64_t hash = pith_logits_hash(pith_seq_logits(seq), N_VOCAB);
    pith_seq_free(seq);
    pith_engine_free(e);
    return hash;
}

/* A budget that holds the text changes no bit, of which PyramidKV gives some layers a small part. A
   smaller one is kept to, or changes the entries that are read. */
TEST(budgets_that_hold_the_text_change_no_bit)
{
    pith_model *m = model_at(made(SHAPE " layers=4"));
    uint64_t full = hash_under(m, NULL, NULL, 0);
    for (size_t i = 0; i < PI_LEN(keeps); i++) {
        if (hash_under(m, keeps[i], NULL, 100 * N_TOKEN) != full)
            fail_msg("%s: other logits under a budget that holds all", keeps[i]);
        if (hash_under(m, keeps[i], NULL, 31) == full)
            fail_msg("%s: the same logits where entries are gone", keeps[i]);
    }
    for (size_t i = 0; i < PI_LEN(reads); i++) {
        if (hash_under(m, NULL, reads[i], 64) != full)
            fail_msg("%s: other logits where all is read", reads[i]);
        if (hash_under(m, NULL, reads[i], 20) == full)
            fail_msg("%s: the same logits where little is read", reads[i]);
    }
    pith_model_free(m);
}
