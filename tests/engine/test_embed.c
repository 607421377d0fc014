/*
 * pith_embed: a text as one vector. The vector is compared with logits of the same text. In a model
 * whose output matrix W is F32, logits are W h for the normed hidden state h. So W times the vector
 * must have the direction of the pooled token's logits, or of their sum for a mean. Also: the same
 * bits for any chunk, threads and other sequences, refusals, and memory that runs out. And the
 * vectors of texts in the store of recall.
 */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <sqlite3.h>
#include <string.h>

#include "base/mem.h"
#include "engine/text_embed.h"
#include "file/gguf.h"
#include "folder.h"
#include "model_maker.h"
#include "policy/recall/text_store.h"
#include "testing.h"
#include "pith/inspect.h"

#define N_TOKEN 150
#define N_EMBD 96
#define N_VOCAB 333

static int32_t tokens[N_TOKEN];

static void set_up(void)
{
    uint64_t seed = 3;
    for (int32_t i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)rng_below(&seed, N_VOCAB);
    make_folder();
}

TEST_GROUP(set_up, remove_folder);

static const char *make(const char *name, const char *words)
{
    struct model_spec spec;
    const char *path = in_folder(name);
    model_spec_default(&spec);
    check(model_spec_parse(&spec,
                           "arch=qwen3 layers=2 width=96 heads=4 kv_heads=2 head_dim=32"
                           " ff=160 seed=5 ctx=512",
                           &err),
          &err);
    check(model_spec_parse(&spec, words, &err), &err);
    check(model_make(&spec, path, &err), &err);
    return path;
}

static pith_model *load(const char *path)
{
    return model_at(path);
}

static pith_engine *start(const pith_model *model, int32_t chunk, int32_t n_thread)
{
    return engine_with(model,
                       (pith_engine_params){.chunk = chunk, .n_thread = n_thread, .page_len = 16});
}

static void embed(pith_engine *e, int32_t n, float *out)
{
    check(pith_embed(e, tokens, n, out, &err), &err);
}

/* ---- comparison with logits ---- */

struct collected {
    int32_t first, last; /* positions that are summed */
    double sum[N_VOCAB];
};

static bool collect(void *user, pith_seq *seq, int32_t pos, const float *logits)
{
    struct collected *c = user;
    (void)seq;
    for (int32_t i = 0; i < N_VOCAB && pos >= c->first && pos <= c->last; i++)
        c->sum[i] += logits[i];
    return true;
}

static void sum_logits(pith_engine *e, int32_t n, struct collected *c)
{
    pith_seq *seq = seq_make(e);
    pith_batch_item item = {.seq = seq,
                            .tokens = tokens,
                            .n_token = n,
                            .logits = PITH_LOGITS_ALL,
                            .on_logits = collect,
                            .user = c};
    check(pith_batch_eval(e, &item, 1, NULL, NULL, &err), &err);
    pith_seq_free(seq);
}

/* 1 - cosine of W times the vector with the sum. */
static double distance(const char *path, const float *vector, const double *sum)
{
    struct pi_file file = {0};
    struct pi_gguf g;
    double xy = 0, xx = 0, yy = 0;
    check(pi_file_map(path, &file, &err), &err);
    check(pi_gguf_parse(&g, file.data, file.size, path, &err), &err);
    const struct pi_gguf_tensor *w = pi_gguf_find_tensor(&g, "output.weight");
    assert_non_null(w);
    assert_int_equal(w->size, N_VOCAB * N_EMBD * sizeof(float));
    for (int32_t i = 0; i < N_VOCAB; i++) {
        double x = 0;
        for (int32_t j = 0; j < N_EMBD; j++) {
            float weight;
            memcpy(&weight, w->data + ((size_t)i * N_EMBD + (size_t)j) * sizeof(weight),
                   sizeof(weight));
            x += (double)weight * vector[j];
        }
        xy += x * sum[i];
        xx += x * x;
        yy += sum[i] * sum[i];
    }
    pi_gguf_free(&g);
    pi_file_unmap(&file);
    return 1 - xy / sqrt(xx * yy);
}

