/*
 * test_load.c - pith_model_load on a small network made here: whole, damaged at random, and with
 * every allocation failing in turn. Also with one mistake at a time in its metadata or tensors,
 * each with its own sentence. Mistakes of the container itself are in test_gguf_bad.c.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "base/mem.h"
#include "file/gguf.h"
#include "file/sum.h"
#include "gguf_bytes.h"
#include "model/model.h"
#include "pith/ranks.h"

#define N_MUTATION 2000
#define N_TOKEN 10

/* ---- the file ---- */

/* The difference from a correct file. Zero: nothing. */
struct mistake {
    const char *drop;   /* the key or tensor of this name is left out */
    const char *key;    /* this key has another value, */
    uint64_t value;     /* of 4 or 8 bytes, */
    uint32_t type;      /* of this type; 0: u32 */
    const char *text;   /* or this text */
    const char *tensor; /* this tensor has */
    uint64_t ne[2];     /* other dimensions, 0: as it should, */
    uint32_t dtype;     /* and another type */
    bool fused;         /* q, k, v are one tensor, and gate and up are (no mistake) */
    bool huge;          /* there are two more, of 2^62 weights each, of an unknown type */
};

struct counts {
    uint64_t n_key, n_tensor;
};

static bool is(const char *a, const char *b)
{
    return a != NULL && strcmp(a, b) == 0;
}

/* Puts a key with its value, or with the mistake's value. */
static void put_number(struct bytes *b, const struct mistake *m, struct counts *n, const char *key,
                       uint32_t type, uint64_t value)
{
    if (is(m->drop, key))
        return;
    n->n_key++;
    if (is(m->key, key) && m->text != NULL) {
        put_key(b, key, PI_GGUF_STRING);
        put_text(b, m->text);
        return;
    }
    if (is(m->key, key)) {
        value = m->value;
        type = m->type != 0 ? m->type : type;
    }
    put_key(b, key, type);
    put_int(b, value, type == PI_GGUF_U64 ? 8 : 4);
}

static void put_shape(struct bytes *b, const struct mistake *m, struct counts *n)
{
    if (!is(m->drop, "general.architecture")) {
        put_key(b, "general.architecture", PI_GGUF_STRING);
        put_text(b, is(m->key, "general.architecture") ? m->text : "llama");
        n->n_key++;
    }
    put_number(b, m, n, "llama.block_count", PI_GGUF_U32, 1);
    put_number(b, m, n, "llama.embedding_length", PI_GGUF_U32, 32);
    put_number(b, m, n, "llama.feed_forward_length", PI_GGUF_U32, 64);
    put_number(b, m, n, "llama.context_length", PI_GGUF_U32, 128);
    put_number(b, m, n, "llama.attention.head_count", PI_GGUF_U32, 4);
    put_number(b, m, n, "llama.attention.head_count_kv", PI_GGUF_U32, 2);
    put_number(b, m, n, "llama.attention.layer_norm_rms_epsilon", PI_GGUF_F32, 0x3727c5ac);
    put_number(b, m, n, "llama.rope.dimension_count", PI_GGUF_U32, 8);
    put_number(b, m, n, "llama.rope.freq_base", PI_GGUF_F32, 0x461c4000); /* 10000 */
    if (is(m->key, "llama.expert_count") || is(m->key, "llama.rope.scaling.type"))
        put_number(b, m, n, m->key, PI_GGUF_U32, 0);
}

