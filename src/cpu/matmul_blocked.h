/*
 * matmul_blocked.h - the loops around a level's products. It orders tokens, columns and groups so
 * that decoded weights stay in the first cache and activations in the second. It must not know any
 * instruction or the bits of any weight type. Each level's file includes it once: the functions are
 * static so that the compiler builds them with that level's flags.
 *
 * Few tokens: every group is read once, from end to end, and decoded in registers. Many tokens, for
 * each slab of tokens and columns that fits the second cache:
 *     for each few groups, for each block of at most PI_BLOCK_COL columns:
 *         decode the groups' columns into panels (codes of a byte, f32 scales)
 *         for each tile of a few tokens: multiply, the accumulators in registers
 * Between blocks of columns the accumulators wait in the output, as f32, so nothing is rounded that
 * the contract does not round.
 */
#ifndef PI_MATMUL_BLOCKED_H
#define PI_MATMUL_BLOCKED_H

#include "cpu/matmul_layout.h"

#define PI_BLOCK_COL 512             /* columns of a panel: 8 KiB of codes per group */
#define PI_SLAB_BYTES (256 * 1024)   /* activations that stay in the second cache */
#define PI_SLAB_TOK 512              /* tokens of a slab */
#define PI_FEW_TOK_MAX 24            /* at most this number of tokens has no panels */
#define PI_FEW_PART_MAX 16           /* at most this number in one run over a group */
#define PI_TILE_GROUP_MAX 2          /* groups that a tile multiplies together */
#define PI_TURN_TOK 16               /* tokens whose scales and sums lie together by columns */
#define PI_WORD_BYTES (4 * PI_GROUP) /* four columns of a group's codes */
#define PI_CODE_BYTES (PI_ACT_BLOCK * PI_GROUP) /* codes of 32 columns of a group */

/* Columns of one group, decoded. */
struct pi_panel {
    const uint8_t *code; /* [n_col / 4][PI_GROUP][4] */
    float *scale;        /* [n_col / sub_len][PI_GROUP] */
    float *min;          /* as scale; not set for types without minimums */
};

/*
 * One product of a tile: n_group panels times n_tok tokens over n_block blocks of 32 columns. aux
 * has one number per token and scale. For types with minimums it is the sum of q as f32. For the
 * others it is -zero * sum of q as int32, with the zero of pi_quant_kernels: a product of unsigned
 * codes starts from it. Where a level turns them, x_scale and aux of PI_TURN_TOK tokens lie
 * together, [n_block] and [n_block][32 / sub_len] of [PI_TURN_TOK]. Then aux is there for minimums
 * alone.
 */
struct pi_tile {
    int32_t n_tok;
    int32_t n_group;
    int32_t n_block;
    struct pi_panel panel[PI_TILE_GROUP_MAX];
    const int8_t *q;      /* [n_tok], q_stride apart: [n_block][32] */
    const float *x_scale; /* [n_tok], x_stride apart: [n_block] */
    const int32_t *aux;   /* [n_tok], aux_stride apart: [n_block][32 / sub_len] */
    size_t q_stride;
    size_t x_stride;
    size_t aux_stride;
    float *out;        /* [n_tok], out_stride apart: [n_group][PI_GROUP] */
    size_t out_stride; /* out is added to, unless first */
    bool first;
    bool far; /* as of pi_act, for few tokens alone */
};

/* n lines of memory that a product prefetches into the second level of cache. It prefetches line i
   at step i * n_step / n, so that they are spread over the steps. Issued together they are slower
   (kernels.c). */
struct pi_ask {
    const char *at;
    int32_t n;
    int32_t first; /* number of the first step that is asked beside */
    int32_t n_step;
};

/* Decodes n_col columns from column col_begin on, both multiples of the type's block. room takes
   the codes where they are not used in place; panel->scale and min are given. */
typedef void pi_decode_fn(const struct pi_matrix *w, const uint8_t *group, int32_t col_begin,
                          int32_t n_col, uint8_t *room, struct pi_panel *panel);

