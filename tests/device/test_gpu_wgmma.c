/*
 * Attention of prompts by Hopper's products of warp groups has the bits of other kernels, on the
 * emulation or on the card that PITH_TEST_DEVICE names. Lanes have more pages than a block has in
 * shared memory, and more than a chunk.
 */
#include <string.h>

#include "device/device.h"
#include "gpu_count.h"
#include "gpu_rig.h"
#include "kv/attend.h"
#include "kv/internal.h"
#include "kv/kv.h"
#include "kv/lane_internal.h"
#include "status.h"

enum { DIM = 128, N_HEAD = 2, N_GROUP = 3, ROW = N_HEAD * N_GROUP * DIM };
enum { MOST_LEN = 460, MOST_TOK = 150, THIRD = TEST_STRIDE > 1 /* of the cases */ };

/* Changes of a lane before it is read. */
enum deed { NOTHING, IS_CUT, IS_FOLDED, HAS_WINDOW, IS_LISTED, N_DEED };

struct form {
    enum kv_type k, v;
    int32_t page_len;
    bool beside;                    /* keys lie side by side */
    enum gpu_kernel kernel, listed; /* for all entries, and for a list of them */
};

static struct pi_device *device; /* that has the kernels; NULL: none has */

static void open_device(void)
{
    device = gpu();
    if (gpu_is_own()) {
        emulated_other()->wgmma = true;
        device = gpu_device_make(emulated_other());
        assert_non_null(device);
    }
    if (!gpu_device_wgmma(device, false))
        device = NULL;
}

static void close_device(void)
{
    if (gpu_is_own())
        gpu_device_free(device);
    free_gpu();
}

TEST_GROUP(open_device, close_device);

static void change(struct kv_seq *seq, int32_t len, enum deed deed)
{
    for (int32_t h = 0; h < N_HEAD; h++) {
        struct kv_lane *lane = kv_lane_at(seq, 0, h);
        int32_t slots[MOST_LEN], n = 0;
        for (int32_t i = 0; i < len && deed == IS_CUT; i++)
            if (i % 11 != 3 || i >= len - 50)
                slots[n++] = i;
        if (deed == IS_CUT)
            check(kv_seq_compact(seq, 0, h, slots, n, &err), &err);
        if (deed == IS_FOLDED)
            kv_lane_edit(lane)[1].n_folded = 2;
        if (deed == HAS_WINDOW)
            lane->window = 200;
    }
}

/* The last n_tok tokens of len, of all heads. */
struct calls {
    struct kv_seq *seq;
    struct pi_at q, out; /* [n_tok][ROW] */
    const float *sink;
    float cap;
    int32_t len, n_tok;
    const int32_t *slots;
};

static bool next_call(void *ctx, int64_t i, int32_t turn, int32_t thread, struct kv_attend_job *out)
{
    const struct calls *c = ctx;
    (void)thread;
    *out = (struct kv_attend_job){.seq = c->seq,
                                  .head = (int32_t)i,
                                  .n_tok = c->n_tok,
                                  .n_group = N_GROUP,
                                  .pos0 = c->len - c->n_tok,
                                  .slots = c->slots,
                                  .n_slot = c->slots != NULL ? c->len : 0,
                                  .q_at = pi_at_item(c->q, (size_t)i * N_GROUP * DIM),
                                  .q_stride = ROW,
                                  .scale = 0.0884f,
                                  .cap = c->cap,
                                  .sink = c->sink,
                                  .out_at = pi_at_item(c->out, (size_t)i * N_GROUP * DIM),
                                  .out_stride = ROW};
    return turn == 0;
}