static void put_vocab(struct bytes *b, struct counts *n)
{
    static const char *const texts[N_TOKEN] = {"<unk>", "<s>", "</s>", "<0x0A>", "<0x41>",
                                               "a",     "b",   "ab",   "c",      "abc"};
    static const uint32_t types[N_TOKEN] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1};
    put_key(b, "tokenizer.ggml.model", PI_GGUF_STRING);
    put_text(b, "llama");
    put_key(b, "tokenizer.ggml.tokens", PI_GGUF_ARRAY);
    put_u32(b, PI_GGUF_STRING);
    put_u64(b, N_TOKEN);
    for (int i = 0; i < N_TOKEN; i++)
        put_text(b, texts[i]);
    put_key(b, "tokenizer.ggml.scores", PI_GGUF_ARRAY);
    put_u32(b, PI_GGUF_F32);
    put_u64(b, N_TOKEN);
    put_zeros(b, 4 * N_TOKEN);
    put_key(b, "tokenizer.ggml.token_type", PI_GGUF_ARRAY);
    put_u32(b, PI_GGUF_I32);
    put_u64(b, N_TOKEN);
    for (int i = 0; i < N_TOKEN; i++)
        put_u32(b, types[i]);
    n->n_key += 4;
}

static void put_tensors(struct bytes *b, const struct mistake *m, struct counts *n, size_t *data)
{
    static const struct {
        const char *name;
        uint64_t ne0, ne1;
        int8_t fused; /* 1: only in a file with whole tensors, -1: only in one without */
    } tensors[] = {
        {"token_embd.weight", 32, N_TOKEN, 0}, {"output_norm.weight", 32, 0, 0},
        {"blk.0.attn_norm.weight", 32, 0, 0},  {"blk.0.attn_qkv.weight", 32, 64, 1},
        {"blk.0.attn_q.weight", 32, 32, -1},   {"blk.0.attn_k.weight", 32, 16, -1},
        {"blk.0.attn_v.weight", 32, 16, -1},   {"blk.0.attn_output.weight", 32, 32, 0},
        {"blk.0.ffn_norm.weight", 32, 0, 0},   {"blk.0.ffn_gate.weight", 32, 64, -1},
        {"blk.0.ffn_up.weight", 32, 64, -1},   {"blk.0.ffn_up.weight", 32, 128, 1},
        {"blk.0.ffn_down.weight", 64, 32, 0},
    };
    *data = 0;
    for (size_t i = 0; i < PI_LEN(tensors); i++) {
        const bool wrong = is(m->tensor, tensors[i].name);
        uint64_t ne0 = wrong && m->ne[0] != 0 ? m->ne[0] : tensors[i].ne0;
        uint64_t ne1 = wrong && m->ne[1] != 0 ? m->ne[1] : tensors[i].ne1;
        if (is(m->drop, tensors[i].name) || tensors[i].fused == (m->fused ? -1 : 1))
            continue;
        put_tensor(b, tensors[i].name, ne0, ne1, wrong ? m->dtype : 0, *data);
        *data += pi_align((size_t)(4 * ne0 * pi_max(1, (int64_t)ne1)), 32);
        n->n_tensor++;
    }
    for (int i = 0; m->huge && i < 2; i++) {
        put_tensor(b, i == 0 ? "huge.0" : "huge.1", 1ull << 31, 1ull << 31, 99, *data);
        n->n_tensor++;
    }
}

static void put_model(struct bytes *b, const struct mistake *m)
{
    struct counts n = {0};
    struct bytes head;
    size_t data;
    put_header(b, 3, 0, 0);
    put_shape(b, m, &n);
    put_vocab(b, &n);
    put_tensors(b, m, &n, &data);
    put_header(&head, 3, n.n_tensor, n.n_key);
    memcpy(b->data, head.data, head.len);
    put_padding(b, 32);
    size_t at = b->len;
    put_zeros(b, data);
    for (size_t i = 0; i < data / 4; i++) { /* each weight is another one */
        float weight = (float)(i + 1);
        memcpy(b->data + at + 4 * i, &weight, 4);
    }
}

/* ---- loading ---- */

static int64_t memory_used(void)
{
    int64_t sum = 0;
    for (int tag = 0; tag < PI_MEM_N_TAG; tag++)
        sum += pi_mem_used((enum pi_mem_tag)tag);
    return sum;
}