typedef void pi_tile_fn(const struct pi_tile *tile);

/* PI_TURN_TOK rows of n <= 16 floats, stride apart, to out [n][PI_TURN_TOK]. */
typedef void pi_turn_fn(const float *rows, size_t stride, int32_t n, float *out);

/* A few tokens times one group, all columns, without panels. q, x_scale, aux and out are as in
   pi_tile, with one group and as the first block. n_tok is at most few_part. */
typedef void pi_few_fn(const struct pi_matrix *w, const uint8_t *group, const struct pi_tile *tile);

/* A level's functions for one quantised type. */
struct pi_quant_kernels {
    pi_decode_fn *decode;
    pi_tile_fn *tile;
    pi_few_fn *few;
    int32_t zero;       /* the code of weight 0 as few reads it, */
    int32_t tile_zero;  /* and as decode writes it */
    int32_t few_part;   /* most tokens of few, at most PI_FEW_PART_MAX */
    int32_t tile_tok;   /* most tokens of a tile */
    int32_t tile_group; /* most groups of a tile, at most PI_TILE_GROUP_MAX */
    int32_t few_tok;    /* most tokens without panels, at most PI_FEW_TOK_MAX */
    pi_turn_fn *turn;   /* not NULL: tiles read scales and sums of activations by columns. They are
                           full but for the slab's last, which may read the tokens before it. NULL:
                           they are of nearly equal size */
};

/* ---- scratch ------------------------------------------------------------------------------ */

/* Sizes in the fixed part. The sums of a slab are one per 16 columns and token at most. */
enum {
    PI_PANEL_CODE_BYTES = PI_BLOCK_COL * PI_GROUP,
    PI_PANEL_SCALE_BYTES = PI_BLOCK_COL / 16 * PI_GROUP * 4,
    PI_PANEL_BYTES = PI_PANEL_CODE_BYTES + 2 * PI_PANEL_SCALE_BYTES,
    PI_PANELS_BYTES = PI_TILE_GROUP_MAX * PI_PANEL_BYTES,
    PI_EDGE_BYTES = PI_SLAB_TOK * PI_GROUP * 4,
    PI_SCALES_BYTES = PI_SLAB_BYTES / 32 * 4,
    PI_AUX_BYTES = PI_SLAB_BYTES / 16 * 4,
};

_Static_assert(PI_PANELS_BYTES + PI_EDGE_BYTES + PI_SCALES_BYTES + PI_AUX_BYTES <=
                   PI_MATMUL_SCRATCH_FIXED,
               "the fixed scratch must hold panels, edge, scales and sums");

static inline uint8_t *pi_panel_room(void *scratch, int32_t i)
{
    return (uint8_t *)scratch + (size_t)i * PI_PANEL_BYTES;
}

static inline float *pi_edge_room(void *scratch)
{
    return (float *)(void *)((uint8_t *)scratch + PI_PANELS_BYTES);
}

/* The activations' scales of a slab, turned. */
static inline float *pi_scales_room(void *scratch)
{
    return (float *)(void *)((uint8_t *)scratch + PI_PANELS_BYTES + PI_EDGE_BYTES);
}

/* Of a slab, or, past the fixed part's end, of few tokens and all columns. */
static inline int32_t *pi_aux_room(void *scratch)
{
    return (int32_t *)(void *)((uint8_t *)scratch + PI_PANELS_BYTES + PI_EDGE_BYTES +
                               PI_SCALES_BYTES);
}

/* ---- the sums that products start from ---------------------------------------------------- */

