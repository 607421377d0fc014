/*
 * fuzz_gguf.c - the GGUF reader on any bytes, and what reads its result: items, typed reads, rotary
 * frequencies, the vocabulary. A finding is a sanitizer's report, a leak, or a refusal without a
 * sentence.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "file/gguf.h"
#include "model/load.h"
#include "text/vocab/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink; /* keeps reads from being optimised away */

static void touch_key(const struct pi_gguf *g, const struct pi_gguf_kv *kv)
{
    char key[128] = {0};
    uint32_t u;
    float f;
    bool b;
    struct pi_str s;
    for (uint64_t i = 0; i < kv->n_item; i++) {
        if (kv->item_type == PI_GGUF_STRING) {
            s = pi_gguf_item_str(kv, i);
            sink += s.len > 0 ? (uint8_t)s.data[0] + (uint8_t)s.data[s.len - 1] : 0;
        } else if (kv->item_type == PI_GGUF_F32 || kv->item_type == PI_GGUF_F64) {
            sink += pi_gguf_item_f32(kv, i) > 0;
        } else {
            sink += (uint64_t)pi_gguf_item_int(kv, i);
        }
    }
    if (kv->key.len >= sizeof(key))
        return;
    memcpy(key, kv->key.data, kv->key.len);
    if (pi_gguf_find(g, key) != kv)
        abort();
    sink += (uint64_t)(pi_gguf_u32(g, key, &u, NULL) + pi_gguf_f32(g, key, &f, NULL) +
                       pi_gguf_bool(g, key, &b, NULL) + pi_gguf_str(g, key, &s, NULL));
}

static void touch_tensor(const struct pi_gguf_tensor *t)
{
    if (t->size > 0)
        sink += t->data[0] + t->data[t->size - 1];
}

/* A refusal must say something. */
static void check(pith_status status, const pith_error *err)
{
    if (status != PITH_OK && (err->message[0] == 0 || err->status != status))
        abort();
}

static void load_parts(const struct pi_gguf *g)
{
    struct pi_rope rope = {0};
    struct pi_vocab *vocab = NULL;
    pith_error err = {0};
    const struct pi_rope_keys keys = {.base = "freq_base",
                                      .preset = 10000,
                                      .adjacent = true,
                                      .n_rot = 64,
                                      .longrope = true,
                                      .log_multiplier = true,
                                      .n_ctx_train = 4096,
                                      .n_ctx = 4096};
    check(pi_rope_load(&rope, g, "llama", &keys, &err), &err);
    pi_rope_free(&rope);
    err = (pith_error){0};
    pith_status status = pi_vocab_load(g, 0, &vocab, &err);
    check(status, &err);
    if (status == PITH_OK)
        pi_vocab_free(vocab);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pi_gguf g;
    pith_error err = {0};
    const pith_status status = pi_gguf_parse(&g, data, size, "fuzz.gguf", &err);
    check(status, &err);
    if (status == PITH_OK) {
        for (int64_t i = 0; i < g.n_kv; i++)
            touch_key(&g, &g.kv[i]);
        for (int64_t i = 0; i < g.n_tensor; i++)
            touch_tensor(&g.tensor[i]);
        load_parts(&g);
    }
    pi_gguf_free(&g);
    if (pi_mem_used(PI_MEM_MODEL) != 0)
        abort();
    return 0;
}