/* Loads the bytes through a file in memory. */
static pith_status open_model(const struct bytes *b, bool vocab_only, pith_model **model,
                              pith_error *why)
{
    char path[64];
    pith_model_params params;
    const int fd = memfd_create("model", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, b->data, b->len), b->len);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    pith_model_params_default(&params);
    params.n_thread = 1;
    params.vocab_only = vocab_only;
    *why = (pith_error){0};
    const pith_status status = pith_model_load(path, &params, model, why);
    close(fd);
    return status;
}

/* Frees the model again; its description may be wanted. */
static pith_status load_and_tell(const struct bytes *b, bool vocab_only, pith_model_info *info,
                                 pith_error *why)
{
    pith_model *model = NULL;
    const pith_status status = open_model(b, vocab_only, &model, why);
    if (status == PITH_OK && info != NULL)
        pith_model_get_info(model, info);
    pith_model_free(model);
    return status;
}

static pith_status load(const struct bytes *b, bool vocab_only, pith_error *why)
{
    return load_and_tell(b, vocab_only, NULL, why);
}

TEST(whole_model_loads)
{
    static struct bytes b;
    put_model(&b, &(struct mistake){0});
    for (int vocab_only = 0; vocab_only <= 1; vocab_only++)
        if (load(&b, vocab_only, &err) != PITH_OK)
            fail_msg("%s", err.message);
}

/* Of all matrices, as they were packed. */
static uint64_t hash_of_weights(const struct mistake *m)
{
    static struct bytes b;
    pith_model *model = NULL;
    put_model(&b, m);
    if (open_model(&b, false, &model, &err) != PITH_OK)
        fail_msg("%s", err.message);
    uint64_t hash = pi_sum_of(model->weights, model->weights_size);
    pith_model_free(model);
    return hash;
}

/* The tensors' data lie in the file in the same order, so that only their names differ. */
TEST(whole_tensors_are_their_rows)
{
    uint64_t apart = hash_of_weights(&(struct mistake){0});
    assert_true(hash_of_weights(&(struct mistake){.fused = true}) == apart);
}

/* The size of weights of an unknown type is unknown, so a file may claim any number of them. */
TEST(refuses_weights_beyond_counting)
{
    static struct bytes b;
    put_model(&b, &(struct mistake){.huge = true});
    pith_model_info info = {0};
    if (load_and_tell(&b, true, &info, &err) != PITH_OK)
        fail_msg("%s", err.message);
    assert_true(info.n_param == INT64_MAX);
}

/* ---- mistakes ---- */