static void check_pooling(const char *words, bool first, bool last)
{
    const char *path = make("pooled.gguf", words);
    pith_model *model = load(path);
    pith_engine *e = start(model, 64, 1);
    for (int32_t n = 1; n <= N_TOKEN; n += n < 3 ? 1 : 49) {
        static struct collected c;
        float vector[N_EMBD];
        double square = 0;
        c = (struct collected){.first = last ? n - 1 : 0, .last = first ? 0 : n - 1};
        embed(e, n, vector);
        sum_logits(e, n, &c);
        for (int32_t i = 0; i < N_EMBD; i++)
            square += (double)vector[i] * vector[i];
        if (fabs(square - 1) > 1e-6)
            fail_msg("%s, %d tokens: length^2 %.9f", words, n, square);
        double d = distance(path, vector, c.sum);
        if (!(d < 1e-10))
            fail_msg("%s, %d tokens: 1 - cosine is %g", words, n, d);
    }
    pith_engine_free(e);
    pith_model_free(model);
}

TEST(takes_the_last_token)
{
    check_pooling("pooling=3", false, true);
}

TEST(unsaid_is_last)
{
    check_pooling("pooling=0", false, true);
    pith_model *model = load(make("unsaid.gguf", ""));
    pith_engine *e = start(model, 64, 1);
    float vector[N_EMBD];
    err = (pith_error){.status = PITH_OK};
    embed(e, 3, vector);
    assert_int_equal(err.status, PITH_OK); /* keys that are not there are no error */
    assert_string_equal(err.message, "");
    pith_engine_free(e);
    pith_model_free(model);
}

TEST(takes_the_mean_of_tokens)
{
    check_pooling("pooling=1", false, false);
}

TEST(takes_the_first_token)
{
    check_pooling("pooling=2", true, false);
}

/* ---- the same bits ---- */

TEST(chunks_and_threads_change_no_bit)
{
    static const int32_t chunks[] = {1, 7, 64, 149, 512};
    for (int32_t pooling = 1; pooling <= 3; pooling++) {
        char words[32];
        float reference[N_EMBD], vector[N_EMBD];
        snprintf(words, sizeof(words), "type=Q8_0 pooling=%d", pooling);
        pith_model *model = load(make("bits.gguf", words));
        for (size_t i = 0; i < PI_LEN(chunks); i++) {
            pith_engine *e = start(model, chunks[i], 1 + (int32_t)i % 3);
            pith_seq *other = seq_make(e);
            check(pith_seq_eval(other, tokens + 9, 40, &err), &err);
            uint64_t before = pith_logits_hash(pith_seq_logits(other), N_VOCAB);
            embed(e, N_TOKEN, i == 0 ? reference : vector);
            if (i > 0)
                assert_memory_equal(vector, reference, sizeof(vector));
            embed(e, N_TOKEN, vector); /* and again */
            assert_memory_equal(vector, reference, sizeof(vector));
            /* Other sequences are unchanged, and no page is left. */
            assert_true(pith_logits_hash(pith_seq_logits(other), N_VOCAB) == before);
            assert_int_equal(pith_seq_length(other), 40);
            pith_kv_stats stats;
            pith_engine_kv_stats(e, &stats);
            assert_int_equal(stats.n_seq, 1);
            pith_seq_free(other);
            pith_engine_kv_stats(e, &stats);
            assert_int_equal(stats.used_bytes, 0);
            pith_engine_free(e);
        }
        pith_model_free(model);
    }
}

/* ---- refusals ---- */

static bool stop(void *user, const pith_tap_rows *rows)
{
    (void)user, (void)rows;
    return false;
}