/* n numbers of pi_tile's aux from the sums over 16 columns. */
static void aux_row(const struct pi_matmul_layout *layout, int32_t zero, const int16_t *sum16,
                    int32_t n, int32_t *aux)
{
    int32_t step = layout->sub_len / 16;
    if (layout->has_min) {
        float *sum = (float *)(void *)aux;
        if (step == 1)
            for (int32_t i = 0; i < n; i++)
                sum[i] = (float)sum16[i];
        else
            for (int32_t i = 0; i < n; i++)
                sum[i] = (float)(sum16[2 * i] + sum16[2 * i + 1]);
    } else if (step == 1) {
        for (int32_t i = 0; i < n; i++)
            aux[i] = -zero * sum16[i];
    } else {
        for (int32_t i = 0; i < n; i++)
            aux[i] = -zero * (sum16[2 * i] + sum16[2 * i + 1]);
    }
}

/* ---- few tokens --------------------------------------------------------------------------- */

_Static_assert(PI_FEW_TOK_MAX * 4 / 16 <= PI_MATMUL_SCRATCH_PER_COL, "sums of few tokens must fit");

/* A few tokens times one group, in parts of nearly equal size. The group comes from memory for the
   first part and from the caches for the others. */
static void few_group(const struct pi_quant_kernels *k, const struct pi_matrix *w, int32_t g,
                      const struct pi_tile *all)
{
    const uint8_t *group = w->data + (size_t)g * w->group_bytes;
    size_t n_row = (size_t)pi_min(PI_GROUP, w->n_row - (int64_t)g * PI_GROUP);
    bool full = n_row == PI_GROUP;
    float edge[PI_FEW_PART_MAX * PI_GROUP];
    int32_t n_part = (int32_t)pi_ceil_div(all->n_tok, k->few_part);
    for (int32_t i = 0; i < n_part; i++) {
        size_t t = (size_t)(all->n_tok * i / n_part);
        struct pi_tile part = *all;
        part.n_tok = all->n_tok * (i + 1) / n_part - (int32_t)t;
        part.q = all->q + t * all->q_stride;
        part.x_scale = all->x_scale + t * all->x_stride;
        part.aux = all->aux + t * all->aux_stride;
        float *out = all->out + t * all->out_stride + (size_t)g * PI_GROUP;
        part.out = full ? out : edge;
        part.out_stride = full ? all->out_stride : PI_GROUP;
        k->few(w, group, &part);
        for (int32_t j = 0; !full && j < part.n_tok; j++)
            memcpy(out + (size_t)j * all->out_stride, edge + j * PI_GROUP, n_row * sizeof(float));
    }
}

static void mul_few(const struct pi_quant_kernels *k, const struct pi_matrix *w,
                    const struct pi_act *a, int32_t group_begin, int32_t group_end, float *out,
                    size_t out_stride, void *scratch)
{
    const struct pi_matmul_layout *layout = pi_matmul_layout(w->type);
    int32_t n_aux = w->n_col / layout->sub_len;
    size_t n_block = (size_t)(w->n_col / PI_ACT_BLOCK);
    int32_t *aux = pi_aux_room(scratch);
    for (int32_t t = 0; t < a->n_tok; t++)
        aux_row(layout, k->zero, a->sum16 + (size_t)t * n_block * 2, n_aux,
                aux + (size_t)t * (size_t)n_aux);
    struct pi_tile all = {.n_tok = a->n_tok,
                          .n_group = 1,
                          .n_block = (int32_t)n_block,
                          .q = a->q,
                          .x_scale = a->scale,
                          .aux = aux,
                          .q_stride = n_block * PI_ACT_BLOCK,
                          .x_stride = n_block,
                          .aux_stride = (size_t)n_aux,
                          .out = out,
                          .out_stride = out_stride,
                          .first = true,
                          .far = a->far};
    for (int32_t g = group_begin; g < group_end; g++)
        few_group(k, w, g, &all);
}

/* ---- many tokens -------------------------------------------------------------------------- */

/* The tokens and columns that are in work. */
struct pi_slab {
    int32_t tok_begin, n_tok;
    int32_t col_begin, n_col;
};

struct pi_blocked {
    const struct pi_quant_kernels *k;
    const struct pi_matmul_layout *layout;
    const struct pi_matrix *w;
    const struct pi_act *a;
    float *out;
    size_t out_stride;
    void *scratch;
};

