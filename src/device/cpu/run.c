/*
 * run.c - a lane's pages as kernels see them, and decoded, for code that scores or copies many
 * entries at once. It must not know that code.
 */
#include "cpu/kernels.h"
#include "device/cpu/pages.h"
#include "device/cpu/wht.h"

void kv_page_view(const struct kv_class *kind, const struct kv_page_layout *layout,
                  const uint8_t *page, const int32_t *pos, int32_t page_len, int32_t n,
                  struct pi_attend_page *out)
{
    *out = (struct pi_attend_page){
        .k = page + layout->k,
        .k_high = page + layout->k_high,
        .k_scale = (const uint16_t *)(const void *)(page + layout->k_scale),
        .k_table = kv_codec_table(kind->type_k, kind->group_k),
        .k_group = kind->group_k,
        .v = page + layout->v,
        .v_high = page + layout->v_high,
        .v_scale = (const uint16_t *)(const void *)(page + layout->v_scale),
        .v_table = kv_codec_table(kind->type_v, kind->group_v),
        .v_group = kind->group_v,
        .v_pitch = kind->v_pitch,
        .pos = pos,
        .page_len = page_len,
        .n = n,
        .columns = layout->side_by_side,
        .dim_k = kind->k.dim,
        .dim_v = kind->value.dim,
    };
}

/* Table entry i of a lane as kernels see it. */
static struct pi_attend_page page_of(const struct kv_seq *seq, int32_t layer, int32_t head,
                                     int32_t i)
{
    const struct kv_cache *cache = seq->cache;
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    struct pi_attend_page page;
    kv_page_view(lane->kind, &lane->kind->layout, kv_page_at(lane->kind, lane->table[i].page),
                 kv_page_pos(lane->kind, lane->table[i].page), cache->g.page_len, lane->table[i].n,
                 &page);
    return page;
}

/* Bytes from the page of table entry i to the next one, which a walk over the lane reads next.
   Pages are scattered, so the processor cannot predict it. Kernels prefetch the values as they go;
   this function prefetches the scales. */
static ptrdiff_t ask_for_next(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i)
{
    const struct kv_lane *lane = kv_lane_at(seq, layer, head);
    const struct kv_class *kind = lane->kind;
    if (i + 1 >= lane->n_live)
        return 0;
    const uint8_t *next = kv_page_at(kind, lane->table[i + 1].page);
    pi_kernels()->attend.prefetch(next + kind->layout.k_high,
                                  kind->layout.k_end - kind->layout.k_high);
    return next - kv_page_at(kind, lane->table[i].page);
}

/* Rotates groups of n_row vectors of dim dimensions back, which lie side by side, through a tile of
   them. Each has the bits that kv_wht gives it alone. */
static void turn_back(const struct kv_part *part, float *x, int32_t n)
{
    enum { TILE = 16 };
    float tile[TILE * KV_WHT_MAX];
    int32_t group = part->group;
    for (int32_t d = 0; d < part->dim; d += group)
        for (int32_t first = 0; first < n; first += TILE) {
            float *at = x + (size_t)d * (size_t)n + first;
            for (int32_t i = 0; i < group; i++)
                for (int32_t j = 0; j < TILE; j++)
                    tile[j * group + i] = at[i * n + j];
            kv_wht(tile, TILE * group, group, true);
            for (int32_t i = 0; i < group; i++)
                for (int32_t j = 0; j < TILE; j++)
                    at[i * n + j] = tile[j * group + i];
        }
}

static void run_keys(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i, float *out)
{
    const struct kv_part *k = &kv_lane_at(seq, layer, head)->kind->k;
    struct pi_attend_page page = page_of(seq, layer, head, i);
    page.next = ask_for_next(seq, layer, head, i);
    pi_kernels()->attend.decode_k[k->codec->kernel](&page, out);
    if (k->codec->rotated)
        turn_back(k, out, seq->cache->g.page_len);
}

static void run_values(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i, float *out)
{
    const struct kv_geometry *g = &seq->cache->g;
    const struct kv_part *v = &kv_lane_at(seq, layer, head)->kind->value;
    struct pi_attend_page page = page_of(seq, layer, head, i);
    const float *rows = page.v; /* of f32 */
    if (v->codec->kernel != PI_ATTEND_F32)
        pi_kernels()->attend.decode_v[v->codec->kernel](&page, out);
    for (int32_t s = 0; v->codec->kernel == PI_ATTEND_F32 && s < g->page_len; s++)
        memcpy(out + s * g->dim_v, rows + s * page.v_pitch, (size_t)g->dim_v * sizeof(*out));
    if (v->codec->rotated)
        kv_wht(out, g->page_len * g->dim_v, v->group, true);
}

void cpu_decode_run(const struct kv_seq *seq, int32_t layer, int32_t head, int32_t i,
                    enum kv_side side, float *out)
{
    if (side == KV_SIDE_K)
        run_keys(seq, layer, head, i, out);
    else
        run_values(seq, layer, head, i, out);
}