TEST(refuses_bad_tokens_and_engines)
{
    pith_model *model = load(make("refused.gguf", "pooling=3"));
    pith_engine *e = start(model, 64, 1), *small = NULL, *keeping = NULL;
    pith_engine_params params;
    float vector[N_EMBD];
    int32_t bad[2] = {5, N_VOCAB};
    static int32_t many[513];
    expect(pith_embed(e, tokens, 0, vector, &err), &err, PITH_INVALID, "n_token 0");
    expect(pith_embed(e, bad, 2, vector, &err), &err, PITH_INVALID, "id 333");
    expect(pith_embed(e, many, 513, vector, &err), &err, PITH_CONTEXT, "513");
    expect(pith_embed(NULL, tokens, 1, vector, &err), &err, PITH_INVALID, "engine");
    check(pith_engine_set_tap(e, stop, NULL, &err), &err);
    expect(pith_embed(e, tokens, 5, vector, &err), &err, PITH_CANCELLED, "tap");
    check(pith_engine_set_tap(e, NULL, NULL, &err), &err);
    embed(e, 5, vector);
    pith_engine_params_default(&params);
    params.kv_tokens = 32;
    params.page_len = 16;
    check(pith_engine_create(model, &params, &small, &err), &err);
    embed(small, 32, vector);
    expect(pith_embed(small, tokens, 33, vector, &err), &err, PITH_KV_FULL, "");
    embed(small, 32, vector);
    params.kv_tokens = 0;
    params.keep = "knorm:budget=64";
    check(pith_engine_create(model, &params, &keeping, &err), &err);
    expect(pith_embed(keeping, tokens, 5, vector, &err), &err, PITH_INVALID, "keep");
    pith_engine_free(keeping);
    pith_engine_free(small);
    pith_engine_free(e);
    pith_model_free(model);
}

static void refuse_model(const char *words, const char *sentence)
{
    pith_model *model = load(make("odd.gguf", words));
    pith_engine *e = start(model, 64, 1);
    float vector[N_EMBD];
    expect(pith_embed(e, tokens, 5, vector, &err), &err, PITH_UNSUPPORTED, sentence);
    pith_engine_free(e);
    pith_model_free(model);
}

TEST(refuses_models_that_it_cannot_pool)
{
    refuse_model("pooling=4", "qwen3.pooling_type: 4");
    refuse_model("pooling=3 both=1", "qwen3.attention.causal: false");
}

TEST(failing_memory_is_told)
{
    pith_model *model = load(make("memory.gguf", "pooling=1"));
    pith_engine *e = start(model, 64, 1);
    float reference[N_EMBD], vector[N_EMBD];
    pith_status status = PITH_NOMEM;
    int32_t n = 0;
    embed(e, N_TOKEN, reference);
    int64_t used = pi_mem_used(PI_MEM_OTHER) + pi_mem_used(PI_MEM_TABLE);
    while (status != PITH_OK) {
        memset(vector, 0, sizeof(vector));
        pi_mem_fail_at(++n, false);
        status = pith_embed(e, tokens, N_TOKEN, vector, &err);
        pi_mem_fail_at(0, false);
        assert_true(status == PITH_OK || status == PITH_NOMEM);
        if (status != PITH_OK)
            assert_true(vector[0] == 0.0f && vector[N_EMBD - 1] == 0.0f);
        assert_int_equal(pi_mem_used(PI_MEM_OTHER) + pi_mem_used(PI_MEM_TABLE), used);
    }
    assert_true(n > 2);
    assert_memory_equal(vector, reference, sizeof(vector));
    pith_engine_free(e);
    pith_model_free(model);
}

/* ---- vectors beside words, in the store of recall as text ---- */

#define NANO PITH_SOURCE_DIR "/models/pith-nano.gguf" /* has a tokenizer */

static const char *make_embedding(const char *name, int32_t seed)
{
    struct model_spec spec;
    const char *path = in_folder(name);
    model_spec_default(&spec);
    strcpy(spec.arch, "qwen3");
    strcpy(spec.vocab_file, NANO);
    spec.pooling = 3;
    spec.width = 64;
    spec.heads = 2;
    spec.kv_heads = 1;
    spec.head_dim = 32;
    spec.seed = seed;
    check(model_make(&spec, path, &err), &err);
    return path;
}

static double cosine(struct text_embed *e, const char *a, const char *b)
{
    float x[64], y[64];
    double dot = 0;
    check(e->text(e, a, strlen(a), x, &err), &err);
    check(e->text(e, b, strlen(b), y, &err), &err);
    for (int32_t i = 0; i < 64; i++)
        dot += (double)x[i] * y[i];
    return dot;
}

static const char *const texts[] = {"the red bicycle", "a code and a code", "the key of the mill",
                                    "soup of carrots", "nothing"};

static int32_t count_rows(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int32_t n = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}