/* Packed bytes that will be read after the columns in work: words and halves of a few groups. */
struct pi_ahead {
    const char *from[2 * PI_TILE_GROUP_MAX];
    int32_t n_line; /* cache lines of each */
    int32_t n;
};

/* The next block of columns of groups [g, g + n), or, after the slab's last, the first of the
   groups behind them. */
static struct pi_ahead slab_ahead(const struct pi_blocked *m, const struct pi_slab *slab, int32_t g,
                                  int32_t n, int32_t col)
{
    const struct pi_matmul_layout *layout = m->layout;
    struct pi_ahead ahead = {.n = 0};
    int32_t end = slab->col_begin + slab->n_col, n_col = (int32_t)pi_min(PI_BLOCK_COL, end - col);
    if (col >= end) {
        g += n;
        col = slab->col_begin;
        n_col = (int32_t)pi_min(PI_BLOCK_COL, slab->n_col);
    }
    size_t block = (size_t)(col / layout->block_len);
    ahead.n_line = n_col / layout->block_len * layout->payload_bytes * PI_GROUP / 64;
    for (int32_t i = 0; i < n && g + i < m->w->n_group; i++) {
        const uint8_t *group = m->w->data + (size_t)(g + i) * m->w->group_bytes;
        const uint16_t *halves = pi_matmul_halves(layout, m->w->n_col, group);
        ahead.from[ahead.n++] =
            (const char *)group + block * (size_t)layout->payload_bytes * PI_GROUP;
        __builtin_prefetch((const char *)halves +
                           block * pi_matmul_scale_bytes(layout->n_half) * PI_GROUP);
    }
    return ahead;
}

/* Asks for part i of n_part of the lines. */
static void ahead_fetch(const struct pi_ahead *ahead, int32_t i, int32_t n_part)
{
    int32_t begin = (int32_t)((int64_t)ahead->n_line * i / n_part);
    int32_t end = (int32_t)((int64_t)ahead->n_line * (i + 1) / n_part);
    for (int32_t j = 0; j < ahead->n; j++)
        for (int32_t line = begin; line < end; line++)
            __builtin_prefetch(ahead->from[j] + (size_t)line * 64, 0, 2);
}

static int32_t tile_begin(const struct pi_quant_kernels *k, int32_t n_tok, int32_t i, int32_t n)
{
    return k->turn ? (int32_t)pi_min(n_tok, i * k->tile_tok) : (int32_t)((int64_t)n_tok * i / n);
}

/* The tokens of a slab in tiles. */
static void slab_tiles(const struct pi_blocked *m, const struct pi_slab *slab, struct pi_tile *tile,
                       const struct pi_ahead *ahead)
{
    int32_t n_tile = (int32_t)pi_ceil_div(slab->n_tok, m->k->tile_tok);
    struct pi_tile part = *tile;
    for (int32_t i = 0; i < n_tile; i++) {
        int32_t t = tile_begin(m->k, slab->n_tok, i, n_tile);
        part.n_tok = tile_begin(m->k, slab->n_tok, i + 1, n_tile) - t;
        part.q = tile->q + (size_t)t * tile->q_stride;
        part.x_scale = tile->x_scale + (size_t)t * tile->x_stride;
        part.aux = tile->aux + (size_t)t * tile->aux_stride;
        part.out = tile->out + (size_t)t * tile->out_stride;
        ahead_fetch(ahead, i, n_tile);
        m->k->tile(&part);
    }
}