static const struct {
    struct mistake m;
    pith_status status;
    const char *sentence;
} mistakes[] = {
    {{.key = "general.architecture", .text = "mamba"},
     PITH_UNSUPPORTED,
     "general.architecture \"mamba\" is not supported (llama, qwen2, qwen3, "},
    {{.drop = "general.architecture"},
     PITH_UNSUPPORTED,
     "general.architecture \"\" is not supported (llama, qwen2, qwen3, "},
    {{.drop = "llama.block_count"}, PITH_FORMAT, "llama.block_count is missing"},
    {{.drop = "llama.attention.head_count"}, PITH_FORMAT, "llama.attention.head_count is missing"},
    {{.drop = "llama.attention.layer_norm_rms_epsilon"},
     PITH_FORMAT,
     "llama.attention.layer_norm_rms_epsilon is missing"},
    {{.key = "llama.block_count", .value = 0},
     PITH_FORMAT,
     "llama.block_count: 0 is not in 1..4096"},
    {{.key = "llama.block_count", .value = 4000000000u},
     PITH_FORMAT,
     "llama.block_count: 4000000000 is not in 1..4096"},
    {{.key = "llama.block_count", .value = 2},
     PITH_FORMAT,
     "tensor \"blk.1.attn_norm.weight\" is missing"},
    {{.key = "llama.block_count", .value = 1ull << 40, .type = PI_GGUF_U64},
     PITH_FORMAT,
     "key \"llama.block_count\": the value 1099511627776 is too large"},
    {{.key = "llama.block_count", .text = "1"},
     PITH_FORMAT,
     "key \"llama.block_count\": the type is string, not an integer"},
    {{.key = "llama.embedding_length", .value = 64},
     PITH_FORMAT,
     "shape [10][32] where the metadata asks for [10][64]"},
    {{.key = "llama.attention.head_count", .value = 3},
     PITH_FORMAT,
     "head_count_kv: 2 does not divide the 3 query heads"},
    {{.key = "llama.attention.head_count_kv", .value = 1},
     PITH_FORMAT,
     "shape [16][32] where the metadata asks for [8][32]"},
    {{.key = "llama.rope.dimension_count", .value = 7},
     PITH_FORMAT,
     "llama.rope.dimension_count: 7 is odd or above the head size 8"},
    {{.key = "llama.rope.freq_base", .value = 0},
     PITH_FORMAT,
     "llama.rope.freq_base: base 0 must be positive"},
    {{.key = "llama.rope.freq_base", .value = 0x7f800000},
     PITH_FORMAT,
     "key \"llama.rope.freq_base\": the value inf is not finite"},
    {{.key = "llama.rope.scaling.type", .text = "ntk"},
     PITH_UNSUPPORTED,
     "\"ntk\" is not supported (none, linear, yarn, longrope are)"},
    {{.key = "llama.expert_count", .value = 8},
     PITH_UNSUPPORTED,
     "llama.expert_count: a mixture of 8 experts is not supported"},
    {{.drop = "token_embd.weight"}, PITH_FORMAT, "tensor \"token_embd.weight\" is missing"},
    {{.drop = "output_norm.weight"}, PITH_FORMAT, "tensor \"output_norm.weight\" is missing"},
    {{.drop = "blk.0.ffn_up.weight"}, PITH_FORMAT, "tensor \"blk.0.ffn_up.weight\" is missing"},
    {{.drop = "blk.0.ffn_gate.weight"},
     PITH_FORMAT,
     "tensor \"blk.0.ffn_gate.weight\" is missing, and \"blk.0.ffn_up.weight\" has 64 rows, not "
     "the 128 with it"},
    {{.fused = true, .drop = "blk.0.attn_qkv.weight"},
     PITH_FORMAT,
     "tensor \"blk.0.attn_q.weight\" is missing"},
    {{.fused = true, .tensor = "blk.0.attn_qkv.weight", .ne = {32, 63}},
     PITH_FORMAT,
     "tensor \"blk.0.attn_q.weight\" is missing, and \"blk.0.attn_qkv.weight\" has 63 rows, not "
     "the 64 with it"},
    {{.fused = true, .tensor = "blk.0.attn_qkv.weight", .ne = {16, 64}},
     PITH_FORMAT,
     "tensor \"blk.0.attn_q.weight\": shape [32][16] where the metadata asks for [32][32]"},
    {{.fused = true, .tensor = "blk.0.ffn_up.weight", .dtype = 99},
     PITH_UNSUPPORTED,
     "tensor \"blk.0.ffn_gate.weight\": weight type 99 is not supported"},
    {{.tensor = "blk.0.ffn_down.weight", .ne = {32, 64}},
     PITH_FORMAT,
     "tensor \"blk.0.ffn_down.weight\": shape [64][32] where the metadata asks for [32][64]"},
    {{.tensor = "blk.0.attn_norm.weight", .ne = {16, 0}},
     PITH_FORMAT,
     "tensor \"blk.0.attn_norm.weight\": shape"},
    {{.tensor = "blk.0.attn_q.weight", .dtype = 99},
     PITH_UNSUPPORTED,
     "tensor \"blk.0.attn_q.weight\": weight type 99 is not supported"},
    {{.tensor = "blk.0.ffn_norm.weight", .dtype = 8},
     PITH_UNSUPPORTED,
     "tensor \"blk.0.ffn_norm.weight\": type 8 is not supported for a vector (F32, F16, BF16 are)"},
};