/* Every score is alpha * cosine + (1 - alpha) * BM25 between 0 and 1. */
static void check_fused(struct text_store *s, struct text_embed *e)
{
    const char *question = "code of the red mill";
    struct text_ranking r = {.top = 10, .floor = -1, .alpha = 0.3};
    double words[PI_LEN(texts)] = {0};
    struct text_hits hits = {0};
    check(text_store_find(s, "a", question, strlen(question), NULL, &r, 1000, &hits, &err), &err);
    for (int32_t i = 0; i < hits.n; i++)
        words[hits.hit[i].first / 10] = hits.hit[i].score;
    text_hits_free(&hits);
    check(text_store_find(s, "a", question, strlen(question), e, &r, 1000, &hits, &err), &err);
    assert_int_equal(hits.n, PI_LEN(texts));
    for (int32_t i = 0; i < hits.n; i++) {
        int32_t k = hits.hit[i].first / 10;
        double wanted = 0.3 * cosine(e, texts[k], question) + 0.7 * words[k];
        assert_true(fabs(hits.hit[i].score - wanted) < 1e-6);
        assert_true(i == 0 || hits.hit[i - 1].score >= hits.hit[i].score);
    }
    text_hits_free(&hits);
    check(text_store_find(s, "a", "xyzzy", 5, e, &r, 1000, &hits, &err), &err); /* cosine alone */
    assert_int_equal(hits.n, PI_LEN(texts));
    for (int32_t i = 0; i < hits.n; i++)
        assert_true(fabs(hits.hit[i].score - cosine(e, texts[hits.hit[i].first / 10], "xyzzy")) <
                    1e-6);
    text_hits_free(&hits);
}

TEST(recall_ranks_texts_by_words_and_vectors)
{
    const char *path = in_folder("vectors.db");
    struct text_embed *e = NULL, *other = NULL;
    struct text_store *s = NULL;
    struct text_hit hit[PI_LEN(texts)];
    struct text_change c = {.session = "a", .timeline = "a", .add = hit, .n_add = PI_LEN(texts)};
    int32_t n;
    check(pi_text_embed_open(make_embedding("e1.gguf", 1), 1, &e, &err), &err);
    check(pi_text_embed_open(make_embedding("e2.gguf", 2), 2, &other, &err), &err);
    assert_true(e->maker != other->maker);
    check(text_store_open(path, 0, 50, 1000, &s, &err), &err);
    for (size_t i = 0; i < PI_LEN(texts); i++)
        hit[i] = (struct text_hit){.first = 10 * (int32_t)i,
                                   .last = 10 * (int32_t)i + 5,
                                   .layer = -1,
                                   .text = (char *)texts[i]};
    check(text_store_change(s, &c, 1000, &n, &err), &err);
    check_fused(s, e);
    text_store_close(s);
    /* The file holds the vectors; another model does not use them. */
    assert_int_equal(count_rows(path, "SELECT count(*) FROM span WHERE length(vector) = 256"),
                     PI_LEN(texts));
    check(text_store_open(path, 0, 50, 1000, &s, &err), &err);
    check_fused(s, other);
    check_fused(s, e);
    text_store_close(s);
    e->close(e);
    other->close(other);
}

/* More tokens than it reads, none, or bytes that are no text: a vector all the same. */
TEST(every_text_has_a_vector)
{
    static char text[40000];
    struct text_embed *e = NULL;
    float vector[64], other[64];
    double square = 0;
    check(pi_text_embed_open(make_embedding("e3.gguf", 3), 1, &e, &err), &err);
    for (size_t i = 0; i + 4 < sizeof(text); i += 4)
        memcpy(text + i, i % 8 == 0 ? "the " : "red ", 4);
    check(e->text(e, text, strlen(text), vector, &err), &err);
    for (int32_t i = 0; i < 64; i++)
        square += (double)vector[i] * vector[i];
    assert_true(fabs(square - 1) < 1e-5);
    check(e->text(e, "the red", 7, other, &err), &err);
    assert_memory_not_equal(vector, other, sizeof(vector));
    /* Nothing except the tokens that the tokenizer adds. */
    check(e->text(e, "", 0, vector, &err), &err);
    check(e->text(e, "\xff", 1, other, &err), &err);
    e->close(e);
}