/* Groups [g, g + n) times a slab; out is [n_tok of the slab][n][PI_GROUP], out_stride apart. */
static void slab_groups(const struct pi_blocked *m, const struct pi_slab *slab, int32_t g,
                        int32_t n, float *out, size_t out_stride)
{
    const struct pi_act *a = m->a;
    int32_t sub_len = m->layout->sub_len;
    struct pi_tile tile = {.n_group = n, .out = out, .out_stride = out_stride};
    size_t n_x = (size_t)(a->n_col / PI_ACT_BLOCK);
    tile.x_stride = n_x;
    tile.q_stride = n_x * PI_ACT_BLOCK;
    tile.aux_stride = (size_t)(slab->n_col / sub_len);
    const bool turned = m->k->turn != NULL;
    if (turned)
        tile.x_stride = (size_t)(slab->n_col / PI_ACT_BLOCK);
    int32_t end = slab->col_begin + slab->n_col;
    for (int32_t c = slab->col_begin; c < end; c += PI_BLOCK_COL) {
        int32_t n_col = (int32_t)pi_min(PI_BLOCK_COL, end - c);
        for (int32_t i = 0; i < n; i++) {
            uint8_t *room = pi_panel_room(m->scratch, i);
            tile.panel[i].scale = (float *)(void *)(room + PI_PANEL_CODE_BYTES);
            tile.panel[i].min = tile.panel[i].scale + PI_PANEL_SCALE_BYTES / 4;
            m->k->decode(m->w, m->w->data + (size_t)(g + i) * m->w->group_bytes, c, n_col, room,
                         &tile.panel[i]);
        }
        size_t x_at = (size_t)slab->tok_begin * n_x + (size_t)(c / PI_ACT_BLOCK);
        int32_t from = c - slab->col_begin, width = turned ? PI_TURN_TOK : 1;
        tile.n_block = n_col / PI_ACT_BLOCK;
        tile.q = a->q + x_at * PI_ACT_BLOCK;
        tile.x_scale =
            turned ? pi_scales_room(m->scratch) + from / PI_ACT_BLOCK * width : a->scale + x_at;
        tile.aux = pi_aux_room(m->scratch) + from / sub_len * width;
        tile.first = c == 0;
        struct pi_ahead ahead = slab_ahead(m, slab, g, n, c + n_col);
        slab_tiles(m, slab, &tile, &ahead);
    }
}

/* A group with missing rows is multiplied in the scratch, its rows carried there and back. */
static void slab_edge(const struct pi_blocked *m, const struct pi_slab *slab, int32_t g)
{
    size_t n_row = (size_t)m->w->n_row - (size_t)g * PI_GROUP;
    float *edge = pi_edge_room(m->scratch);
    float *out = m->out + (size_t)slab->tok_begin * m->out_stride + (size_t)g * PI_GROUP;
    memset(edge, 0, (size_t)slab->n_tok * PI_GROUP * sizeof(float));
    if (slab->col_begin > 0)
        for (int32_t t = 0; t < slab->n_tok; t++)
            memcpy(edge + (size_t)t * PI_GROUP, out + (size_t)t * m->out_stride, n_row * 4);
    slab_groups(m, slab, g, 1, edge, PI_GROUP);
    for (int32_t t = 0; t < slab->n_tok; t++)
        memcpy(out + (size_t)t * m->out_stride, edge + (size_t)t * PI_GROUP, n_row * 4);
}

/* The sums that products of a slab start from. */
static void slab_sums(const struct pi_blocked *m, const struct pi_slab *slab)
{
    int32_t n_aux = slab->n_col / m->layout->sub_len;
    size_t stride = (size_t)(m->a->n_col / 16);
    const int16_t *sum16 =
        m->a->sum16 + (size_t)slab->tok_begin * stride + (size_t)(slab->col_begin / 16);
    for (int32_t t = 0; t < slab->n_tok; t++)
        aux_row(m->layout, m->k->tile_zero, sum16 + (size_t)t * stride, n_aux,
                pi_aux_room(m->scratch) + (size_t)t * (size_t)n_aux);
}

/* Scales and, for types with minimums, sums of PI_TURN_TOK tokens of a slab from `first` on, to the
   place of token t. */