static void check_case(const struct form *form, enum deed deed, int32_t len, int32_t n_tok)
{
    static float row[MOST_LEN * DIM * 2], q[MOST_TOK * ROW], out[2][MOST_TOK * ROW];
    static const float sinks[N_GROUP] = {0.5f, -1.0f, 3.0f};
    const struct pi_stream_shape shape = {.n_thread = 1, .widest = ROW, .attend_size = 1};
    const struct kv_geometry g = {.n_layer = 1,
                                  .n_head = N_HEAD,
                                  .dim_k = DIM,
                                  .dim_v = DIM,
                                  .page_len = form->page_len,
                                  .type_k = form->k,
                                  .type_v = form->v,
                                  .index = form->beside ? 0 : KV_INDEX_ROWS,
                                  .device = device};
    const size_t size = (size_t)n_tok * ROW * sizeof(float);
    struct kv_cache *cache;
    int32_t slots[MOST_LEN];
    uint64_t rng = 5;
    for (size_t i = 0; i < PI_LEN(row); i++)
        row[i] = rng_float(&rng);
    for (size_t i = 0; i < PI_LEN(q); i++)
        q[i] = 3 * rng_float(&rng);
    for (int32_t i = 0; i < MOST_LEN; i++)
        slots[i] = i;
    check(kv_cache_create(&g, 4 << 20, &cache, &err), &err);
    struct pi_stream *stream = device->open(device, &shape);
    assert_non_null(stream);
    struct calls c = {.q = device->alloc(device, PI_MEM_OTHER, size),
                      .out = device->alloc(device, PI_MEM_OTHER, size),
                      .sink = deed % 2 == 0 ? sinks : NULL,
                      .cap = deed == HAS_WINDOW ? 2.0f : 0.0f,
                      .len = len,
                      .n_tok = n_tok,
                      .slots = deed == IS_LISTED ? slots : NULL};
    const struct kv_attend_list list = {.ctx = &c, .n = N_HEAD, .work = 1, .job = next_call};
    check(kv_seq_create(cache, &c.seq, &err), &err);
    check(kv_seq_reserve(c.seq, len, &err), &err);
    for (int32_t h = 0; h < N_HEAD; h++)
        kv_seq_append(c.seq, 0, h, 0, len, row + 64 * h, DIM, row + MOST_LEN * DIM - 64 * h, DIM);
    change(c.seq, len, deed);
    device->upload(stream, q, size, c.q);
    for (int32_t on = 0; on < 2; on++) {
        const enum gpu_kernel kernel = deed == IS_LISTED ? form->listed : form->kernel;
        gpu_device_wgmma(device, on == 1);
        if (gpu_is_own())
            gpu_count(emulated_other());
        device->attend(stream, &list);
        device->download(stream, c.out, size, out[on]);
        if (gpu_is_own())
            assert_int_equal(gpu_launches[kernel], on);
    }
    gpu_device_wgmma(device, false);
    if (memcmp(out[0], out[1], size) != 0)
        fail_msg("%s, %s, pages of %d, deed %d, %d entries: other bits", kv_type_name(form->k),
                 kv_type_name(form->v), form->page_len, (int)deed, len);
    device->free(device, c.q);
    device->free(device, c.out);
    device->close(stream);
    kv_seq_free(c.seq);
    kv_cache_free(cache);
}

/* Each kernel, also over copies of pages of other forms. Codes whose order the kernels have are
   listed as f16. */
static const struct form forms[] = {
    {KV_TYPE_F16, KV_TYPE_F16, 64, true, GPU_KERNEL_attend_wgmma_f16, GPU_KERNEL_attend_wgmma_f16},
    {KV_TYPE_F16, KV_TYPE_F16, 64, false, GPU_KERNEL_attend_wgmma_f16_rows,
     GPU_KERNEL_attend_wgmma_f16},
    {KV_TYPE_Q8_0, KV_TYPE_Q8_0, 64, true, GPU_KERNEL_attend_wgmma_codes,
     GPU_KERNEL_attend_wgmma_f16},
    {KV_TYPE_TURBO3, KV_TYPE_TURBO3, 64, true, GPU_KERNEL_attend_wgmma_codes,
     GPU_KERNEL_attend_wgmma_f16},
    {KV_TYPE_Q8_0, KV_TYPE_TURBO2, 64, true, GPU_KERNEL_attend_wgmma_codes,
     GPU_KERNEL_attend_wgmma_f16},
    {KV_TYPE_F16, KV_TYPE_BF16, 16, true, GPU_KERNEL_attend_wgmma_f16_rows,
     GPU_KERNEL_attend_wgmma_f16},
};

TEST(attention_by_warp_groups_has_the_bits_of_warps)
{
    if (device == NULL)
        test_skip("the card has no products of warp groups");
    for (size_t f = 0; f < PI_LEN(forms); f++)
        for (int32_t deed = 0; deed < N_DEED; deed++) {
            const bool copied = forms[f].page_len < 64; /* whole pages alone are */
            if (copied && deed != NOTHING && deed != IS_LISTED)
                continue;
            if (!THIRD || ((int32_t)f + deed) % 3 == 0)
                check_case(&forms[f], (enum deed)deed, MOST_LEN - 7 * deed, 45);
        }
}

/* Rows of the first tokens see one page, of the last ones three. */
TEST(a_prompt_alone_has_the_bits_of_warps)
{
    if (device == NULL)
        test_skip("the card has no products of warp groups");
    for (size_t f = 0; f < PI_LEN(forms); f += THIRD ? 2 : 1)
        check_case(&forms[f], NOTHING, MOST_TOK, MOST_TOK);
}