TEST(each_mistake_has_its_sentence)
{
    static struct bytes b;
    const int64_t used = memory_used();
    for (size_t i = 0; i < PI_LEN(mistakes); i++) {
        put_model(&b, &mistakes[i].m);
        pith_status status = load(&b, false, &err);
        if (strstr(err.message, mistakes[i].sentence) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", err.message, mistakes[i].sentence);
        assert_int_equal(status, mistakes[i].status);
        assert_int_equal(err.status, status);
        assert_int_equal(memory_used(), used);
    }
}

/* ---- damage and memory ---- */

/* One to three acts of damage, three of four in the part before the weights. */
static void damage(struct bytes *b, size_t head_len, uint64_t *rng)
{
    for (uint64_t n = 1 + rng_below(rng, 3); n > 0; n--) {
        const size_t at = (size_t)rng_below(rng, rng_below(rng, 4) ? head_len : b->len);
        switch (rng_below(rng, 4)) {
        case 0:
            b->data[at] ^= (uint8_t)(1u << rng_below(rng, 8));
            break;
        case 1:
            b->data[at] = (uint8_t)rng_next(rng);
            break;
        case 2:
            memset(b->data + at, rng_below(rng, 2) ? 0xff : 0,
                   (size_t)pi_min(4, (int64_t)(b->len - at)));
            break;
        default:
            memmove(b->data + at, b->data + rng_below(rng, at + 1),
                    (size_t)pi_min(16, (int64_t)(b->len - at)));
        }
    }
    if (rng_below(rng, 8) == 0)
        b->len = 1 + (size_t)rng_below(rng, b->len);
}

/* Of ranks, before a file is read. */
TEST(refuses_parts_that_there_are_not)
{
    const pith_ranks_info as = {.n_rank = 2, .split = (pith_split)3};
    pith_ranks_plan plan;
    assert_int_equal(pith_ranks_estimate("nowhere", &as, &plan, &err), PITH_INVALID);
    assert_string_equal(err.message, "split: 3 is not in 0..2");
    assert_int_equal(pith_ranks_divide((pith_split)-1, NULL, 0, &err), PITH_INVALID);
    assert_non_null(strstr(err.message, "split: "));
}

TEST(damaged_models_are_safe)
{
    static struct bytes whole, b;
    struct pi_gguf g;
    uint64_t rng = 11;
    int n_refused = 0;
    const int64_t used = memory_used();
    put_model(&whole, &(struct mistake){0});
    assert_int_equal(pi_gguf_parse(&g, whole.data, whole.len, "whole", &err), PITH_OK);
    const size_t head_len = g.data_offset;
    pi_gguf_free(&g);
    for (int i = 0; i < N_MUTATION; i++) {
        b = whole;
        damage(&b, head_len, &rng);
        const pith_status status = load(&b, i % 8 == 0, &err);
        if (status != PITH_OK) {
            n_refused++;
            assert_int_equal(err.status, status);
            assert_true(strlen(err.message) > 10);
        }
        assert_int_equal(memory_used(), used);
    }
    assert_in_range(n_refused, N_MUTATION / 10, N_MUTATION - N_MUTATION / 10);
}

TEST(each_allocation_may_fail)
{
    static struct bytes b;
    const int64_t used = memory_used();
    pith_status status = PITH_NOMEM;
    int64_t n = 0;
    put_model(&b, &(struct mistake){0});
    while (status == PITH_NOMEM) {
        n++;
        pi_mem_fail_at(n, n % 2 == 0);
        status = load(&b, false, &err);
        pi_mem_fail_at(0, false);
        assert_int_equal(memory_used(), used);
        if (status == PITH_NOMEM)
            assert_non_null(strstr(err.message, "no memory"));
    }
    if (status != PITH_OK)
        fail_msg("allocation %lld: %s", (long long)n, err.message);
    assert_true(n > 20);
}