static void turn_rows(const struct pi_blocked *m, const struct pi_slab *slab, int32_t first,
                      int32_t t)
{
    const struct pi_act *a = m->a;
    int32_t n_x = slab->n_col / PI_ACT_BLOCK, n_aux = slab->n_col / m->layout->sub_len;
    size_t stride = (size_t)(a->n_col / PI_ACT_BLOCK);
    size_t at =
        (size_t)(slab->tok_begin + first) * stride + (size_t)(slab->col_begin / PI_ACT_BLOCK);
    float *scale = pi_scales_room(m->scratch) + (size_t)t * (size_t)n_x;
    for (int32_t i = 0; i < n_x; i += 16)
        m->k->turn(a->scale + at + i, stride, (int32_t)pi_min(16, n_x - i),
                   scale + (size_t)i * PI_TURN_TOK);
    float *aux = (float *)(void *)pi_aux_room(m->scratch) + (size_t)t * (size_t)n_aux;
    for (int32_t i = 0; i < n_aux && m->layout->has_min; i += 16) {
        int32_t rows[PI_TURN_TOK][16], n = (int32_t)pi_min(16, n_aux - i);
        for (int32_t j = 0; j < PI_TURN_TOK; j++)
            aux_row(m->layout, 0,
                    a->sum16 + (at + (size_t)j * stride) * 2 +
                        (size_t)(i * m->layout->sub_len / 16),
                    n, rows[j]);
        m->k->turn((const float *)(const void *)rows, 16, n, aux + (size_t)i * PI_TURN_TOK);
    }
}

static void slab_run(const struct pi_blocked *m, const struct pi_slab *slab, int32_t group_begin,
                     int32_t group_end)
{
    if (m->k->turn == NULL)
        slab_sums(m, slab);
    else
        for (int32_t t = 0; t < slab->n_tok; t += PI_TURN_TOK)
            turn_rows(m, slab, (int32_t)pi_min(t, slab->n_tok - PI_TURN_TOK), t);
    int32_t full_end = (int32_t)pi_min(group_end, m->w->n_row / PI_GROUP);
    for (int32_t g = group_begin; g < full_end;) {
        int32_t n = (int32_t)pi_min(m->k->tile_group, full_end - g);
        slab_groups(m, slab, g, n,
                    m->out + (size_t)slab->tok_begin * m->out_stride + (size_t)g * PI_GROUP,
                    m->out_stride);
        g += n;
    }
    if (full_end < group_end)
        slab_edge(m, slab, full_end);
}

/* pi_matmul_fn of a quantised type. */
static void mul_blocked(const struct pi_quant_kernels *k, const struct pi_matrix *w,
                        const struct pi_act *a, int32_t group_begin, int32_t group_end, float *out,
                        size_t out_stride, void *scratch)
{
    if (group_begin >= group_end)
        return;
    if (a->n_tok <= k->few_tok) {
        mul_few(k, w, a, group_begin, group_end, out, out_stride, scratch);
        return;
    }
    const struct pi_matmul_layout *layout = pi_matmul_layout(w->type);
    struct pi_blocked m = {k, layout, w, a, out, out_stride, scratch};
    int32_t n_slab = (int32_t)pi_ceil_div(a->n_tok, PI_SLAB_TOK);
    int32_t tok_step = (int32_t)pi_ceil_div(a->n_tok, pi_max(1, n_slab));
    for (int32_t t = 0; t < a->n_tok; t += tok_step) {
        struct pi_slab slab = {.tok_begin = t, .n_tok = (int32_t)pi_min(tok_step, a->n_tok - t)};
        int32_t n_room = (int32_t)pi_align((size_t)slab.n_tok, PI_TURN_TOK);
        int32_t col_step = PI_SLAB_BYTES / n_room / PI_BLOCK_COL * PI_BLOCK_COL;
        for (int32_t c = 0; c < w->n_col; c += col_step) {
            slab.col_begin = c;
            slab.n_col = (int32_t)pi_min(col_step, w->n_col - c);
            slab_run(&m, &slab, group_begin, group_end);
        }
    }
}

#endif
